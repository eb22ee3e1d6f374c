"""What comes in from outside passes ``gate.py`` and, as a file of ours, ``schema.py``; what is shown ``redaction.py``."""
