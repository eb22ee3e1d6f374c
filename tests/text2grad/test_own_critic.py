"""A critic of one's own: any function of (prompt, response), by its place; and what is said of a spec that is none."""

from functools import partial

import pytest

from rm_data_anno.annotate import AnnotateConfig, annotate
from text2grad.critics import as_critic, load_critic, version_of
from text2grad.critics.programs.slf5k.critic import SummaryCritic
from text2grad.errors import InputError
from text2grad.feedback import Feedback, FeedbackError
from text2grad.records import load_json, save_json
from text2grad.sandbox import Sandbox

FUNCTIONS = """
from text2grad.feedback import Feedback, FeedbackError

def item(prompt, response):
    if not response:
        raise FeedbackError("nothing to judge")
    return Feedback(f"on {prompt}", good=[response])

def with_record(prompt, response, record=None):
    return Feedback(record["note"])

def batch(prompts, responses):
    return [Feedback(f"{len(prompts)} together") for _ in responses]

def batch_with_records(prompts, responses, records):
    return [Feedback(record.get("note", "none")) for record in records]

class Counting:
    def __init__(self, calls=0):
        self.calls = calls

    def __call__(self, prompt, response):
        self.calls += 1
        return Feedback(str(self.calls))
"""


@pytest.fixture
def spec(tmp_path):
    file = tmp_path / "functions.py"
    file.write_text(FUNCTIONS)
    return lambda name: f"{file}:{name}"


def critiques(critic, records=None) -> list[str]:
    replies = critic(["p", "q"], ["yes", "no"], records)
    return [reply.critique for reply in replies]


def test_functions_are_called_by_their_parameters_names(spec):
    records = [{"note": "first"}, {"note": "second"}]
    assert critiques(load_critic(spec("item"), "plain"), records) == ["on p", "on q"]
    assert critiques(load_critic(spec("with_record"), "plain"), records) == ["first", "second"]
    assert critiques(load_critic(spec("batch"), "plain"), records) == ["2 together", "2 together"]
    assert critiques(load_critic(spec("batch_with_records"), "plain"), records) == ["first", "second"]
    assert critiques(load_critic(spec("batch_with_records"), "plain")) == ["none", "none"]
    assert critiques(load_critic(spec("Counting"), "plain")) == ["1", "2"]
    assert critiques(load_critic(spec("Counting"), "plain", calls=4)) == ["5", "6"]
    with pytest.raises(InputError, match=r"functions.py:item: takes no options \(calls\); give a class"):
        load_critic(spec("item"), "plain", calls=4)


def test_the_spec_is_the_name(spec, tmp_path, monkeypatch):
    assert load_critic(spec("item"), "plain").name == spec("item")
    monkeypatch.chdir(tmp_path)
    assert load_critic("functions.py:item", "plain").name == "functions.py:item"
    assert load_critic("functions:item", "plain").name == "functions:item"


def test_one_response_that_fails_fails_alone(spec):
    replies = load_critic(spec("item"), "plain")(["p", "q"], ["", "no"])
    assert isinstance(replies[0], FeedbackError) and str(replies[0]) == "nothing to judge"
    assert replies[1] == Feedback("on q", good=["no"])


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def f(prompts, responses): return []", "f: returned 0 items for 2 responses"),
        ("def f(prompt, response): return 'fine'", r"f: returned str; return .*Feedback\(critique, good, poor\)"),
        ("def f(x, y): return Feedback('c')", r"f: takes \(x, y\); a critic takes \(prompt, response\)"),
        ("f = 3", "f: is int, which cannot be called"),
        ("", "defines no f"),
        (
            "def f(prompt, response): return Feedback({}['z'])",
            r"f: KeyError in line 2: 'z' \(on the response 'yes'\); c",
        ),
        ("def f(prompt, response): raise SystemExit(0)", "f: SystemExit in line 2: 0"),
        ("def f(prompt, response): return Feedback('c', good=[1])", "f: .*'good' is not a list"),
        ("def f(prompt, response): return Feedback(' ')", "f: .*'critique' .* is not a text but ' '"),
        ("def f(prompt, response): return Feedback(None)", "f: .*'critique' .* is not a text but None"),
        (
            "import numpy\ndef f(prompt, response): return Feedback('c', scores=[('a', numpy.float32(1))])",
            "f: .*scores",  # which no file can store
        ),
        ("def f(prompt, response): return Feedback('c', score=1.5)", "f: .*'score' .*1.5"),
        ("class f:\n    def __init__(self, path): pass", "f: cannot be made: TypeError: .*'path'; correct it"),
        ("class f:\n    def __init__(self): {}['z']", "f: cannot be made: KeyError in line 3: 'z'; correct it"),
    ],
)
def test_what_is_no_critic_is_named(tmp_path, code, message):
    file = tmp_path / "wrong.py"
    file.write_text(f"from text2grad.feedback import Feedback\n{code}\n")
    with pytest.raises(InputError, match=message):
        load_critic(f"{file}:f", "plain")(["p", "q"], ["yes", "no"])


