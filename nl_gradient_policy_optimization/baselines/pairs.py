"""Make chosen and rejected pairs for DPO and the scalar reward model (appendix N).

    python nl_gradient_policy_optimization/baselines/pairs.py --task slf5k --data_path summaries.json \\
        --output_path pairs.json --critic programmatic

- ultrafeedback: ``is_chosen``, or ``score`` where records have no such mark.
- kodcode: passing against failing programs, as the records' logs say (``rm_data_anno/kodcode/test_case.py`` runs the
  unit tests and writes them).
- slf5k: records that hold a person's comparison (``generated_summary_for_comparison_A`` and ``_B`` with
  ``comparison_preference``) give that pair. Of other records, responses to one post are ranked by a critic's mean δ
  per token, in the tokens of ``--tokenizer``. What ``annotate.py`` has asked that critic is in the record already, and
  not asked again.

Of one prompt's responses the best is paired with the worst, then the second best with the second worst, and so on up
to ``--pairs_per_prompt``; equal ones never are. Killed and run again, no critic is asked twice.
"""

from collections import defaultdict
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, replace
from pathlib import Path

from nl_gradient_policy_optimization.baselines import LAUNCHER
from text2grad.configs import TaskConfig, parse, setting
from text2grad.critics import Critic
from text2grad.critics.asking import feedback_on
from text2grad.critics.settings import PromptedCritic
from text2grad.errors import InputError, command
from text2grad.feedback import Feedback, FeedbackError
from text2grad.journal import Outcome
from text2grad.models import load_tokenizer
from text2grad.records import Records, annotation_of, check_output, generation_of, load_json, load_records, save_json
from text2grad.tasks import Record, Task, get_task
from text2grad.tasks.commands import quoted, say_next
from text2grad.token_rewards import scheme_of, token_rewards

_SUMMARIES = ("generated_summary_for_comparison_A", "generated_summary_for_comparison_B")


@dataclass(frozen=True)
class Pair:
    """Two responses to one prompt. ``source`` says who prefers the chosen one, the values by how much."""

    id: str
    prompt: str
    chosen: str
    rejected: str
    chosen_value: float
    rejected_value: float
    source: str


@dataclass
class PairsConfig(PromptedCritic, TaskConfig):
    """What is compared, and where the pairs go."""

    data_path: str = setting(
        MISSING, "the task's records, several responses to a prompt", "--dataset_path", "--input_file", "--responses"
    )
    output_path: str = setting(MISSING, "where the pairs go (JSON)", "--output_file", "--output")
    critic: str = setting("programmatic", "slf5k: who ranks (as in training's --critic)", "--annotator")
    tokenizer: str = setting("smollm2", "slf5k: in whose tokens δ is averaged")
    pairs_per_prompt: int = setting(1, "pairs of one prompt at most", at_least=1)
    batch_size: int = setting(8, "responses that the critic gets together")


def make_pairs(config: PairsConfig) -> list[Pair]:
    """Compare, write ``config.output_path``, and return what was written."""
    task = get_task(config.task)
    check_output(config.output_path)
    records = load_records(config.data_path, task, responses=None)
    people = [pair for key in records if (pair := by_person(key, records, task)) is not None]
    compared = [*{(each.prompt, each.chosen, each.rejected): each for each in people}.values()]  # of several samples
    rest = records.like({key: record for key, record in records.items() if not _is_comparison(record)})
    for key, record in rest.items():
        if task.response_if_any(record) is None:
            raise InputError(f"{config.data_path}: record {key!r} has neither a response nor a person's comparison")
    values, source = values_of(rest, task, config) if rest else ({}, "")
    pairs = compared + pair_up(rest, values, task, source, config)
    if not pairs:
        raise InputError(
            f"{config.data_path}: no prompt has a better and a worse response; give more responses to each"
        )
    save_json(config.output_path, [asdict(pair) for pair in pairs])
    prompts = len({task.prompt(record) for record in records.values()})
    print(f"{len(pairs)} pairs from {len(records)} responses to {prompts} prompts -> {config.output_path}")
    following = quoted(config.task, "--data_path", config.output_path)
    say_next(f"{LAUNCHER} dpo {following} --model SFT_RUN --output_dir RUN")
    return pairs


def by_person(key: str, records: Records, task: Task) -> Pair | None:
    """The pair of a record that holds a person's comparison of two summaries."""
    record = records[key]
    if not _is_comparison(record):
        return None
    told = record["comparison_preference"]
    preferred = told.strip()[-1:].upper()
    if preferred not in ("A", "B"):
        raise InputError(
            f"{records.path}: record {key!r}: comparison_preference is {told!r}, not A or B; correct or remove it"
        )
    first, second = (record[name] for name in (_SUMMARIES if preferred == "A" else _SUMMARIES[::-1]))
    differ = first != second and first.strip() and second.strip()
    return Pair(key, task.prompt(record), first, second, 1.0, 0.0, "person") if differ else None


def _is_comparison(record: Record) -> bool:
    return all(isinstance(record.get(name), str) for name in (*_SUMMARIES, "comparison_preference"))


