"""Solutions run against their tests: verdict, log, and what a solution cannot fake."""

import json
import select

import pytest

from text2grad.sandbox import Sandbox
from text2grad.sandbox.unit_tests import run_tests, with_log

ADD = "def add(a, b):\n    return a + b\n"
TESTS = """from solution import add

def test_small():
    assert add(1, 2) == 3

def test_zero():
    assert add(0, 0) == 0
"""


def test_a_solution_that_passes(box):
    run = run_tests(ADD, TESTS, box)
    assert run.passed
    assert [(test.name, test.outcome) for test in run.tests] == [("test_small", "passed"), ("test_zero", "passed")]
    assert "2 passed" in run.log["stdout"]
    expected = {"passed": True, "stderr": "", "return_code": 0, "error_type": None, "missing_modules": []}
    assert run.log == {**expected, "stdout": run.log["stdout"]}


class Starved(Sandbox):
    """Looks at the solution only when its tests have ended, as on a machine whose cores are all taken."""

    def _watch(self, process, report, deadline, stop):
        if stop is not None:
            select.select([stop], [], [])
        return super()._watch(process, report, deadline, stop)


def test_a_solution_that_used_up_its_time_is_told_so_late_as_well():
    """Told at once: the critic's test of an endless loop."""
    code = "def add(a, b):\n    while a == 0:\n        b += 1\n    return a + b\n"
    run = run_tests(code, TESTS, Starved(seconds=3), trace=True)
    assert (run.error_type, run.passed, run.complete) == ("TimeoutError", False, False)
    assert [(test.name, test.outcome) for test in run.tests] == [("test_small", "passed"), ("test_zero", "unfinished")]
    assert run.standing[-1] in (2, 3)


def test_a_solution_that_fails(box):
    run = run_tests("def add(a, b):\n    return a - b\n", TESTS, box)
    assert not run.passed
    assert [test.outcome for test in run.tests] == ["failed", "passed"]
    (failure,) = run.failures
    assert (failure.error, failure.frames[-1].in_solution, failure.frames[-1].line) == ("AssertionError", False, 4)
    assert "-1 = add(1, 2)" in failure.message
    assert (run.log["error_type"], run.log["return_code"]) == ("AssertionError", 1)


def test_equal_runs_have_equal_logs(box):
    """A paid request holds the log: an address in it would make every run another request."""
    first, second = (run_tests("class Node: ...\ndef add(a, b): return Node()\n", TESTS, box).log for _ in range(2))
    assert first == second and "Node object" in first["stdout"]


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("def add(a, b):\n    return a.sum\n", ["solution.py:2: in add", "    return a.sum"]),
        ("def add(a, b):\n    return add(b, a)\n", ["solution.py:2: in add", "    return add(b, a)"]),
        ("x = 1\ny = x / 0\n", ["test_solution.py:1: in <module>", "solution.py:2: in <module>", "    y = x / 0"]),
        ("from math import add\n", ["solution.py:1: in <module>", "    from math import add"]),
        ("import re\ndef add(a, b):\n    re.compile('(')\n", ["solution.py:3: in add", "    re.compile('(')"]),
        ("def add(a, b:\n", ["test_solution.py:1: in <module>", "solution.py:1: in <module>", "    def add(a, b:"]),
    ],
)
def test_a_log_shows_lines_of_the_solution_and_its_tests_and_no_path_of_this_machine(box, code, lines):
    log = run_tests(code, TESTS, box).log["stdout"]
    assert "\n".join(["", *lines, ""]) in log
    assert not any(word in log for word in ("/lib", "site-packages", "tests_side", "remotes"))


@pytest.mark.parametrize(
    ("code", "error", "line"),
    [
        ("import json\nimport nowhere_to_be_found\n", "ModuleNotFoundError", 2),
        ("def add(a, b):\n    return c\n", "NameError", 2),
        ("raise ValueError('no')", "ValueError", 1),
    ],
)
def test_errors_say_where(box, code, error, line):
    run = run_tests(code, TESTS, box)
    assert run.error_type == error
    assert run.failures[0].frames[-1].in_solution
    assert run.failures[0].frames[-1].line == line
    assert run.missing_modules == (["nowhere_to_be_found"] if error == "ModuleNotFoundError" else [])


