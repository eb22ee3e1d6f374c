"""No class name is defined twice in the repository: a name that is searched for has one meaning."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    *("text2grad", "rm_data_anno", "nl_reward_model", "nl_gradient_policy_optimization", "evaluation"),
    *("benchmarks", "quickstart", "recipes"),
)


def class_names(sources: dict[str, str]) -> dict[str, list[str]]:
    """Class name -> the places that define it, classes inside functions and classes included."""
    found = defaultdict(list)
    for path, source in sources.items():
        for node in ast.walk(ast.parse(source, path)):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{path}:{node.lineno}")
    return dict(found)


def test_no_class_name_is_defined_twice():
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    assert len(files) > 150
    found = class_names({str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files})
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_the_check_sees_nested_classes_and_names_both_places():
    source = "class A:\n    class B: ...\n\ndef f():\n    class A: ...\n"
    assert class_names({"x.py": source, "y.py": "class B: ..."}) == {
        "A": ["x.py:1", "x.py:5"],
        "B": ["x.py:2", "y.py:1"],
    }
