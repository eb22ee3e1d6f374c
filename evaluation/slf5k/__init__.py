"""SLF5K: how good the summaries are."""
