"""The ground floor of Text2Grad: the method, and what two or more stages share."""
