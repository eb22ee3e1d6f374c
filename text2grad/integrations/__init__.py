"""Text2Grad inside other trainers, from ``core.py`` on; and any critic behind HTTP (``text2grad serve``)."""
