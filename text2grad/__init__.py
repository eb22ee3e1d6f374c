"""The ground floor of Text2Grad: the method, and what two or more stages share."""

__version__ = "0.2.0.dev0"