def test_a_misspelt_spec_lists_the_forms():
    for wrong, task, message in (
        ("programatic", "slf5k", "no critic 'programatic'; give programmatic, .*openai:MODEL.*file.py:FUNCTION"),
        ("no_such_module:f", "slf5k", "no module no_such_module"),
        ("programmatic", "plain", "plain has no programmatic critic"),
    ):
        with pytest.raises(InputError, match=message):
            load_critic(wrong, task)


def test_critics_from_python():
    def fruit(prompt, response):
        return Feedback("c")

    assert as_critic(fruit).name.endswith("fruit") and as_critic(partial(fruit)).name == "functools:partial"
    fruit.name = "fruit"
    assert as_critic(fruit).name == "fruit" and as_critic(fruit)(["p", "q"], ["a", "b"]) == [Feedback("c")] * 2

    class Brief:
        name = "brief"

        def __call__(self, prompt, response):
            return Feedback(response)

    assert as_critic(Brief).name == "brief" and version_of(as_critic(Brief))
    assert as_critic(Brief)(["p", "q"], ["a", "b"]) == [Feedback("a"), Feedback("b")]
    ready = SummaryCritic()
    assert as_critic(ready) is ready
    assert load_critic("programmatic", "kodcode", sandbox=(box := Sandbox())).sandbox is box
    assert isinstance(load_critic("programmatic", "slf5k", sandbox=box), SummaryCritic)


def test_a_wrapped_function_is_known_by_the_file_that_names_it(tmp_path, spec):
    file = tmp_path / "functions.py"
    file.write_text(f"{file.read_text()}\nimport functools\npart = functools.partial(item)\n")
    versions = [version_of(load_critic(spec(name), "plain")) for name in ("part", "item")]
    assert versions[0] == versions[1] != {}


def test_a_journal_knows_an_edited_critic(tmp_path, spec):
    """Feedback of the old function and of the new one never end in one file, in whatever encoding that is."""
    data, output, file = tmp_path / "in.json", tmp_path / "out.json", tmp_path / "functions.py"
    file.write_text(f"# coding: latin-1 (é)\n{file.read_text()}", encoding="latin-1")
    former = {"missing": ["x"], "verdict": -0.9}  # of other feedback
    older = {**former, "good_spans": [], "poor_spans": []}
    save_json(data, [{"prompt": "p", "response": "yes"}, {"prompt": "q", "response": "no", **older}])
    config = AnnotateConfig(data_path=str(data), critic=spec("item"), output_path=str(output))
    annotate("plain", config)
    assert [row["textual_feedback"] for row in load_json(output)] == ["on p", "on q"]
    assert not any(former.keys() & row.keys() for row in load_json(output))
    annotate("plain", config)  # nothing to do
    file.write_bytes(file.read_bytes().replace(b"on {prompt}", b"about {prompt}"))
    with pytest.raises(InputError, match=r"begun with other settings \(critic_version.*--allow_changed true to keep"):
        annotate("plain", config)


def test_an_error_on_a_batch_names_the_function_as_one_on_a_response_does():
    def busy(prompts, responses):
        raise FeedbackError("busy") if responses[0] == "a" else ValueError("seven")

    critic = as_critic(busy)
    assert [str(each) for each in critic(["p", "q"], ["a", "b"])] == ["busy", "busy"]
    with pytest.raises(InputError, match=r"busy: .*seven.*on the response 'b'"):
        critic(["q"], ["b"])


def test_half_a_surrogate_pair_fails_its_response_alone_and_blank_quotes_are_none():
    critic = as_critic(lambda prompt, response: Feedback("c", ["", response], [" "], missing=["\n"]), "own")
    half, fine = critic(["p", "q"], ["\ud83d", "b"])
    assert isinstance(half, FeedbackError) and "surrogate" in str(half) and fine == Feedback("c", ["b"])
