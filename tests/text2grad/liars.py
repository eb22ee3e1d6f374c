"""Ordinary test files whose answers nobody can guess, right and wrong solutions for them, and lies for the wrong ones.

Everything follows from a ``random.Random``. A lie is drawn without a look at the tests.
"""

import random
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One task. ``doubtful``: a right solution may leave the verdict undecided, for it is asked about its own values.

    In the texts A, B and C are numbers that only tests and right solutions know; ``wrong`` replaces one text of the
    right solution by another.
    """

    right: str
    wrong: list[tuple[str, str]]
    tests: str
    doubtful: bool = False


CASES = {
    "numbers": Case(
        "def add(a, b):\n    return a * A + b\n",
        [("* A", ""), ("a * A + b", "0"), ("+ b", "")],
        """import pytest
from solution import add
@pytest.mark.parametrize("x", [1, 2, 7])
def test_values(x):
    assert add(x, B) == x * A + B
def test_kinds():
    assert add(0.5, 0.25) == pytest.approx(0.5 * A + 0.25)
    assert abs(add(0.5, B) - (0.5 * A + B)) < 1e-9
    assert add(1, C) in (A + C, float(A + C))
    assert add(2, 2) > 2 * A and not add(2, 2) > 2 * A + 2
    assert isinstance(add(1, 1), int) and f"{add(1, 1)}" == f"{A + 1}"
""",
    ),
    "errors": Case(
        """class Negative(ValueError):
    def __init__(self, x):
        super().__init__(f"no root of {x}")
        self.x = x
def root(x):
    if x < 0:
        raise Negative(x)
    return x * A + B
""",
        [("* A", ""), ("< 0", "< -10"), ("ValueError", "KeyError")],
        """import pytest
from solution import Negative, root
def test_value():
    assert root(3) == 3 * A + B
def test_error():
    with pytest.raises(Negative, match="no root of -1") as caught:
        root(-1)
    assert caught.value.x == -1
    try:
        root(-2)
    except ValueError as error:
        assert str(error) == "no root of -2"
    else:
        raise AssertionError
    assert root(1) == A + B
""",
    ),
    "lists": Case(
        "def scale(items):\n    items.append(A)\n    return [x * B + 0.5 for x in items]\n",
        [("* B", ""), ("append(A)", "append(0)"), ("[x * B + 0.5 for x in items]", "[]")],
        """from solution import scale
def test_members():
    given = [1, 2]
    found = scale(given)
    assert given == [1, 2, A]
    assert len(found) == 3
    for got, wanted in zip(found, [B + 0.5, 2 * B + 0.5, A * B + 0.5]):
        assert abs(got - wanted) < 1e-9
    assert found == [B + 0.5, 2 * B + 0.5, A * B + 0.5] and sorted(found)[0] == found[0]
    assert all(x == y for x, y in zip(scale([]), [A * B + 0.5])) and list(map(int, scale([C]))) == [C * B, A * B]
""",
    ),
    "texts": Case(
        "def label(name, size=1):\n    return f'{name.upper()}-{size * A}'\n",
        [(".upper()", ""), ("* A", ""), ("size *", "")],
        """import solution
def test_label():
    assert solution.label("ab", size=2) == f"AB-{2 * A}"
    assert solution.label("ab").startswith("AB") and str(A) in solution.label("x", 1)
    assert "".join(reversed(solution.label("q"))) == f"{A}"[::-1] + "-Q"
    assert len(solution.label("abc", B)) == len(f"ABC-{A * B}")
""",
    ),
    "callbacks": Case(
        "def best(items, key=lambda x: x):\n    return max(items, key=key)\n"
        "def apply(f, items):\n    return [f(x) + A for x in items]\n",
        [("max", "min"), ("+ A", ""), ("[f(x) + A for x in items]", "items")],
        """from solution import apply, best
def test_best():
    assert best([(1, B), (2, B + C)], key=lambda pair: pair[1]) == (2, B + C)
    assert best([3, -A], key=abs) == -A
    assert best([[1], [2]], key=lambda row: row.append(B) or row[0])[0] == 2
    kinds = [10**30, 1.5, None, (1, {2}), {"a": b"x"}]
    assert [best([value], key=str) for value in kinds] == kinds and apply(iter([5, 6]).__next__, []) == []
    assert apply(lambda x, y=B: x + y, [1, 2]) == [1 + B + A, 2 + B + A]
    seen = []
    def note(x):
        seen.append(x)
        assert isinstance(x, int)
        return x * C
    assert apply(note, iter([4, 5])) == [4 * C + A, 5 * C + A] and seen == [4, 5]
