"""Does the probe of spans, before training, tell where methods end? Its tables, and its cosines beside final F1.

    python benchmarks/spans.py

Runs are those of the controlled task, with a perfect critic and with ones that err.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import matplotlib
from scipy.stats import spearmanr

from benchmarks.micro import results
from benchmarks.micro.methods import METHODS
from nl_gradient_policy_optimization.probe_spans import table
from text2grad.configs import parse, setting
from text2grad.errors import command
from text2grad.plotting import COLOURS, STYLE, save_figure
from text2grad.records import load_json

matplotlib.use("Agg")
from matplotlib import pyplot

FIGURES = Path(__file__).parent / "figures"
RUNS = {method.label: name for name, method in METHODS.items()}
"""The probe's methods have the labels of the study's."""
CRITICS = {"perfect critic": "", "10 % of signs flipped": "flip-10-", "25 % of signs flipped": "flip-25-"}


@dataclass
class SpansConfig:
    """Where the figures are."""

    probes: str = setting(str(FIGURES / "spans.json"), "what probe_spans.py wrote for each cell, by the cell's name")
    study: str = setting(str(FIGURES / "verdict.json"), "the study of the controlled task")
    output_path: str = setting("runs/benchmarks/figures/spans", "the figure, without its suffix")


@command
def main() -> None:
    config = parse(SpansConfig)
    probes, curves = load_json(config.probes), load_json(config.study)["curves"]
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(figsize=(5.0, 3.0), layout="constrained")
        for number, (critic, prefix) in enumerate(CRITICS.items()):
            ends = {name: curves[prefix + RUNS[name]] for name in probes[critic] if prefix + RUNS[name] in curves}
            cosines = [fmean(probes[critic][name]["all"]) for name in ends]
            finals = [results.final(runs).value for runs in ends.values()]
            print(f"{critic}: rank correlation {spearmanr(cosines, finals).statistic:.2f} over {len(ends)} methods")
            axes.plot(cosines, finals, "o", color=COLOURS[number], markersize=4, label=critic)
            for name, x, y in zip(ends, cosines, finals, strict=True):
                label = name.partition(",")[0]
                axes.annotate(label, (x, y), (3, 3), textcoords="offset points", fontsize=5, color=COLOURS[number])
        axes.set(xlabel="cosine with the verdict's direction, before training", ylabel="final quality (F1)")
        axes.legend(fontsize=7)
        save_figure(figure, config.output_path)
    for cell, found in probes.items():
        print(f"\n{cell}\n\n{table(found)}")


if __name__ == "__main__":
    main()
