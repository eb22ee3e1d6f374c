"""The ground floor of Text2Grad: the method, and what two or more stages share."""

import os
import sys

__version__ = "0.2.0.dev0"

try:  # what no library after this one can do without
    os.getcwd()
    import tqdm  # noqa: F401
except (FileNotFoundError, ValueError) as problem:
    gone = isinstance(problem, FileNotFoundError)
    reason = "this folder was deleted; change to another" if gone else f"{problem}; unset that variable, TQDM_..."
    print(f"error: {reason}", file=sys.stderr)
    raise SystemExit(2) from None
