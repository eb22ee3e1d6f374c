"""What comes in from outside passes ``gate.py``; what is stored or shown passes ``redaction.py``."""
