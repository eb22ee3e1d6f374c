"""Studies of the method and its costs; each prints its tables, and its page says what came out."""
