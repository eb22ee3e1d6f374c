"""The reward model of UltraFeedback: answers to open-domain questions."""
