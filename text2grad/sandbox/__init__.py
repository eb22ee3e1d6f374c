"""Runs untrusted code in a box (``box.py``), and unit tests inside it (``unit_tests.py``); see ``docs/sandbox.md``."""

from text2grad.sandbox.box import BOX, PATIENCE, REPORT_VARIABLE, Result, Sandbox

__all__ = ["BOX", "PATIENCE", "REPORT_VARIABLE", "Result", "Sandbox"]
