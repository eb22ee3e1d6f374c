"""What limits the report's figures, found by rules: a plain list of facts."""

import re
from operator import itemgetter
from typing import Any

from evaluation.reporting.training import Variant
from evaluation.reporting.wording import method_name
from evaluation.results import grouped, instruments
from text2grad.errors import InputError
from text2grad.models import weights_fingerprint

FEW_PROMPTS = 100


def cautions(report: dict[str, Any], results: list[dict[str, Any]], groups: list[Variant]) -> list[str]:
    """The facts, those on the evaluation before those on training."""
    found = []
    if report["training"] and not (report["tables"] or report["judges"]):
        found.append("No figure is measured on held-out prompts.")
    several = len(report["training"]) > 1
    for group in groups:
        name = f"{group.label} on {group.task}" if several else group.label
        if len(group.runs) == 1:
            found.append(f"{name}: one seed. Another seed may give another result.")
    found += _about_critics(report, results)
    found += foreign_policies(report, groups)
    for result in results:
        for change in result.get("changes") or []:
            told = ", ".join(f"{name} {value}" for name, value in change["settings"].items())
            where = f"{method_name(result['system'])}, {result['benchmark']}"
            found.append(f"{where}: from record {change['from_record']} on with other settings ({told}).")
    for (_, benchmark), measured in grouped(results, itemgetter("task", "benchmark")).items():
        found += [f"{benchmark}: what these measure does not compare: {each}." for each in instruments(measured)]
    for table in report["tables"]:
        found += _about_table(table)
    for section in report["training"]:
        found += _about_training(report, section)
    for run in report["runs"]:
        found += [f"{run['label']}, seed {run['seed']}: {note}." for note in run["notes"]]
    return found


def _about_critics(report: dict[str, Any], results: list[dict[str, Any]]) -> list[str]:
    trained = {run["critic"] for run in report["runs"]}
    measured = {
        result["settings"]["critic"]
        for result in results
        if "mean_delta" in result["metrics"] and isinstance(result.get("settings", {}).get("critic"), str)
    }
    if trained & measured:
        return ["δ is measured by the critic that trained the policy. Trust the metrics that this critic does not use."]
    if trained and measured:
        return [f"Trained with {', '.join(sorted(trained))}; δ in evaluation is by {', '.join(sorted(measured))}."]
    return []


def foreign_policies(report: dict[str, Any], groups: list[Variant]) -> list[str]:
    """Systems whose responses come from weights that none of the report's runs began with or wrote."""
    if not groups:
        return []
    known = set()
    for run in (run for group in groups for run in group.runs):
        weights = [path for depth in ("*", "*/*", "*/*/*") for path in run.path.glob(f"{depth}.safetensors")]
        for folder in {run.model, *(str(path.parent) for path in weights)}:
            try:
                known.add(weights_fingerprint(folder))
            except InputError:  # a start model that is no longer there, a folder that holds no whole model
                continue
    found = []
    for table in report["tables"]:
        for system in table["systems"]:
            for model in system["models"]:
                stamp = re.search(r"@([0-9a-f]{12})\b", model)
                if stamp and stamp[1] not in known:
                    system["foreign"] = True
                    name = model.partition(" on ")[0]
                    found.append(f"{method_name(system['name'])}: written by {name}, no policy of the runs shown here.")
    return found


def _about_table(table: dict[str, Any]) -> list[str]:
    found = []
    sizes = [size for system in table["systems"] for size in system["prompts"].values()]
    if min(sizes) < FEW_PROMPTS:
        found.append(f"{table['task']}: {min(sizes)} evaluation prompts. Small differences cannot be detected.")
    baseline = table["systems"][0]
    for system in table["systems"][1:]:
        for benchmark, shared in system["shared"].items():
            first, second = baseline["prompts"][benchmark], system["prompts"][benchmark]
            if not first == second == shared:
                names = f"{method_name(baseline['name'])} and {method_name(system['name'])}"
                found.append(f"{benchmark}: {names} answered {first} and {second} prompts, {shared} in common.")
    changes = [cell["change"] for cells in table["cells"].values() for cell in cells.values() if "change" in cell]
    compared = sum(change["verdict"] != "same" for change in changes)
    if compared > 5:
        found.append(f"{table['task']}: {compared} differences, without correction for multiple tests.")
    return found


def _about_training(report: dict[str, Any], section: dict[str, Any]) -> list[str]:
    found = []
    where = f" on {section['task']}" if len(report["training"]) > 1 else ""
    for label in section["variants"]:
        steps = [run["steps"] for run in report["runs"] if (run["label"], run["task"]) == (label, section["task"])]
        least, most = min(steps), max(steps)
        if least != most:
            found.append(f"{label}{where}: seeds ran {least} to {most} steps; curves show those that all have.")
    return found