def test_tests_that_do_not_import_and_those_that_import_the_future(box):
    bare = "def test_small():\n    assert add(1, 2) == 3\n    assert math.pi > 3\n"
    assert run_tests("import math\n" + ADD, bare, box).passed
    future = '"""Doc."""\nfrom __future__ import (\n    annotations,\n)\n'
    run = run_tests("import math\n" + ADD, f"{future}{bare}    assert 0\n", box)
    assert (run.error_type, run.failures[0].frames[-1].line) == ("AssertionError", 8)


def test_examples_after_a_solution_leave_a_verdict_undecided_only_if_the_tests_use_them(box):
    code = f"{ADD}\na = add(1, 2)\ntotal = add(a, 4)\n"
    own = "from solution import add\n\ntotal = 3\n\ndef test_it():\n    a = 1\n    assert add(a, 2) == total\n"
    assert run_tests(code, own, box).passed
    run = run_tests(code, own.replace("    a = 1\n", "").replace("== total", "== 5"), box)
    assert run.undecided and run.weaker == ("the tests take 'a' from the solution without asking for it",)


def test_what_a_failing_call_executed(box):
    code = """def sign(x):
    if x > 0:
        word = "plus"
    elif x < 0:
        word = "plus"
    else:
        word = "zero"
    return word
"""
    tests = """from solution import sign

def test_sign():
    assert sign(1) == 'plus'
    assert sign(0) == 'zero'
    assert sign(-1) == 'minus'
"""
    (test,) = run_tests(code, tests, box, trace=True).tests
    assert dict(test.trace.cleared) == {2: 2, 3: 1, 4: 1, 7: 1, 8: 2}
    (call,) = test.trace.calls
    assert (call.function, call.test_line, call.returned) == ("sign", 6, 8)
    assert sorted(call.order, key=call.order.get) == [2, 4, 5, 8]


def test_a_record_gets_its_log(box):
    record = {"question": "Add.", "solution": f"Here:\n```python\n{ADD}```\nDone.", "test": TESTS, "log": ""}
    done = with_log(record, box)
    assert done["log"]["passed"] is True
    assert json.loads(json.dumps(done["log"])) == done["log"]
    assert with_log(done, box) is done
    assert record["log"] == ""
    assert with_log({**record, "test": ""}, box)["log"] == ""


def test_odd_programs_do_not_break_the_runner(box):
    programs = [
        "", "\x00", "# coding: utf-16\nx = 'ü'", "x = '\ud800'", "print('\\ud800')", "\r\n\r\nx = 1\r", "(" * 5000,
        "\ufeffx=1",
    ]  # fmt: skip
    runs = [run_tests(code, TESTS, box) for code in programs]
    assert all(run.error_type and not run.passed for run in runs)


def test_a_solution_may_import_what_it_likes(box):
    """Tests that count on its imports get modules of the standard library and numpy, under their own names."""
    program = (
        "import asyncio, csv, logging, uuid, xml.dom.minidom, datetime as dt\n"
        "import concurrent.futures as futures\nimport this as that\nimport numpy as math\n"
        "async def one(): return 1\n"
        "def add(a, b): return a + b * asyncio.run(one())\n"
    )
    tests = "from solution import add\ndef test_a():\n    assert add(1, 2) == 3\n    assert NAME.__name__ == 'MODULE'\n"

    def judged(name: str, module: str):
        return run_tests(program, tests.replace("NAME", name).replace("MODULE", module), box)

    assert judged("csv", "csv").passed
    for name, module in (("dt", "datetime"), ("math", "numpy")):
        assert judged(name, module).undecided
    assert judged("futures", "concurrent.futures").error_type == "NameError"


