"""Errors a user can correct, and the one place that turns them into an exit code."""

from __future__ import annotations

import functools
import logging
import sys
import warnings
from collections.abc import Callable

from text2grad.safety.redaction import redacted


class InputError(ValueError):
    """Something the user gave is wrong: a file, a record, a flag.

    The message names the file, the record and the remedy; entry scripts print it and exit with 2.
    """


class StopRunError(Exception):
    """Raised by the work of ``journal.map_records``: end the run here, keep what is done, fail nothing.

    A spent budget is the usual reason.
    """


def command(main: Callable[..., None]) -> Callable[..., None]:
    """Wrap an entry script's ``main``: ``InputError`` and ``StopRunError`` exit with 2, Ctrl-C with 130.

    All else is a bug and traces. Remarks of libraries about themselves stay off the screen.
    """

    @functools.wraps(main)
    def wrapped(*args, **kwargs) -> None:
        warnings.filterwarnings("ignore", ".*gradient_checkpointing` is deprecated", FutureWarning)
        logging.getLogger("DeepSpeed").addFilter(lambda record: "Setting accelerator to" not in record.getMessage())
        try:
            main(*args, **kwargs)
        except (InputError, StopRunError) as error:
            print(f"error: {redacted(str(error))}", file=sys.stderr)
            raise SystemExit(2) from None
        except KeyboardInterrupt:
            print("\ninterrupted; run the same command again to go on from here", file=sys.stderr)
            raise SystemExit(130) from None

    return wrapped
