"""Annotate solutions to programming tasks with a critique, wrong code and improvable code.

python rm_data_anno/kodcode/dual_feedback_annotation_RM.py --data_path solutions.json --output_path annotated.json

A record whose ``log`` is empty is run against its tests first, in the sandbox, and its log is written into the output.
"""

from dataclasses import dataclass
from functools import partial

from rm_data_anno.annotate import AnnotateConfig, annotate
from text2grad.configs import parse, setting
from text2grad.errors import command
from text2grad.sandbox import Sandbox
from text2grad.sandbox.unit_tests import VERDICTS, with_log


@dataclass(kw_only=True)
class KodCodeConfig(AnnotateConfig):
    """The tests of a solution are run where its record has no log of them."""

    test_seconds: float = setting(10.0, "time that a solution's tests may take")
    allow_unsafe: bool = setting(False, "run solutions where this system cannot isolate them")


@command
def main() -> None:
    config = parse(KodCodeConfig)
    sandbox = Sandbox(seconds=config.test_seconds, allow_unsafe=config.allow_unsafe)
    prepare, settings = partial(with_log, sandbox=sandbox), {"test_seconds": config.test_seconds, "verdicts": VERDICTS}
    annotate("kodcode", config, prepare, {"sandbox": sandbox}, settings)


if __name__ == "__main__":
    main()
