"""What the figures say, in sentences. Rules write them, so that no sentence claims more than its figures show.

A sentence is a list of texts and of references to figures: ``{"at": path in the report, "style": …, "form": …}``. So
every figure in a sentence is printed from, and can be checked against, the report itself.
"""

from __future__ import annotations

from typing import Any

from evaluation.reporting.wording import method_name, show, show_change, show_interval, show_p, wording

Part = str | dict[str, Any]
Sentence = list[Part]

PRIMARY = ("mean_delta", "rougeL", "win_rate", "pass@1", "accuracy", "acc", "score")
SEPARATOR = " > "
TOLD = ("mean_delta", "poor_tokens", "rougeL", "bertscore", "pass@1", "accuracy", "score", "win_rate", "finished")
"""What the first screen tells, where there are many metrics."""
FEW_PROMPTS = 100


def at(*path: object, style: str = "number", form: str = "value") -> dict[str, Any]:
    """A reference to a figure. ``form``: value, change, interval (of a cell), change_interval (of a change), p."""
    return {"at": SEPARATOR.join(map(str, path)), "style": style, "form": form}


def look_up(report: dict[str, Any], path: str) -> Any:
    """The value at a path such as ``tables > 0 > cells > base``; names may hold the separator themselves."""
    found = _values_at(report, path.split(SEPARATOR))
    if not found:
        raise KeyError(path)
    return found[0]


def _values_at(value: Any, keys: list[str]) -> list[Any]:
    """What the keys lead to, read as names in every way that there is."""
    if not keys:
        return [value]
    if isinstance(value, list):
        return _values_at(value[int(keys[0])], keys[1:])
    if not isinstance(value, dict):
        return []
    ends = range(1, len(keys) + 1)
    names = ((SEPARATOR.join(keys[:end]), keys[end:]) for end in ends)
    return [leaf for name, rest in names if name in value for leaf in _values_at(value[name], rest)]


def printed(report: dict[str, Any], part: Part) -> str:
    """A part of a sentence as text."""
    if isinstance(part, str):
        return part
    value, style = look_up(report, part["at"]), part["style"]
    if part["form"] == "change":
        return show_change(value, style)
    if part["form"] in ("interval", "change_interval"):
        return show_interval(value["low"], value["high"], style, change=part["form"] == "change_interval")
    return show_p(value) if part["form"] == "p" else show(value, style)


def text(report: dict[str, Any], sentence: Sentence) -> str:
    return "".join(printed(report, part) for part in sentence)


def primary(table: dict[str, Any]) -> str | None:
    """The key of the metric that speaks first: one of ``PRIMARY``, else the first for which a direction is better."""
    keys = [metric["key"] for metric in table["metrics"]]
    ranked = [key for name in PRIMARY for key in keys if _name(key) == name]
    directed = [key for key in keys if wording(_name(key)).better]
    return next(iter(ranked + directed), None)


def headline(report: dict[str, Any]) -> Sentence:
    """The one thing that happened, with its figures."""
    for number, table in enumerate(report["tables"]):
        key = primary(table)
        best = _best(table, key) if key else None
        if key and best:
            return _comparison_headline(number, table, key, best)
    for number, section in enumerate(report["training"]):
        for name in ("delta/mean", *section["ends"]):
            if name in section["ends"]:
                label = section["variants"][0]
                ends = ("training", number, "ends", name, label)
                words = wording(name)
                label_text = _in_sentence("Mean δ per token" if name == "delta/mean" else words.label, start=True)
                first, last = (at(*ends, end, style=words.style) for end in ("first", "last"))
                return [label_text, " goes from ", first, " to ", last, " in training"]
    return ["What was measured"]


