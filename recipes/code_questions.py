"""KodCode questions that a program can answer: each says the names and signatures that its tests use.

    python recipes/code_questions.py --data_path runs/kodcode/tested.json --output_dir runs/kodcode/data

The records come from ``rm_data_anno/kodcode/test_case.py``. A question is kept where one of its solutions passes. The
declarations are read from that solution, which stays in the record. ``train.json`` and ``test.json`` share no question,
and none of their questions declare the same names; they may share one of several.
"""

import ast
from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from pathlib import Path

from recipes.splits import rank
from text2grad.configs import parse, setting
from text2grad.errors import InputError, command
from text2grad.records import check_output, load_records, save_json
from text2grad.tasks import Record
from text2grad.tasks.kodcode import KodCode


@dataclass
class QuestionsConfig:
    """What is read, and how many questions are held out."""

    data_path: str = setting(MISSING, "tested KodCode records", "--dataset_path")
    output_dir: str = setting(MISSING, "train.json and test.json go here", "--save_dir")
    test_questions: int = setting(50, "questions to test on", above=0)
    train_questions: int | None = setting(None, "questions to train on, at most", above=0)
    seed: int = setting(42, "decides which question belongs to which part")


def questions(config: QuestionsConfig) -> tuple[list[Record], list[Record]]:
    """Write both parts and return them: to train on, to test on.

    Raises:
        InputError: too few questions are left.
    """
    task, groups, seen = KodCode(), dict[str, list[Record]](), set[str]()
    for record in load_records(config.data_path, task).values():
        question, code = task.prompt(record).strip(), task.code(task.response(record))
        if question in seen or task.known_value(record) != 1:
            continue
        if not (found := declarations(code, str(record.get("test") or ""))):
            continue
        seen.add(question)
        told = "\n\n".join(found.values())
        asked = f"{question}\n\nThe program must define:\n\n```python\n{told}\n```"
        groups.setdefault(" ".join(sorted(found)), []).append({**record, "question": asked})
    test, train = list[Record](), list[Record]()
    for name in sorted(groups, key=lambda name: rank(name, config.seed)):
        (test if len(test) < config.test_questions else train).extend(groups[name])
    if not train:
        raise InputError(
            f"{config.data_path}: {len(test)} questions have a solution that passes, which leaves none to train on; "
            "give more, or fewer --test_questions"
        )
    train = train[: config.train_questions]
    for part, records in (("train", train), ("test", test)):
        path = Path(config.output_dir) / f"{part}.json"
        check_output(path)
        save_json(path, records)
    return train, test


def declarations(code: str, tests: str) -> dict[str, str]:
    """Name -> its heads in ``code``, for what ``tests`` import or name; {} where an imported one is not there."""
    defined = {node.name: node for node in ast.parse(code).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    nodes = list(ast.walk(ast.parse(tests)))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == "solution"]
    imported = {name.name for node in imports for name in node.names} - {"*"}
    if not imported <= set(defined):
        return {}
    own = {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    used = imported | {node.id for node in nodes if isinstance(node, ast.Name)} - own
    return {name: "\n".join(_heads(node)) for name, node in defined.items() if name in used}


def _heads(node: ast.stmt, indent: str = "") -> Iterator[str]:
    """The head of a function; of a class, its own and its methods'."""
    if isinstance(node, ast.FunctionDef):
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        yield f"{indent}def {node.name}({ast.unparse(node.args)}){returns}: ..."
    if isinstance(node, ast.ClassDef):
        yield f"{indent}class {node.name}:"
        for inside in node.body:
            yield from _heads(inside, indent + "    ")


@command
def main() -> None:
    config = parse(QuestionsConfig)
    train, test = questions(config)
    print(f"{len(train)} questions to train on, {len(test)} to test on -> {config.output_dir}")


if __name__ == "__main__":
    main()