def test_counters_and_what_numpy_makes_cross_as_they_are(box):
    code = (
        "import numpy as np\nfrom collections import Counter\n"
        "def count(text): return Counter(text)\ndef word(): return np.array(['ab'])[0]\n"
        "def rows():\n    made = np.empty(2, dtype=object)\n    made[0], made[1] = [1, 2], [3, 4]\n    return made\n"
        "def order(given):\n    given.sort()\n    return given\n"
        "def table(): return np.array([(1, 'a')], dtype=[('x', int), ('y', 'U1')])\n"
    )
    tests = """import numpy as np
from solution import count, order, rows, table, word

def test_values():
    assert word().upper() == "AB" and list(rows()) == [[1, 2], [3, 4]] and count("aab") == {"a": 2, "b": 1}
    assert table()["x"].tolist() == [1]

def test_changed_in_place():
    for given in (np.array([3.5, 1, 2]), np.array(["c", "a"], dtype=object)):
        known = sorted(given)
        assert order(given) is given and list(given) == known
    assert order(given)[0] == "a" and np.float64(2) == order(np.array([[2.0, 1]]))[0, 1]
"""
    assert run_tests(code, tests, box).passed


def test_objects_of_the_tests_stay_themselves_and_compare_as_their_class_does(box):
    code = """import copy

def cyclic(node):
    seen = set()
    while node and node not in seen:
        seen.add(node)
        node._seen, node = len(seen), node.next
    return bool(node) and node._seen == 1

def most(items): return max(items), f"{items[0]} of {items}", callable(items[0])
def counts(items): return [sum(item == other for other in items) for item in {item: 0 for item in items}]
def renamed(item):
    item = copy.deepcopy(item)
    item.next = "other"
    del item.last
    return item
"""
    tests = """from dataclasses import dataclass
from solution import counts, cyclic, most, renamed

class Node:
    def __init__(self, next=None): self.next, self.last = next, self
    def __lt__(self, other): return self.next < other.next
    def __repr__(self): return f"N{self.next}"

@dataclass(frozen=True)
class Point:
    x: int

def test_it():
    ring, numbers = Node(), [Node(2), Node(5), Node(3)]
    ring.next = Node(ring)
    assert cyclic(ring) and not cyclic(Node(Node())) and not hasattr(ring, "_seen")
    assert most(numbers) == (numbers[1], "N2 of [N2, N5, N3]", False) and most(numbers)[0] is numbers[1]
    assert counts([Point(1), Point(2), Point(1)]) == [2, 1]
    assert (renamed(numbers[0]).next, numbers[0].next) == ("other", 2)
"""
    assert run_tests(code, tests, box).passed


def test_classes_and_exceptions_of_the_library_cross_as_what_they_are(box):
    code = """import decimal, json
from dataclasses import dataclass
from typing import NamedTuple

class BadConfig(json.JSONDecodeError):
    pass

@dataclass(frozen=True)
class Frozen:
    x: int

class Point(NamedTuple):
    x: int
    y: int = 0
    def norm(self):
        return abs(self.x) + abs(self.y)

class SortedList(list):
    def add(self, item):
        self.append(item)
        self.sort()

def parse(text, own=False):
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise BadConfig("bad", text, 0) if own else error

def number(text):
    return decimal.Decimal(text)

def origin():
    return Point(0)
"""
    tests = """import decimal, json
from dataclasses import FrozenInstanceError
import pytest
from solution import *

@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (ValueError, lambda: parse("[1")), (json.JSONDecodeError, lambda: parse("[1")),
        (BadConfig, lambda: parse("[1", own=True)), (ValueError, lambda: parse("[1", own=True)),
        (decimal.InvalidOperation, lambda: number("x")), (AttributeError, lambda: setattr(Frozen(1), "x", 2)),
        (FrozenInstanceError, lambda: setattr(Frozen(1), "x", 2)),
    ],
)
def test_raised(kind, call):
    with pytest.raises(kind):
        call()

def test_kinds():
    assert Point(1, -2).norm() == 3 and isinstance(origin(), Point) and origin() == (0, 0)
    ordered = SortedList()
    for item in (3, 1):
        ordered.add(item)
    assert ordered == [1, 3] and isinstance(ordered, list)
"""
    run = run_tests(code, tests, box)
    assert run.passed and not run.weaker, run.failures


