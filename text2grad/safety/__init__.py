"""What comes in from outside passes ``gate.py`` and ``schema.py``; what is stored or shown passes ``redaction.py``."""
