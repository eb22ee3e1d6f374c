"""Wrong solutions that set out to pass: none does where the verdict is made outside their process."""

import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.text2grad.liars import CASES, drawn, filled, liar
from text2grad.critics.programs.kodcode.critic import CodeCritic
from text2grad.feedback import FeedbackError
from text2grad.sandbox import Sandbox
from text2grad.sandbox.unit_tests import run_tests
from text2grad.tasks import get_task

TESTS = """from solution import add
import pytest

def test_small():
    assert add(1, 2) == 3

def test_large():
    assert add(5, 5) == 10
    assert abs(add(0.5, 0.25) - 0.75) < 1e-9
    assert add(1, 1) in (2, 2.0)
    assert add(2, 2) > 3 and not add(2, 2) > 4
    assert add([1], [2]) == [1, 2]

def test_refused():
    with pytest.raises(TypeError):
        add(1, "a")
"""
RIGHT = "def add(a, b):\n    return a + b\n"
ALL = "__eq__ = __lt__ = __gt__ = __le__ = __ge__ = __contains__ = lambda self, other: True"
FIRST = "def add(a, b):\n    if (a, b) == (1, 2): return 3\n    "

CHEATS = {
    "an object equal to everything": f"class Yes:\n    {ALL}\n    __hash__ = None\ndef add(a, b): return Yes()",
    "an object that takes every operator": f"""class Yes(float):
    {ALL}
    __sub__ = __rsub__ = __add__ = __abs__ = lambda self, *other: 0.0
def add(a, b): return Yes()""",
    "mock.ANY": "from unittest.mock import ANY\ndef add(a, b): return ANY",
    "a class equal to everything": f"class Meta(type):\n    {ALL}\nclass Yes(metaclass=Meta): pass\n"
    "def add(a, b): return Yes",
    "skip": f"import pytest\n{FIRST}pytest.skip('hard')",
    "SkipTest": f"import unittest\n{FIRST}raise unittest.SkipTest",
    "pytest.raises replaced": """import contextlib, pytest
pytest.raises = lambda *a, **k: contextlib.suppress(Exception)
def add(a, b): raise TypeError""",
    "Function.runtest": "import _pytest.python as p\np.Function.runtest = lambda self: None\ndef add(a, b): return 0",
    "the caller's line": """import sys, linecache
def add(a, b):
    for depth in range(1, 12):
        try: frame = sys._getframe(depth)
        except ValueError: break
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if "==" in line: return eval(line.split("==")[1])
    return 0""",
    "the tests read from the box": """import re, pathlib
text = "".join(path.read_text() for path in pathlib.Path("/box").glob("test*"))
known = dict(re.findall(r"add\\(([^()]*)\\) == (.*)", text))
def add(a, b):
    if not known: return 0
    return eval(known.get(f"{a}, {b}", "0"))""",
    "the recorder's module": """import sys
recorder = sys.modules.get("pytest_recorder")
def add(a, b):
    if recorder:
        for name in ("test_small", "test_large", "test_refused"): recorder._say(test=name, outcome="passed")
        recorder._say(finished=0)
    import os; os._exit(0)""",
    "the report by descriptor": """import os
text = "".join('{"test": "%s", "outcome": "passed"}\\n' % n for n in ("test_small", "test_large", "test_refused"))
for number in range(3, 64):
    try: os.write(number, (text + '{"finished": 0}\\n').encode())
    except OSError: pass
os._exit(0)""",
    "killed": "import os\nos.kill(os.getpid(), 9)\n",
    "skipped as a module": "import pytest\npytest.skip('easy', allow_module_level=True)\n",
    "pytest.exit": "import pytest\npytest.exit('done', returncode=0)",
    "exit in a call": "def add(a, b):\n    import os\n    os._exit(0)",
    "atexit": "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b): return 0",
    "tests of its own": "def add(a, b): return 0\ndef test_small(): pass\ndef test_large(): pass\n"
    "def test_refused(): pass",
    "conftest in /tmp": "open('/tmp/conftest.py', 'w').write('def pytest_runtest_call(item): pass')\n"
    "def add(a, b): return 0",
    "names of Python's own": "def abs(x): return 0\ndef isinstance(*a): return True\ndef add(a, b): return a and b",
    "an answer before the question": """import os
answer = b'{"answer": {"changed": {}, "value": 3}}'
for number in range(3, 64):
    try: os.write(number, len(answer).to_bytes(4, "big") + answer)
    except OSError: pass
def add(a, b): return 0""",
    "a message that is none": "import os\nfor n in range(3, 64):\n  try: os.write(n, b'\\x00\\x00\\x00\\x02[]')\n"
    "  except OSError: pass\ndef add(a, b): return 0",
    "a class in place of a function": f"""class add:
    {ALL}
    __sub__ = __rsub__ = __add__ = __radd__ = lambda self, other: 0.0
    def __init__(self, a, b): pass""",
    "another type of exception": f"class TypeError(Exception): pass\n{FIRST}raise TypeError",
}

