"""Stage 2: train a language model to write feedback, and measure what its feedback is worth."""
