"""One page from training runs and evaluation results: what was run, what came out, curves, and every response to read.

    python evaluation/report.py RUN_DIR... --results base.result.json text2grad.result.json --output_path report.html

The page opens without a network. The same figures are written next to it as JSON.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from evaluation.reporting.assemble import assemble
from evaluation.reporting.comparing import load_results
from evaluation.reporting.packs import packs
from evaluation.reporting.page import html
from evaluation.reporting.runs import load_run, once
from text2grad import configs
from text2grad.errors import InputError, command
from text2grad.records import check_output, save_json, save_text
from text2grad.tasks import get_task


def arguments(args: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=configs.program or None, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", metavar="RUN_DIR", help="run folders of stage 3; seeds are grouped")
    parser.add_argument(
        "--output_path", "--output_file", "--output", required=True, metavar="FILE.html", help="the page"
    )
    parser.add_argument("--results", nargs="+", default=[], metavar="FILE", help="result files of evaluation/<task>/")
    parser.add_argument("--baseline", metavar="NAME", help="the system or method that all others are compared with")
    parser.add_argument("--annotation", nargs="+", default=[], metavar="FILE", help="stage 1's .report.json files")
    parser.add_argument("--reward_model", nargs="+", default=[], metavar="FILE", help="stage 2's metrics files")
    parser.add_argument("--task", nargs="+", default=[], metavar="FILE.py", help="the files of your own tasks")
    parser.add_argument(
        "--max_rollouts", type=int, default=50_000, help="responses in the page; more are thinned by whole steps"
    )
    return parser.parse_args(args)


@command
def main(given: Sequence[str] | None = None) -> None:
    args = arguments(given)
    output = Path(args.output_path)
    if output.suffix != ".html":
        raise InputError(f"--output_path {output}: is not an HTML file; give a name that ends in .html")
    if args.max_rollouts < 1:
        raise InputError(f"--max_rollouts {args.max_rollouts}: must be at least 1")
    for suffix in (".html", ".json"):
        check_output(output.with_suffix(suffix))
    for task in args.task:
        get_task(task)

    results = load_results(args.results)
    runs = [load_run(folder) for folder in once(args.runs)]
    report, variants, pairs = assemble(runs, results, args.baseline, args.annotation, args.reward_model)
    packed, report["viewer"] = packs(variants, pairs, args.max_rollouts)
    page = html(report, packed)
    save_json(output.with_suffix(".json"), report)
    save_text(output, page)
    size = f"{output.stat().st_size / 1e6:.1f} MB"
    print(f"report -> {output} ({size}) and {output.stem}.json; open the page in a browser")


if __name__ == "__main__":
    main()
