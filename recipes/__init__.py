"""Whole experiments: from published data to the tables of the paper."""
