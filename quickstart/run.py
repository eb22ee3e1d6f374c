"""The whole method, small and real: answers of a base model, annotation, a reward model, a better policy, a report.

    bash quickstart/run.sh                    SmolLM2-135M, 64 posts; ends with runs/quickstart/report.html
    bash quickstart/run.sh --smoke            the same steps in about a minute, with a tiny random model
    bash quickstart/run.sh --seed 2 --run_dir runs/seed2
    bash quickstart/run.sh --critic programmatic --run_dir runs/by_rules

Run the same command again to continue an interrupted run. quickstart/steps.py has the six steps.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from text2grad import configs
from text2grad.errors import command

ROOT = Path(__file__).resolve().parent.parent


def arguments(args: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=configs.program or "bash quickstart/run.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--smoke", action="store_true", help="a tiny random model, whose figures mean nothing")
    parser.add_argument("--seed", type=int, default=42, help="seed of steps 1, 3 and 4 (42)")
    parser.add_argument(
        "--critic",
        default="reward_model",
        help="who gives feedback in step 4: reward_model (the default, made in step 3), programmatic, or any critic",
    )
    parser.add_argument("--run_dir", type=Path, help="folder of the run (runs/quickstart, with --smoke runs/smoke)")
    chosen = parser.parse_args(args)
    if chosen.run_dir is None:
        chosen.run_dir = ROOT / "runs" / ("smoke" if chosen.smoke else "quickstart")
    return chosen


@command
def main() -> None:
    chosen = arguments()
    run = chosen.run_dir.absolute()
    os.chdir(ROOT)  # data and settings are recorded by their paths in the repository
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ["TEXT2GRAD_NEXT"] = "0"  # the steps follow each other here
    warnings.filterwarnings("ignore", category=FutureWarning)
    print("loading the libraries", file=sys.stderr, flush=True)
    from quickstart.steps import Quickstart  # torch and all the rest

    run = run.relative_to(ROOT) if run.is_relative_to(ROOT) else run
    Quickstart(run, chosen.smoke, chosen.seed, chosen.critic).run()


if __name__ == "__main__":
    main()
