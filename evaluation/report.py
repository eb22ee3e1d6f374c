"""One page from training runs and evaluation results: what was run, what came out, curves, and every answer to read.

    python evaluation/report.py RUN_DIR... --results base.result.json text2grad.result.json --output_path report.html

    python evaluation/report.py RUN_DIR --watch --output_path report.html       # while the run trains

The page opens without a network. The same figures lie beside it as Markdown and as JSON; ``--figures DIR`` writes each
figure as SVG and PDF.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from evaluation.reporting.assemble import assemble
from evaluation.reporting.comparing import load_results, pairs
from evaluation.reporting.live import watch
from evaluation.reporting.page import html, markdown
from evaluation.reporting.runs import load_runs
from evaluation.reporting.viewer import packs
from text2grad.errors import InputError, command
from text2grad.records import check_output, save_json, save_text
from text2grad.tasks import get_task


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN_DIR", help="run folders of stage 3; seeds are grouped")
    parser.add_argument(
        "--output_path", "--output_file", "--output", required=True, metavar="FILE.html", help="the page"
    )
    parser.add_argument("--results", nargs="+", default=[], metavar="FILE", help="result files of evaluation/<task>/")
    parser.add_argument("--baseline", metavar="NAME", help="the system or method that all others are compared with")
    parser.add_argument("--annotation", nargs="+", default=[], metavar="FILE", help="stage 1's .report.json files")
    parser.add_argument("--reward_model", nargs="+", default=[], metavar="FILE", help="stage 2's metrics files")
    parser.add_argument(
        "--task", nargs="+", default=[], metavar="FILE.py", help="your own tasks, where their files have moved"
    )
    parser.add_argument("--figures", metavar="DIR", help="also write each figure there as SVG and PDF")
    parser.add_argument(
        "--max_rollouts", type=int, default=50_000, help="answers in the page; more are thinned by whole steps"
    )
    parser.add_argument(
        "--watch", type=float, nargs="?", const=10.0, metavar="SECONDS", help="follow runs that still train (10)"
    )
    return parser.parse_args()


@command
def main() -> None:
    args = arguments()
    output = Path(args.output_path)
    if output.suffix != ".html":
        raise InputError(f"--output_path {output}: is not an HTML file; give a name that ends in .html")
    if args.max_rollouts < 1:
        raise InputError(f"--max_rollouts {args.max_rollouts}: must be at least 1")
    for suffix in (".html", ".md", ".json"):
        check_output(output.with_suffix(suffix))

    for task in args.task:
        get_task(task)
    if args.watch is None:
        build(args, output)
        return
    if args.watch <= 0:
        raise InputError(f"--watch {args.watch:g}: must be above 0 seconds")
    files = [*args.results, *args.annotation, *args.reward_model]
    try:
        watch(args.runs, files, lambda goes_on: build(args, output, args.watch if goes_on else 0.0), args.watch)
    except KeyboardInterrupt:
        print(f"no longer watching; {output} is as of the last step seen")


def build(args: argparse.Namespace, output: Path, refresh: float = 0.0) -> None:
    """Write the page and what lies beside it.

    Args:
        refresh: seconds after which the page loads itself again; 0 for a page that stays as it is.
    """
    results = load_results(args.results)
    report, variants = assemble(load_runs(args.runs), results, args.baseline, args.annotation, args.reward_model)
    side_by_side = [pair for table in report["tables"] for pair in pairs(results, table)]
    packed, report["viewer"] = packs(variants, side_by_side, args.max_rollouts)

    page, plain = html(report, packed, report["viewer"], refresh), markdown(report, report["viewer"])
    save_json(output.with_suffix(".json"), report)
    save_text(output.with_suffix(".md"), plain)
    save_text(output, page)
    size = f"{output.stat().st_size / 1e6:.1f} MB"
    print(
        f"report -> {output} ({size}), {output.stem}.md and {output.stem}.json; open the page in a browser", flush=True
    )
    if args.figures:
        from evaluation.reporting.figures import write_figures

        written = write_figures(report, args.figures)
        print(f"{args.figures}: {written} figures, each as SVG and PDF")


if __name__ == "__main__":
    main()
