"""A trained natural-language reward model as a critic: its prompt, its decoding, and what constrains the decoding."""