def values_of(records: Records, task: Task, config: PairsConfig) -> tuple[dict[str, float], str]:
    """The value of each response, and who says so; responses without a verdict are left out, and counted."""
    if not task.known_value_from:
        outcome, source = _ranked(records, task, config), f"mean δ of {config.critic}"
    else:
        known = {key: None if task.undecided(each) else task.known_value(each) for key, each in records.items()}
        lacks = f"the record has no {task.known_value_from}"
        if task.has_unit_tests:
            lacks = "no log says whether its unit tests passed; rm_data_anno/kodcode/test_case.py runs them"
        missing = {key: lacks for key, value in known.items() if value is None}
        outcome = Outcome({key: value for key, value in known.items() if value is not None}, missing)
        source = "unit tests" if task.has_unit_tests else "dataset"
    for key, reason in list(outcome.failures.items())[:5]:
        print(f"no verdict on {key}: {reason}")
    if outcome.failures:
        print(f"{len(outcome.failures)} of {len(records)} responses have no verdict: left out")
    return outcome.results, source


def _ranked(records: Records, task: Task, config: PairsConfig) -> Outcome:
    critic, tokenizer = config.load_critic(task), load_tokenizer(config.tokenizer)
    journal, told = f"{config.output_path}.journal.jsonl", f"{critic.name} ranks"
    said = {key: _said(critic, record, task) for key, record in records.items()}
    rest = records.like({key: records[key] for key, feedback in said.items() if feedback is None})
    outcome = feedback_on(critic, rest, task, journal, batch_size=config.batch_size, description=told)
    said |= {key: task.fields.from_dict(given) for key, given in outcome.results.items()}

    def mean_delta(key: str, feedback: Feedback) -> float:
        ids = tokenizer(task.response(records[key]), add_special_tokens=False)["input_ids"]
        return sum(token_rewards(ids, tokenizer, feedback, task, scheme_of(feedback)).values) / len(ids)

    return replace(outcome, results={key: mean_delta(key, each) for key, each in said.items() if each is not None})


def _said(critic: Critic, record: Record, task: Task) -> Feedback | None:
    """An endpoint's feedback where an annotation holds it; None where the critic is to be asked.

    Others cost nothing, and may have changed since.
    """
    about, variant = annotation_of(record), getattr(critic, "variant", None)
    theirs = variant and (about.get("annotator"), about.get("prompt")) == (critic.name, variant)
    with suppress(FeedbackError):
        return task.feedback(record) if theirs and task.response(record).strip() else None
    return None


def pair_up(records: Records, values: dict[str, float], task: Task, source: str, config: PairsConfig) -> list[Pair]:
    """Best with worst, second best with second worst, …, while their values differ.

    What the length limit cut off is not chosen where a prompt has whole responses: it is learnt with an end token.
    """
    by_prompt: dict[str, dict[str, str]] = defaultdict(dict)
    for key in values:
        text = task.response(records[key])
        if text.strip():  # nothing can be learnt from silence
            by_prompt[task.prompt(records[key])].setdefault(text, key)
    pairs = []
    for prompt, keys in by_prompt.items():
        ranked = sorted(keys.values(), key=lambda key: values[key], reverse=True)
        whole = [key for key in ranked if not cut_off(records[key])]
        ends = zip(whole or ranked, reversed(ranked), strict=False)
        couples = [(best, worst) for best, worst in ends if values[best] > values[worst]]
        for best, worst in couples[: config.pairs_per_prompt]:
            texts = task.response(records[best]), task.response(records[worst])
            pairs.append(Pair(f"{best}|{worst}", prompt, *texts, values[best], values[worst], source))
    return pairs


def cut_off(record: Record) -> bool:
    """Whether the record says that the length limit ended its response (``evaluation/generate.py`` does)."""
    return generation_of(record).get("finished") is False


def load_pairs(path: str | Path) -> dict[str, tuple[str, list[str]]]:
    """``(x, [chosen, rejected])`` by id, of a file that this program wrote, or of any list of such pairs."""
    rows = load_json(path)
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{path}: holds no list of pairs; make one with pairs.py")
    pairs: dict[str, tuple[str, list[str]]] = {}
    for index, row in enumerate(rows):
        given = [row.get(name) for name in ("prompt", "chosen", "rejected")] if isinstance(row, dict) else []
        texts = [text for text in given if isinstance(text, str) and text.strip()]
        if len(texts) != 3:
            raise InputError(f"{path}: pair {index} lacks a text for prompt, chosen or rejected; make it with pairs.py")
        prompt, chosen, rejected = texts
        if chosen == rejected:
            raise InputError(f"{path}: pair {index}: chosen and rejected are the same text; remove it")
        key = str(row.get("id", index))
        if key in pairs:  # a list that was not made here may have a prompt's id on each of its pairs
            key = f"{key}#{index}"
        pairs[key] = prompt, [chosen, rejected]
    return pairs


@command
def main() -> None:
    make_pairs(parse(PairsConfig))


if __name__ == "__main__":
    main()
