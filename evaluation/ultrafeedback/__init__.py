"""UltraFeedback: open questions, by the benchmarks people cite."""
