"""``python -m text2grad``: the command ``text2grad``."""

from text2grad.cli import main

main()