def _comparison_headline(number: int, table: dict[str, Any], key: str, best: str) -> Sentence:
    words = wording(_name(key))
    before = at("tables", number, "cells", table["baseline"], key, "value", style=words.style)
    after = at("tables", number, "cells", best, key, "value", style=words.style)
    change = table["cells"][best][key].get("change")
    label = _in_sentence(words.label, start=True)
    several = len(table["systems"]) > 2
    if not change or change["verdict"] in ("unclear", "same"):
        tail = [f" under {named(best)}"] if several else []
        return ["No clear change in ", _in_sentence(words.label), ": ", before, " before, ", after, " after", *tail]
    verb = "rises" if change["difference"] > 0 else "falls"
    tail = [f" under {named(best)}"] if several else []
    return [label, f" {verb} from ", before, " to ", after, *tail]


def standfirst(report: dict[str, Any]) -> list[Sentence]:
    """What was run, and what came out, in a sentence each."""
    sentences = [_what_was_run(report, section) for section in report["training"]]
    sentences += [
        line for number, section in enumerate(report["training"]) for line in _audited(report, number, section)
    ]
    for number, table in enumerate(report["tables"]):
        sentences += _what_came_out(number, table)
    if not report["tables"]:
        sentences.append(["No result files were given: all figures below are of responses sampled in training."])
    return sentences


def _what_was_run(report: dict[str, Any], section: dict[str, Any]) -> Sentence:
    runs = [run for run in report["runs"] if run["task"] == section["task"]]
    described = []
    for label in section["variants"]:
        count = sum(run["label"] == label for run in runs)
        described.append(f"{label} ({count} seeds)" if count > 1 else label)
    steps = sorted({run["steps"] for run in runs})
    span = f"{steps[0]}" if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
    models = _listed(dict.fromkeys(_last_part(run["model"]) for run in runs))
    critics = _listed(dict.fromkeys(_critic(run["critic"]) for run in runs))
    responses = sum(run["rollouts"] for run in runs)
    logged = f" ({responses:,} responses)" if responses else ""
    return [
        f"{_listed(described)} trained {models} on {section['task']} for {span} steps{logged}, "
        f"with feedback from {critics}."
    ]


def _audited(report: dict[str, Any], number: int, section: dict[str, Any]) -> list[Sentence]:
    """How far the critic in training is to be trusted, by the one that audited it."""
    told: list[Sentence] = []
    for label in section["audits"]:
        run = next(run for run in report["runs"] if (run["label"], run["task"]) == (label, section["task"]))
        path = ("training", number, "audits", label)
        told.append(
            [
                f"{label}: {_critic(run['config'].get('audit_critic', ''))} audited ",
                at(*path, "responses", style="count"),
                " responses. It gives them a mean δ of ",
                at(*path, "trusted", style="signed"),
                ", the critic in training ",
                at(*path, "own", style="signed"),
                "; of the tokens that both label, ",
                at(*path, "flip_rate", style="share"),
                " have opposite signs.",
            ]
        )
    return told


def _what_came_out(number: int, table: dict[str, Any]) -> list[Sentence]:
    """The best system in full, the others by the first metric: before → after (95 % interval of the difference)."""
    first = primary(table)
    best = _best(table, first) if first else None
    if best is None:
        return []
    cells = table["cells"][best]
    changed = sorted((key for key in cells if "change" in cells[key]), key=lambda key: key != first)
    changed = [key for key in changed if cells[key]["change"]["verdict"] != "same"]
    clear = [key for key in changed if cells[key]["change"]["verdict"] in ("better", "worse")]
    worth = [key for key in clear if key == first or _name(key) in TOLD] or clear
    told: Sentence = []
    for key in worth[:5]:
        told += [", " if told else "", *_before_and_after(number, table, best, key)]
    unclear = [key for key in changed if wording(_name(key)).better and cells[key]["change"]["verdict"] == "unclear"]
    if unclear:
        names = _listed([_in_sentence(wording(_name(key)).label) for key in unclear])
        told += ["; " if told else "", f"no clear difference in {names}"]
    n = max((cells[key]["change"]["n"] for key in changed), default=0)
    answers = max(next(item for item in table["systems"] if item["name"] == best)["answers"].values())
    count = f"On {n:,} prompts" + (f" ({answers:,} responses)" if answers > n else "")
    sentences = [[f"{count}, {named(best)} against {named(table['baseline'])}: ", *told, "."]] if told else []
    for system in (item["name"] for item in table["systems"]):
        if system not in (best, table["baseline"]) and first and "change" in table["cells"][system].get(first, {}):
            sentences.append([f"{named(system, start=True)}: ", *_before_and_after(number, table, system, first), "."])
    note: Sentence = ["In brackets, the 95 % interval of the difference."]
    return [[part for sentence in sentences for part in (*sentence, " ")] + note] if sentences else []


