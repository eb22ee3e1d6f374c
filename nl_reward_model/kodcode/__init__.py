"""The reward model of KodCode: Python functions."""
