"""The whole method on a small model: ``run.py`` is the program, ``steps.py`` its six steps."""