def _before_and_after(number: int, table: dict[str, Any], system: str, key: str) -> Sentence:
    words = wording(_name(key))
    before = at("tables", number, "cells", table["baseline"], key, "value", style=words.style)
    mine = ("tables", number, "cells", system, key)
    after = at(*mine, "value", style=words.style)
    interval = at(*mine, "change", style=words.style, form="change_interval")
    return [f"{_in_sentence(words.label)} ", before, " → ", after, " (", interval, ")"]


def cautions(report: dict[str, Any], results: list[dict[str, Any]]) -> list[Sentence]:
    """What limits these figures; found by rules, not by judgement."""
    found: list[Sentence] = []
    if report["training"] and not report["tables"]:
        found.append(["No figure here is measured on held-out prompts."])
    several = len(report["training"]) > 1
    single = [
        f"{variant['label']} on {variant['task']}" if several else variant["label"]
        for variant in report["variants"]
        if len(variant["seeds"]) == 1
    ]
    if single:
        found.append([f"{_listed(single)}: one seed only. Another seed may give another result."])
    found += _about_results(report, results)
    for number, section in enumerate(report["training"]):
        found += _about_training(report, number, section)
    for run in report["runs"]:
        found += [[f"{run['label']}, seed {run['seed']}: {note}."] for note in run["notes"]]
    return found


def _about_results(report: dict[str, Any], results: list[dict[str, Any]]) -> list[Sentence]:
    found: list[Sentence] = []
    critics = {run["critic"] for run in report["runs"]}
    judges = {(result.get("settings") or {}).get("critic") for result in results}
    if critics & judges and any("mean_delta" in result["metrics"] for result in results):
        found.append(
            ["δ is measured by the critic that trained the policy. Trust the metrics that this critic does not use."]
        )
    elif critics and judges - {None} and any("mean_delta" in result["metrics"] for result in results):
        trained, measured = (_listed(map(_critic, sorted(names - {None}))) for names in (critics, judges))
        found.append([f"The policy learnt from {trained}; δ on the evaluation prompts is measured by {measured}."])
    for result in results:
        for change in result.get("changes") or []:
            told = ", ".join(f"{name} {value}" for name, value in change["settings"].items())
            found.append(
                [
                    f"{result['system']}, {result['benchmark']}: "
                    f"from judgement {change['from_record']} on with other settings ({told})."
                ]
            )
    for number, table in enumerate(report["tables"]):
        sizes = [size for system in table["systems"] for size in system["prompts"].values()]
        if sizes and min(sizes) < FEW_PROMPTS:
            found.append(
                [f"Only {min(sizes)} evaluation prompts ({table['task']}): small differences cannot be detected."]
            )
        for system, cells in table["cells"].items():
            found += _about_copying(number, table, system)
            for key, cell in cells.items():
                if cell.get("change", {}).get("verdict") == "worse":
                    style, path = wording(_name(key)).style, ("tables", number, "cells", system, key, "change")
                    change = at(*path, "difference", style=style, form="change")
                    interval = at(*path, style=style, form="change_interval")
                    found.append(
                        [
                            f"{named(system, start=True)} is worse in {wording(_name(key)).label}: ",
                            change,
                            " (",
                            interval,
                            ").",
                        ]
                    )
        shared = [cell["change"] for cells in table["cells"].values() for cell in cells.values() if "change" in cell]
        shared = [change for change in shared if change["verdict"] != "same"]
        if len(shared) > 5:
            found.append(
                [f"{len(shared)} differences are tested ({table['task']}), without correction for multiple tests."]
            )
    return found


