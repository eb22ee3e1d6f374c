"""Stage 2: train a language model to write feedback, and measure how good its feedback is."""
