"""Solutions that lie about themselves or their messages: they fail, or the verdict is marked as a weaker one."""

import pytest

from text2grad.sandbox.unit_tests import run_tests

LENGTH = "class L:\n  def __len__(self): return 3\n  def __iter__(self): return iter(())\ndef f(x): return L()\n"
PAIRS = "    for a, b in zip(r, [1.5, 2.5, 3.5]):\n        assert abs(a - b) < 1e-9\n"
ENDING = (
    "class Total:\n    def __enter__(self): return self\n    def __exit__(self, *error): return True\n"
    "    def total(self): return 0\n"
)
PIPES = """import gc, json, os
class Yes:
    __eq__ = lambda self, other: True
    __hash__ = None
def pipes():
    return next((item.pipes for item in gc.get_objects() if type(item).__name__ == "Side"), None)
def say(message):
    if (to := pipes()) is not None:
        data = json.dumps(message).replace("@", chr(233) * (15 << 20)).encode()  # é: one byte of JSON becomes three
        view = memoryview(len(data).to_bytes(4, "big") + data)
        while view:
            view = view[os.write(to._outgoing, view):]
        to.receive()
"""
FROM = "from solution import *\nimport pytest\n"

FAILING = {
    "a length, but no members": (
        LENGTH, f"def test_a():\n    r = f(1)\n    assert len(r) == 3\n{PAIRS}", "SolutionError",
    ),
    "no members, but a length": (
        LENGTH, f"def test_a():\n    r = f(1)\n{PAIRS}    assert len(r) == 3\n", "SolutionError",
    ),
    "a context manager that ends a failed assertion": (
        ENDING, "def test_a():\n    with Total() as t:\n        assert t.total() == 1\n", "AssertionError",
    ),
    "a context manager that ends a failure of pytest": (
        ENDING, "def test_a():\n    with Total() as t:\n        if t.total() != 1: pytest.fail('no')\n", "TestFailed",
    ),
    "a tag that reads like a reason for one process": (
        PIPES + 'def f(x):\n    say({"do": "call", "x": 0, "arguments": [[["to cross"]], {}]})\n    return Yes()\n',
        "def test_a():\n    assert f(1) == 2\n", "ForgedReport",
    ),
    "a value too large to hand back": (
        PIPES + 'def f(x): say({"answer": {"changed": {}, "value": "@"}})\ndef g(x): return Yes()\n',
        "def test_a():\n    assert g(f(1)) == 2\n", "ValueError",
    ),
    "an argument too large to be given back": (
        PIPES + 'def f(k):\n    say({"do": "call", "x": 0, "arguments": [["@"], {}]})\n    return Yes()\n',
        "def test_a():\n    assert f(lambda x: x) == 2\n", "ValueError",
    ),
    "an object that answers for numpy": (
        "class Yes:\n  __array_ufunc__ = __array_function__ = lambda *given, **named: True\ndef f(x): return Yes()\n",
        "import numpy as np\ndef test_a():\n    assert np.allclose(f(1), [2.0])\n", "TypeError",
    ),
    "a number that changes between two comparisons": (
        "class F(float):\n  n = 0\n  def __float__(self):\n    F.n += 1\n    return 9. * (-1) ** F.n\n"
        "def f(x): return F(0)\n",
        "def test_a():\n    assert 3 < f(1) < 4\n", "AssertionError",
    ),
    "a callback made to hand over what does not cross": (
        "from collections import defaultdict\ndef f(key):\n  try: key(defaultdict(object))\n  except Exception: pass\n",
        "def test_a():\n    assert f(lambda pair: pair[0]) == 1\n", "AssertionError",
    ),
    "a list filled too deeply to be handed over again": (
        "def f(x):\n  while x: x = x[0]\n  for _ in range(60):\n    x.append([])\n    x = x[0]\n",
        "def test_a():\n    x = []\n    for _ in range(5): assert f(x) is None\n", "ValueError",
    ),
    "an exception with a field more": (
        "import __main__ as main\nraised = main.Side._raised\ndef more(self, error):\n  answer = raised(self, error)\n"
        '  answer["told"] |= {"unsupported": "the tests use open", "started": "x", "weaker": "y", "test": "z"}\n'
        "  return answer\nmain.Side._raised = more\ndef f(x): raise KeyError\n",
        "def test_a():\n    assert f(1) == 1\n", "KeyError",
    ),
    "a class that is its own base": (
        PIPES + 'def f(x):\n    say({"answer": {"changed": {}, "value": ["o", 77, 78]}})\n    while True:\n'
        '        say({"answer": {"class": {"name": "T", "bases": [78], "plain": None, "equal": True}}})\n',
        "def test_a():\n    assert f(1) == 2\n", "ForgedReport",
    ),
}  # fmt: skip


MARKED = {
    "numpy's name for something else": (
        "class np:\n  def allclose(*given): return True\ndef f(x): return 0\n",
        "def test_a():\n    assert np.allclose(f([1.0]), [2.0])\n",
    ),
    "a context manager that ends an error of the tests": (
        ENDING, "def test_a():\n    with Total() as t:\n        assert t.total()['x'] == 1\n",
    ),
    "a context manager that ends an error of the solution's own": (
        ENDING.replace("return 0", "raise ValueError"),
        "def test_a():\n    with Total() as t:\n        assert t.total() == 1\n",
    ),
    "a callback's assertion that the solution catches": (
        "def each(check):\n  try: check(0)\n  except AssertionError: pass\n",
        "def test_a():\n    def check(value):\n        assert value == 1\n    each(check)\n",
    ),
    "a function of numpy's under a name of math's": (
        "from numpy import isclose\ndef f(x): return 3.14160\n",
        "def test_a():\n    assert isclose(f(1), 3.14159265)\n",
    ),
    "an object that says yes to what texts are asked": (
        "class A:\n  def __getattr__(self, name): return lambda *given: True\ndef f(x): return A()\n",
        "def test_a():\n    assert f(1).startswith('Hello')\n",
    ),
    "an object that hands back the set that is expected": (
        "class A:\n  def union(self, other): return other\ndef f(x): return A()\n",
        "def test_a():\n    assert f(1).union({4}) == {4}\n",
    ),
    "an object of a library's that cannot cross": (
        "from pathlib import PurePath\ndef f(x): return PurePath('a')\n",
        "def test_a():\n    from pathlib import PurePath\n    assert f(1) == PurePath('a')\n",
    ),
    "items that are not those of its keys": (
        "class D(dict):\n  def items(self): return []\ndef f(x): return D(a=0)\n",
        "def test_a():\n    r = f(1)\n    assert set(r) == {'a'}\n    for _, v in r.items():\n        assert v == 1\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*FAILING, *MARKED])
def test_a_lie_fails_and_what_a_solution_may_say_of_itself_leaves_the_verdict_undecided(box, name):
    code, tests, *error = (FAILING | MARKED)[name]
    run = run_tests(code, FROM + tests, box)
    assert not run.passed and run.undecided == (name in MARKED)
    if error:
        assert (run.weaker, [run.error_type]) == ((), error)