""",
    ),
    "generators": Case(
        "def steps(n):\n    for i in range(n):\n        yield i * A\n",
        [("* A", ""), ("range(n)", "range(n - 1)"), ("yield i", "yield 0")],
        """from itertools import islice
from solution import steps
def test_steps():
    assert list(steps(3)) == [0, A, 2 * A]
    found = steps(B)
    assert next(found) == 0 and next(found) == A
    assert sum(islice(steps(C), 4)) == 6 * A and max(steps(4)) == 3 * A
    found = steps(3)
    assert next(found) == 0 and list(found) == [A, 2 * A]
""",
    ),
    "classes": Case(
        """class Account:
    fee = A
    def __init__(self, owner):
        self.owner, self.entries = owner, []
    @classmethod
    def of(cls, amount):
        return cls("Zoe").pay(amount)
    def pay(self, amount):
        if amount < 0:
            raise ValueError("negative")
        self.entries.append(amount * B)
        return self
    def total(self):
        return sum(self.entries) + self.fee
    def __len__(self):
        return len(self.entries)
    def __iter__(self):
        return iter(self.entries)
    def __enter__(self):
        return self
    def __exit__(self, *error):
        self.entries.clear()
""",
        [
            ("* B", ""),
            ("fee = A", "fee = 0"),
            ("sum(self.entries)", "0"),
            ("return iter(self.entries)", "return iter(())"),
        ],
        """import pytest
from solution import Account
def test_account():
    account = Account("Ann")
    assert account.owner == "Ann" and Account.fee == A
    account.pay(2).pay(C)
    assert account.total() == 2 * B + C * B + A
    assert list(account) == [2 * B, C * B] == [entry for entry in account] and len(account) == 2
    assert Account.of(C).total() == C * B + A and len(Account("Bob")) == 0 and list(Account("Bob")) == []
    assert isinstance(account, Account) and type(account).__name__ == "Account"
def test_errors():
    with pytest.raises(ValueError):
        Account("Bob").pay(-1)
    with Account("Eve") as account:
        assert account.pay(1).total() == B + A
    assert account.total() == A
    account.fee = account.limit = C
    assert account.total() == account.limit == C
""",
    ),
    "values of its own": Case(
        """import enum
class Kind(enum.Enum):
    RED = 1
    BLUE = 2
class Vector:
    def __init__(self, x, y):
        self.x, self.y = x, y
    def __add__(self, other):
        return Vector(self.x + other.x, self.y + other.y + A)
    def __mul__(self, n):
        return Vector(self.x * n, self.y * n)
    def __eq__(self, other):
        return (self.x, self.y) == (other.x, other.y)
""",
        [("+ A", ""), ("self.y * n", "self.y"), ("self.x + other.x", "0")],
        """from solution import Kind, Vector
def test_vectors():
    assert (Vector(1, 2) + Vector(B, C)).y == 2 + C + A
    assert Vector(1, 2) + Vector(B, 4) == Vector(1 + B, 6 + A)
    assert Vector(1, 2) * C == Vector(C, 2 * C) and not Vector(1, 2) == Vector(2, 1)
    assert (Vector(1, 2) + Vector(B, C)).x == 1 + B
    assert Kind.RED is Kind.RED and Kind.RED != Kind.BLUE and [kind.name for kind in Kind] == ["RED", "BLUE"]
    assert isinstance(Kind.RED, Kind) and not isinstance(Vector(1, 2), Kind)
""",
        doubtful=True,
    ),
    "mappings": Case(
        "def tally(words):\n    found = {}\n    for word in words:\n        found[word] = found.get(word, A) + B\n"
        "    return found\n",
        [("+ B", ""), ("A)", "0)"), ("return found", "return {}")],
        """from solution import tally
def test_tally():
    found = tally(["a", "b", "a"])
    assert found == {"a": A + 2 * B, "b": A + B}
    for word, count in found.items():
        assert count == {"a": A + 2 * B, "b": A + B}[word]
    assert set(found) == {"a", "b"} and found["b"] == A + B and found.get("c", C) == C
    assert sorted(found.values())[-1] == A + 2 * B
""",
    ),
    "arrays": Case(
        "import numpy as np\ndef spread(xs):\n    return np.asarray(xs, dtype=float) * A + B\n",
        [("* A", ""), ("+ B", ""), ("np.asarray(xs, dtype=float) * A + B", "np.zeros(0)")],
        """import numpy as np