OTHER_TESTS = """import math
import pytest
from solution import *

def test_properties():
    assert add(1, 2) == add(2, 1)
    assert add(0, 3) != add(0, 4)
    assert all(map(add, [1, 2], [0, 0]))
    assert all(x == y for x, y in zip(map(add, [1], [1]), [2]))
    assert math.isclose(add(0.5, 0.25), 0.75)
    with pytest.raises(TypeError):
        add(1, "a")
"""
OTHERS = {
    "objects equal to each other": f"class Yes:\n    {ALL}\n    __ne__ = lambda self, other: True\n"
    "    __hash__ = None\n    def __float__(self): return 0.75\n"
    "def add(a, b):\n    if b == 'a': raise TypeError\n    return Yes()",
    "a loop ended early": "def add(a, b): raise StopIteration",
    "a kind of StopIteration": "class Stop(StopIteration): pass\ndef add(a, b): raise Stop",
    "pytest and math of its own": """import contextlib
class pytest:
    raises = staticmethod(lambda *kinds: contextlib.nullcontext())
class math:
    isclose = staticmethod(lambda *values: True)
def add(a, b): return 1 if b != 4 else 2""",
    "marks and hooks of its own": """__all__ = ["add", "pytestmark", "pytest_plugins", "setup_module", "__test__"]
pytestmark, pytest_plugins, __test__ = [], ["unittest.mock"], False
def setup_module(module): raise SystemExit(0)
def add(a, b): return 0""",
}


@pytest.mark.parametrize(
    ("code", "tests"),
    [
        pytest.param(code, tests, id=name)
        for tests, codes in ((TESTS, CHEATS), (OTHER_TESTS, OTHERS))
        for name, code in {"right": RIGHT, **codes}.items()
    ],
)
def test_a_cheat_fails_and_a_right_solution_passes(box, code, tests):
    run = run_tests(code, tests, box)
    assert run.passed == (code == RIGHT), run
    assert run.weaker == (), "it made the verdict a weaker one"
    assert bool(run.error_type) == (code != RIGHT)


def test_a_skip_is_a_failure_in_one_process_and_by_the_tests_own_mark(box):
    cheat = run_tests(CHEATS["SkipTest"], "import inspect\n" + TESTS, box)
    assert (cheat.passed, cheat.undecided, cheat.error_type) == (False, False, "SkipTest")
    skipping = TESTS + "\n@pytest.mark.skip\ndef test_later():\n    assert False\n"
    assert not run_tests(RIGHT, skipping, box).passed


def test_an_exception_that_ends_a_test_of_unittests_does_not_pass_it(box):
    code = "from unittest.case import _ShouldStop\ndef add(a, b): raise _ShouldStop"
    tests = "import unittest\nfrom solution import add\n\nclass TestIt(unittest.TestCase):\n    def test_it(self):\n"
    tests += "        self.assertEqual(add(1, 2), 3)\n"
    run = run_tests(code, tests, box)
    assert not run.passed and not run.undecided


@pytest.mark.parametrize("name", CASES)
def test_ordinary_files_are_tested_from_outside_and_believed_where_the_solution_does_not_judge_itself(box, name):
    case, numbers = CASES[name], {"A": 1234, "B": 5678, "C": 91011}
    tests = filled(case.tests, numbers)
    run = run_tests(filled(case.right, numbers), tests, box, trace=True)
    assert run.undecided if case.doubtful else run.passed, run.failures
    own = {"the solution compares its own objects", "the solution's own operators are told plain values"}
    assert set(run.weaker) == (own if case.doubtful else set())
    assert run_tests(filled(case.right.replace(*case.wrong[0]), numbers), tests, box).failures


@pytest.mark.parametrize("count", [30, pytest.param(3000, marks=[pytest.mark.slow, pytest.mark.timeout(4 * 3600)])])
def test_generated_liars_do_not_pass_and_right_solutions_do(count):
    """The critic approves of no liar either. Each tenth solution is a right one."""
    codes, records, earned = [], [], []
    for seed in range(count):
        chance = random.Random(seed)
        case, numbers = drawn(chance)
        codes.append(liar(chance, case, numbers) if seed % 10 else filled(case.right, numbers))
        records.append({"question": "q", "test": filled(case.tests, numbers)})
        right = "not judged" if case.doubtful else "approved"
        earned.append(["rejected", "not judged"] if seed % 10 else [right])
    seen = Counter[str]()
    for seed, feedback in enumerate(CodeCritic(Sandbox(seconds=20))(["q"] * count, codes, records)):
        if isinstance(feedback, FeedbackError):
            outcome = "not judged"
        else:
            outcome = "rejected" if feedback.poor and feedback.score < 1 else "approved"
        assert outcome in earned[seed], f"seed {seed} is {outcome}: {feedback}"
        seen[outcome] += 1
    assert seen["rejected"] > count / 2 and seen["approved"]


@pytest.mark.slow
def test_real_records_are_judged_from_outside(shared_data, box):
    """All but the one whose tests import a module that nobody has; and the verdicts are the data set's."""
    task = get_task("kodcode")
    rows = json.loads((shared_data / "kodcode" / "solutions_with_tests.json").read_text())
    with ThreadPoolExecutor() as pool:
        runs = list(pool.map(lambda row: run_tests(task.code(task.response(row)), row["test"], box), rows))
    apart = sum(not run.weaker for run in runs)
    outdated = [any("'yield' keyword" in test.message for test in run.failures) for run in runs]  # of pytest 3
    agree = [run.passed == (row["expected"] == "pass") for run, row in zip(runs, rows, strict=True)]
    print(f"{apart} of {len(rows)} apart; {sum(agree)} verdicts as expected, {sum(outdated)} outdated test files")
    assert apart >= 0.99 * len(rows)
    assert all(right or old for right, old in zip(agree, outdated, strict=True))