def _about_copying(number: int, table: dict[str, Any], system: str) -> list[Sentence]:
    """Copying is the cheapest way to satisfy a critic that checks facts, and raises overlap metrics too."""
    for name, verdict in (("novelty_3", "lower"), ("novelty_2", "lower"), ("longest_copy", "higher")):
        for key, cell in table["cells"][system].items():
            if _name(key) == name and cell.get("change", {}).get("verdict") == verdict:
                told = _before_and_after(number, table, system, key)
                return [[f"{named(system, start=True)} copies more from its source: ", *told, "."]]
    return []


def _about_training(report: dict[str, Any], number: int, section: dict[str, Any]) -> list[Sentence]:
    found: list[Sentence] = []
    where = f" on {section['task']}" if len(report["training"]) > 1 else ""

    def compare_ends(name: str, alarm, words: str) -> None:
        for label, ends in section["ends"].get(name, {}).items():
            if ends and alarm(ends["first"], ends["last"]):
                path, style = ("training", number, "ends", name, label), wording(name).style
                first, last = at(*path, "first", style=style), at(*path, "last", style=style)
                found.append([f"{label}{where}: {words}, from ", first, " to ", last, "."])

    compare_ends("entropy", lambda first, last: last < 0.5 * first, "entropy fell by more than half")
    compare_ends("length/finished", lambda first, last: last < first - 0.1, "fewer responses are finished")
    compare_ends("spans/found", lambda first, last: last < 0.9, "more than 10 % of the quotes are not found")
    compare_ends("delta/mean", lambda first, last: last <= first, "mean δ did not rise in training")
    for name in (name for name in section["ends"] if name.startswith("kl/") and name != "kl/coef"):
        for label, ends in section["ends"][name].items():
            runs = [run for run in report["runs"] if (run["label"], run["task"]) == (label, section["task"])]
            target = runs[0]["config"].get("kl_target")
            if ends and isinstance(target, int | float) and ends["last"] > 1.2 * target:
                last = at("training", number, "ends", name, label, "last", style=wording(name).style)
                found.append([f"{label}{where}: KL ends at ", last, f", above its target of {show(target)}."])
    for label in section["variants"]:
        runs = [run for run in report["runs"] if (run["label"], run["task"]) == (label, section["task"])]
        steps = sorted(run["steps"] for run in runs)
        if steps[0] != steps[-1]:
            told = f"seeds have run for {steps[0]} to {steps[-1]} steps; curves show the steps that all have"
            found.append([f"{label}{where}: {told}."])
    return found


def _best(table: dict[str, Any], key: str) -> str | None:
    """The system that is best by a metric, the baseline aside."""
    sign = wording(_name(key)).better or 1
    values = {
        system: sign * cells[key]["value"]
        for system, cells in table["cells"].items()
        if system != table["baseline"] and cells.get(key, {}).get("value") is not None
    }
    if not values or table["cells"][table["baseline"]].get(key, {}).get("value") is None:
        return None
    return max(values, key=values.__getitem__)


def _name(key: str) -> str:
    return key.split("/", 1)[1]


def _in_sentence(label: str, start: bool = False) -> str:
    """A metric's label as it is written inside a sentence, or at its start."""
    if start:
        return label[0].upper() + label[1:]
    return label[0].lower() + label[1:] if label[1:2].islower() else label


def named(system: str, start: bool = False) -> str:
    """A system's name as it is written inside a sentence, or at its start."""
    name = "the base model" if system == "base" else method_name(system)
    return name[0].upper() + name[1:] if start else name


def _listed(items) -> str:
    items = list(items)
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _critic(name: str) -> str:
    return "the programmatic critic" if name == "programmatic" else f"the critic {_last_part(name)}"


def _last_part(name: str) -> str:
    return name if name.startswith("http") else name.rstrip("/").rsplit("/", 1)[-1]