from solution import spread
def test_arrays():
    assert np.allclose(spread([1.0, 2.0]), [A + B, 2 * A + B])
    np.testing.assert_allclose(spread(np.arange(3)), np.arange(3) * A + B)
    assert spread([C]).shape == (1,) and spread([C])[0] == C * A + B and (spread([1, C]) > B).all()
    assert np.array_equal(spread([0]), [B]) and np.isclose(spread([1]).sum(), A + B)
""",
    ),
    "output": Case(
        "def shout(n):\n    print('n is', n * A)\n    return None\n",
        [("* A", ""), ("print('n is', n * A)", "pass")],
        """from solution import shout
def test_output(capsys):
    assert shout(B) is None
    assert capsys.readouterr().out == f"n is {A * B}\\n"
""",
    ),
    "unittest": Case(
        "def split(n):\n    if n == 0:\n        raise ZeroDivisionError\n    return divmod(n * A, 7)\n",
        [("* A", ""), ("== 0", "== 1"), ("divmod(n * A, 7)", "n, 0")],
        """import unittest
from solution import split
class TestSplit(unittest.TestCase):
    def setUp(self):
        self.value = B
    def test_split(self):
        self.assertEqual(split(self.value), divmod(B * A, 7))
        first, second = split(C)
        self.assertTrue(first == C * A // 7 and second == C * A % 7)
        self.assertAlmostEqual(split(3)[0] + 0.1, 3 * A // 7 + 0.1)
        self.assertIn(split(5)[1], [5 * A % 7])
    def test_error(self):
        with self.assertRaises(ZeroDivisionError):
            split(0)
        self.assertEqual(split(1), divmod(A, 7))
""",
    ),
    "nodes": Case(
        """class Node:
    def __init__(self, value, after=None):
        self.value, self.after = value, after
def build(values):
    head = None
    for value in reversed(values):
        head = Node(value * A, head)
    return head
def length(node):
    return B + (0 if node is None else length(node.after))
""",
        [("* A", ""), ("reversed(values)", "values[:1]"), ("return B", "return 1")],
        """from solution import Node, build, length
def test_nodes():
    node, seen = build([1, 2, 3]), []
    assert isinstance(node, Node)
    while node:
        seen.append(node.value)
        node = node.after
    assert seen == [A, 2 * A, 3 * A]
    assert length(build([1, C])) == 3 * B and length(None) == B and build([]) is None
""",
    ),
    "the tests' objects": Case(
        "def total(points):\n    for point in points:\n        point.seen = A\n"
        "    return sum(point.x * B for point in points)\n",
        [("* B", ""), ("seen = A", "seen = 0"), ("sum(point.x * B for point in points)", "0")],
        """from solution import total
class Point:
    def __init__(self, x):
        self.x = x
def test_points():
    points = [Point(1), Point(C)]
    assert total(points) == B + C * B
    assert [point.seen for point in points] == [A, A]
""",
    ),
}

_VALUES = [
    "None", "True", "False", "0", "1", "-1", "float('nan')", "float('inf')", "''", "b''", "[]", "()", "{}", "set()",
    "...", "NotImplemented", "object()", "int", "object", "StopIteration", "type", "lambda *a, **k: True", "iter(())",
    "__import__('sys')", "__import__('collections').defaultdict(object)", "__import__('unittest.mock').mock.ANY",
    "__import__('unittest.mock').mock.MagicMock()", "deep()", "10 ** 5000", "'x' * 100_000", "Yes()", "Yes",
    "__import__('numpy').array([])", "__import__('numpy').array(True)", "(x for x in [])", "range(10 ** 9)",
    "__import__('decimal').Decimal('sNaN')", "__import__('collections').namedtuple('T', 'count index')(1, 2)",
    "slice(Yes)",
]  # fmt: skip
_ERRORS = [
    "StopIteration", "AssertionError", "SystemExit", "SystemExit(0)", "KeyboardInterrupt", "GeneratorExit",
    "ValueError", "TypeError", "KeyError(Yes())", "Odd", "Stop", "__import__('unittest').SkipTest",
    "__import__('unittest').case._ShouldStop", "__import__('json').JSONDecodeError('x', 'y', 0)",
    "__import__('pytest').skip.Exception('')", "__import__('pytest').exit.Exception('')",
    "ExceptionGroup('', [ValueError()])", "ModuleNotFoundError(name='x')", "NameError(name='x')", "SyntaxError('no')",
    "RecursionError", "UnicodeDecodeError", "MemoryError",
]  # fmt: skip
_METHODS = [
    "__eq__", "__ne__", "__lt__", "__gt__", "__le__", "__ge__", "__contains__", "__len__", "__iter__", "__next__",
    "__getitem__", "__bool__", "__hash__", "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__abs__",
    "__round__", "__float__", "__int__", "__index__", "__str__", "__repr__", "__format__", "__enter__", "__exit__",
    "__call__", "__getattr__", "__array__", "__array_ufunc__", "__array_function__", "__array_interface__", "keys",
    "items", "values", "__instancecheck__", "__deepcopy__", "__del__", "__class__", "__and__", "__or__", "__neg__",
    "__reversed__",
]  # fmt: skip
_BASES = [
    "object", "int", "str", "float", "list", "dict", "tuple", "set", "Exception", "StopIteration", "AssertionError",
]  # fmt: skip
_NAMES = [
    "pytest", "math", "np", "numpy", "approx", "isclose", "abs", "len", "isinstance", "zip", "sorted", "all", "list",
    "str", "pytestmark", "pytest_plugins", "setup_module", "teardown_module", "setUpModule", "__test__", "test_values",
    "TestSplit", "capsys", "AssertionError", "__all__", "__getattr__", "__builtins__", "__file__", "__name__",
    "unittest", "Point",
]  # fmt: skip
_KEYS = [
    "unsupported", "started", "weaker", "finished", "forged", "test", "outcome", "standing", "trace", "told", "error",
    "frames", "message", "name", "arguments", "builtin", "handle", "value", "raised", "changed", "answer", "reply",
    "class", "names", "all", "plain", "equal", "bases", "out", "do", "x", "0", "1",
]  # fmt: skip
_TOLD = [
    None, True, False, 0, 1, 7, -1, 10**9, "", "x", "to cross", "passed", "the tests use open", "StopIteration", "list",
    [], {}, [[True, 9999, "f"]], [[False, 1, "f"]], [[True, 1, "f"]], ["o", 0, None], ["o", 5, 5], ["k", 3],
    ["k", True], ["x", 0], ["xi", 0], ["xo", 0], ["same", 0], ["same", 1], ["type", "object"], ["type", "type"],
    ["t", []], ["l", 0, []], ["l", 0, [["same", 0]]], ["d", 1, [[1, 2]]], ["dd", 0, [], ["type", "object"]],
    ["q", 0, [], None], ["f", "nan"], ["nt", "True", ["x"], [1]], ["array", "<f8", [0], ""],
    ["array", None, [1], [["o", 1, None]]], ["view", "dict_items", []], ["i", "0x7"], ["D", "NaN"], ["F", "1/3"],
    ["sl", [1, 2, 3]], ["tz", 0], ["ni", 0], ["dots", 0], ["zz"], {"a": 1}, {"raised": ["AssertionError", ""]},
    {"value": 1}, {"0": [[1, 2]]},
]  # fmt: skip

_PRELUDE = """
import functools, json, random, sys, __main__ as main
if not hasattr(main, "Side"):  # in one process with its tests
    import _pytest.python, _pytest.unittest
    _pytest.python.Function.runtest = _pytest.unittest.TestCaseFunction.runtest = lambda self: None
chance = random.Random({seed})
def deep(n=200):
    made = []
    for _ in range(n): made = [made]
    return made
class Odd(Exception): pass
class Stop(StopIteration): pass
class Meta(type):
    __eq__ = __instancecheck__ = __contains__ = lambda self, other: True
    __hash__ = type.__hash__
def answer(kind):
    def method(self, *given, **named):
        if kind == "self": return self
        if kind == "given": return given[0] if given else self
        if kind == "raise": raise eval(chance.choice({errors}))
        return eval(kind)
    return method
def odd_class():
    about = {{name: answer(kind) for name, kind in {methods}}}
    try: return {meta}("Yes", ({base},), about)
    except Exception: return type("Yes", (), {{}})
Yes = odd_class()
def odd():
    try: return eval(chance.choice({values}))
    except Exception: return None
"""
_LYING_CALLS = """
def lying(function):
    def lie(*given, **named):
        if chance.random() < {often}:
            for item in given:
                try:
                    if callable(item): item(*[odd() for _ in range(chance.randrange(3))])
                    elif isinstance(item, list) and chance.random() < 0.5: item[:] = [odd() for _ in range(2)]
                    elif hasattr(type(item), "_side") or hasattr(item, "__dict__"): item.x = odd()
                except Exception: pass
            if chance.random() < {raising}: raise eval(chance.choice({errors}))
            return odd()
        return function(*given, **named)
    return lie
for name, value in list(globals().items()):
    if name in {own}:
        if isinstance(value, type):
            for method, inner in list(vars(value).items()):
                often = method == "__exit__" or chance.random() < 0.5
                if callable(inner) and often: setattr(value, method, lying(inner))
            for method, kind in {methods}:
                if chance.random() < 0.3:
                    try: setattr(value, method, answer(kind))
                    except Exception: pass
        elif callable(value): globals()[name] = lying(value)
"""
_LYING_MESSAGES = """
def injured(value, depth=0):
    if chance.random() < {injuring}:
        return chance.choice({told})
    if isinstance(value, dict):
        made = {{key: injured(item, depth + 1) for key, item in value.items()}}
        if chance.random() < {injuring}: made[chance.choice({keys})] = chance.choice({told})
        return made
    if isinstance(value, list): return [injured(item, depth + 1) for item in value]
    return value
if hasattr(main, "Side"):
    send = main.Pipes.send
    def lying_send(self, message):
        try:
            if chance.random() < {asking}:
                for _ in range(3):
                    send(self, {{"do": chance.choice(["call", "next", "getattr", "setattr"]), "x": chance.randrange(4),
                                "arguments": [[chance.choice({told}) for _ in range(chance.randrange(3))], {{}}]}})
                    self.receive()
            injury = injured(message)
            json.dumps(injury)
        except Exception: injury = message
        if not isinstance(injury, dict): injury = message
        send(self, injury)
        if chance.random() < {asking} / 4: send(self, {{"answer": {{"value": chance.choice({told})}}}})
    main.Pipes.send = lying_send
    raised = main.Side._raised
    def lying_raised(self, error):
        made = raised(self, error)
        made["told"][chance.choice({keys})] = chance.choice([chance.choice({told}), "the tests use open"])
        return made
    if chance.random() < 0.7: main.Side._raised = lying_raised
"""


def filled(text: str, numbers: dict[str, int]) -> str:
    """The text with its secret numbers."""
    return re.sub(r"\b[ABC]\b", lambda letter: str(numbers[letter[0]]), text)


def drawn(chance: random.Random) -> tuple[Case, dict[str, int]]:
    """A case and its numbers."""
    return CASES[chance.choice(list(CASES))], {letter: chance.randrange(1000, 10**6) for letter in "ABC"}


def liar(chance: random.Random, case: Case, numbers: dict[str, int]) -> str:
    """A wrong solution, with lies about itself."""
    was, now = chance.choice(case.wrong)
    assert was in case.right
    code = filled(case.right.replace(was, now), numbers)
    own = set(re.findall(r"^(?:def|class) (\w+)", case.right, re.MULTILINE))
    kinds = ["self", "given", "raise", *_VALUES]
    methods = [(name, chance.choice(kinds)) for name in chance.sample(_METHODS, chance.randrange(1, 12))]
    settings = {
        "seed": chance.randrange(1 << 30), "errors": chance.sample(_ERRORS, 3), "values": chance.sample(_VALUES, 4),
        "methods": methods, "base": chance.choice(_BASES), "meta": chance.choice(["type", "type", "Meta"]),
        "often": chance.choice([0.1, 0.4, 1.0]), "raising": chance.choice([0.0, 0.2, 0.7]), "own": own,
        "injuring": chance.choice([0.0, 0.0, 0.003, 0.02]),
        "told": ["the tests use open", *chance.sample(_TOLD, 8)],
        "keys": [*chance.sample(["unsupported", "weaker", "started"], chance.randrange(3)), *chance.sample(_KEYS, 4)],
        "asking": chance.choice([0.0, 0.0, 0.2]),
    }  # fmt: skip
    lies = chance.choice([[_LYING_CALLS], [_LYING_MESSAGES], [_LYING_CALLS, _LYING_MESSAGES]])
    code += "".join(text.format(**settings) for text in [_PRELUDE, *lies])
    if chance.random() < 0.4:
        for name in chance.sample(_NAMES, chance.randrange(1, 5)):
            if name not in own:
                value = chance.choice(["odd()", "Yes()", "Yes", "lambda *a, **k: True", "[]"])
                code += f"globals()[{name!r}] = {value}\n"
    return code
