"""The whole method, small and real: answers of a base model, annotation, a reward model, a better policy, a report.

    bash quickstart/run.sh                    SmolLM2-135M, 64 posts; ends with runs/quickstart/report.html
    bash quickstart/run.sh --smoke            the same steps in about a minute, with a tiny random model
    bash quickstart/run.sh --seed 2 --run_dir runs/seed2
    bash quickstart/run.sh --critic programmatic --run_dir runs/by_rules
    bash quickstart/run.sh --code             short Python functions, with their unit tests as critic; runs/code

Run the same command again to continue an interrupted run. quickstart/steps.py has the steps.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from text2grad import configs
from text2grad.critics import CRITIC_FORMS, names_critic
from text2grad.errors import command

ROOT = Path(__file__).resolve().parent.parent


def arguments(args: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=configs.program or "bash quickstart/run.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--smoke", action="store_true", help="a tiny random model, whose figures mean nothing")
    parser.add_argument("--code", action="store_true", help="Python functions judged by unit tests, in place of posts")
    parser.add_argument("--seed", type=int, default=42, help="seed of sampling and training (42)")
    parser.add_argument(
        "--critic",
        help="who gives the policy feedback: reward_model (made in step 3, the default), programmatic (rules, or with "
        "--code unit tests, the default there), or any critic",
    )
    parser.add_argument("--run_dir", type=Path, help="folder of the run (runs/quickstart, smoke, code or smoke_code)")
    chosen = parser.parse_args(args)
    if chosen.code and chosen.critic == "reward_model":
        parser.error("--code trains no reward model; leave --critic out, or give a reward model's folder")
    if chosen.run_dir is None:
        whole, small = ("code", "smoke_code") if chosen.code else ("quickstart", "smoke")
        chosen.run_dir = ROOT / "runs" / (small if chosen.smoke else whole)
    if chosen.critic is None:
        chosen.critic = "programmatic" if chosen.code else "reward_model"
    if not (chosen.critic == "reward_model" or names_critic(chosen.critic)):
        parser.error(f"--critic: there is no critic {chosen.critic!r}; give {CRITIC_FORMS}")
    path, colon, name = chosen.critic.partition(":")
    if chosen.critic != "reward_model" and Path(path).exists():  # the steps run in the repository's folder
        chosen.critic = f"{Path(path).resolve()}{colon}{name}"
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
    from quickstart.steps import CodeTour, PostsTour  # torch and all the rest

    tour = CodeTour if chosen.code else PostsTour
    run = run.relative_to(ROOT) if run.is_relative_to(ROOT) else run
    tour(run, chosen.smoke, chosen.seed, chosen.critic).run()


if __name__ == "__main__":
    main()