def test_decorators_keep_names_and_what_the_tests_raise_goes_through_the_solution(box):
    code = """import functools

def retry(times, kinds=(Exception,)):
    \"\"\"Call again.\"\"\"
    def decorate(function):
        @functools.wraps(function)
        def again(*arguments):
            for left in reversed(range(times)):
                try:
                    return function(*arguments)
                except kinds as error:
                    again.seen = type(error).__name__, str(error)
                    if not left: raise
        return again
    return decorate
"""
    tests = """import pytest
from solution import retry

class Refused(ValueError):
    def __init__(self, code):
        super().__init__(f"refused with {code}")
        self.code = code

calls = []

@retry(3, ValueError)
def ask(name):
    "Ask."
    calls.append(name)
    raise Refused(7)

def test_it():
    with pytest.raises(Refused, match="with 7") as caught:
        ask("a")
    assert (caught.value.code, calls, ask.seen) == (7, ["a"] * 3, ("Refused", "refused with 7"))
    assert (ask.__name__, ask.__doc__, retry.__doc__) == ("ask", "Ask.", "Call again.")
"""
    assert run_tests(code, tests, box).passed
    run = run_tests(code, tests.replace("3, ValueError", "3, (Refused,)"), box)
    assert (run.undecided, run.weaker) == (True, ("the tests hand over an exception class of their own",))
    nothing_crosses = """import io, pytest
from solution import retry

def test_it():
    with pytest.raises(TypeError, match="hand over a StringIO"):
        retry(1)(lambda do: io.StringIO())(1)
"""
    assert run_tests(code, nothing_crosses, box).passed


def test_an_error_about_a_file_names_the_file(box):
    tests = """import pytest
from solution import first

def test_it():
    with pytest.raises(FileNotFoundError, match="nowhere.txt") as caught:
        first("nowhere.txt")
    assert (caught.value.filename, len(caught.value.args)) == ("nowhere.txt", 2)
"""
    assert run_tests("def first(path):\n    return open(path).readline()\n", tests, box).passed


def test_tests_that_share_the_process_can_fail_a_program_but_not_pass_it(box):
    code = "def first(path):\n    return open(path).readline()\n"
    tests = """from solution import first

def test_it(tmp_path):
    (tmp_path / "a").write_text("one\\ntwo")
    assert first(tmp_path / "a") == "one\\n"
"""
    run = run_tests(code, tests, box)
    assert (run.passed, run.undecided, run.error_type) == (False, True, "Undecided")
    assert run.weaker == ("the tests use tmp_path",)
    done = with_log({"question": "q", "solution": code, "test": tests, "log": ""}, box)
    assert (done["log"]["passed"], done["log_weaker"]) == (False, ["the tests use tmp_path"])
    again = with_log({**done, "solution": ADD, "test": TESTS, "log": ""}, box)
    assert (again["log"]["passed"], again["log_weaker"]) == (True, [])
    wrong = run_tests(code.replace("readline", "read"), tests, box)
    assert (wrong.passed, wrong.undecided, wrong.error_type) == (False, False, "AssertionError")


@pytest.mark.parametrize(("given", "used"), [("StringIO('one')", "given.read()"), ("Bag()", "len(given)")])
def test_objects_of_the_tests_that_can_do_more_than_cross_are_not_handed_over(box, given, used):
    """Over there a right solution would find them without a length, and nothing in them to read."""
    tests = f"from io import StringIO\nfrom solution import f\ndef test_it(): assert f({given})\n"
    run = run_tests(f"def f(given): return {used}\n", f"{tests}class Bag:\n    __len__ = lambda self: 3\n", box)
    assert (run.undecided, run.weaker) == (True, (f"the tests hand over a {given.partition('(')[0]}",))
