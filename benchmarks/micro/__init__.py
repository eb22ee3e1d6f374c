"""A task whose truth is known token by token, and policies small enough to train on it hundreds of times."""
