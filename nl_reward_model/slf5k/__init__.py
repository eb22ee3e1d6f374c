"""The reward model of SLF5K: summaries of Reddit posts."""
