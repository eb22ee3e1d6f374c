"""Tasks: what each attribute decides, how a user's own is found, and the general one for any prompt and response."""

import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from evaluation.results import load_responses
from text2grad.errors import InputError
from text2grad.feedback import FeedbackFields
from text2grad.prompts import find_prompt, load_prompt, prompt_path
from text2grad.records import load_records, save_json
from text2grad.tasks import TASKS, PlainTask, Task, get_task, settings_of_task, task_of

pytestmark = pytest.mark.fast

ONE = "from text2grad.tasks import PlainTask\n\nTASK = PlainTask({name!r})\n"
METHODS = """from text2grad.tasks import Task

class Own(Task):
    prompt = lambda self, record: record.get("letter")
    response = lambda self, record: record["reply"]
    with_response = lambda self, record, response: {**record, "reply": response}
"""


@pytest.fixture(autouse=True)
def own_tasks():
    """Tasks that a test makes known are unknown again after it."""
    with patch.dict(TASKS):
        yield


def test_every_place_of_the_packages_tasks_exists():
    for name in ("slf5k", "kodcode", "ultrafeedback", "plain"):
        task = get_task(name)
        assert {kind for kind in task.places if not task.place(kind).exists()} == set()
        for variant in ("cot", "no_cot", "human_feedback", "dense"):
            offered = ("prompt", "response", "feedback", *task.extra_prompt_fields)
            load_prompt(prompt_path(task, "annotation", variant), offered=offered)
        assert set(task.places) == set(Task.places)
    own = type("Own", (type(get_task("slf5k")),), {"places": {"policy": "mine.txt"}})()
    assert own.place("policy").name == "mine.txt" and own.place("judge") == get_task("slf5k").place("judge")


@pytest.mark.parametrize("name", ["slf5k", "kodcode", "ultrafeedback"])
def test_prompts_are_edited_in_place_at_the_stages(name):
    task = get_task(name)
    at_the_stages = {
        f"rm_data_anno/{name}/prompts/cot.txt": task.place("annotation", "cot"),
        f"nl_reward_model/{name}/prompts/cot.txt": task.place("reward_model", "cot"),
        f"nl_gradient_policy_optimization/{name}/prompts/teacher.txt": task.place("teacher"),
        f"nl_gradient_policy_optimization/baselines/{name}/reflect.txt": task.place("reflect"),
        f"evaluation/{name}/judge_prompt.txt": task.place("judge"),
    }
    for published, packaged in at_the_stages.items():
        assert Path(published).samefile(packaged), published


def test_a_file_is_a_task_by_path_by_name_and_by_module(tmp_path, monkeypatch):
    file = tmp_path / "songs.py"
    file.write_text(ONE.format(name="songs"))
    task = get_task(str(file))
    assert task.name == "songs" and task.folder == tmp_path and task.source == str(file)
    assert get_task("songs") is get_task(f"{file}:TASK") is task
    monkeypatch.chdir(tmp_path)
    assert get_task("songs.py") is get_task("songs:TASK") is task
    (tmp_path / "broken.py").write_text("x = 1\ny = z\n")
    with pytest.raises(InputError, match="broken:TASK: NameError in line 2: name 'z' is not defined"):
        get_task("broken:TASK")
    assert task_of({"task": "songs"}) is task
    TASKS.pop("songs")  # as in the process of a later stage: a file of an earlier one names no code to run
    file.write_text("raise SystemExit('executed')")
    for name in ("songs", f"{file}", "songs:TASK"):
        with pytest.raises(InputError, match="--task"):
            task_of({"task": name, "task_source": str(file)})


@pytest.mark.parametrize(
    ("content", "spec", "message"),
    [
        ("x = 1\n", "{file}", "defines no tasks"),
        ("x = 1\ndef (:\n", "{file}", "SyntaxError in line 2: invalid syntax; correct it there"),
        ("x = 1\ny = z\n", "{file}", "NameError in line 2: name 'z' is not defined"),
        (ONE.format(name="a") + "B = PlainTask('b')\n", "{file}", "defines 2 tasks.*name it: .*:NAME"),
        ("x = 1\n", "{file}:x", "is int, not a Task"),
        ("x = 1\n", "{file}:y", "defines no y"),
        (ONE.format(name="slf5k"), "{file}", "another task 'slf5k' already .it comes with the package"),
        (ONE.format(name="a/b"), "{file}", "cannot be called 'a/b'"),
        (METHODS.replace("with_", "no_"), "{file}", "own_task.py: TypeError: .*with_response"),
        (METHODS + "    id_fields = ('key')\n", "{file}", "own_task.py: id_fields is a tuple, not 'key'; correct"),
        (METHODS, "{file}", "own_task.py: a task cannot be called None; give it a name"),
        ("", "{file}x.py", "no such file"),
        ("", "no_such_module:TASK", "no module no_such_module"),
        ("", "slf5", "did you mean slf5k.*my_task.py or package.module:OBJECT"),
    ],
)
def test_what_is_no_task_is_named(tmp_path, content, spec, message):
    file = tmp_path / "own_task.py"
    file.write_text(content)
    with pytest.raises(InputError, match=message):
        get_task(spec.format(file=file))


def test_a_task_finds_the_modules_beside_it_also_where_a_script_has_one_of_that_name(tmp_path, monkeypatch):
    for folder in ("script", "own"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "beside_me.py").write_text(f"NAME = {folder!r}")
    file = tmp_path / "own" / "task.py"
    file.write_text("from text2grad.tasks import PlainTask\nimport beside_me\nTASK = PlainTask(beside_me.NAME)")
    monkeypatch.setattr("sys.path", [str(tmp_path / "script"), *sys.path])
    assert get_task(str(file)).name == "own"


def test_own_prompts_come_before_the_general_ones(tmp_path):
    task = PlainTask("mine")
    task.folder = tmp_path
    general = get_task("ultrafeedback")
    assert prompt_path(task, "annotation", "cot") == general.place("annotation", "cot")
    assert prompt_path(task, "judge") == general.place("judge")
    for part_of_z in (task.without_critique(), task.without_verdict()):
        assert prompt_path(part_of_z, "reward_model", "spans") == general.place("reward_model", "spans")
    own = tmp_path / "prompts" / "annotation" / "cot.txt"
    own.parent.mkdir(parents=True)
    own.write_text("${prompt} ${response}")
    assert prompt_path(task, "annotation", "cot") == find_prompt(task, "annotation", "cot") == own
    assert find_prompt(task, "annotation", "elsewhere/other.txt") == Path("elsewhere/other.txt")
    assert task.messages(" Hello ") == [{"role": "user", "content": "Hello"}]
    asking = tmp_path / "prompts" / "policy.txt"
    asking.write_text("\ufeffAnswer for $5:\n${prompt}\n")
    assert task.messages(" Hello ") == [{"role": "user", "content": "Answer for $5:\nHello"}]
    for text, told in (
        ("Answer ${promt}", r"lacks \$\{prompt\}"), ("Grüß ${prompt}", "not UTF-8 at byte 2; save it as UTF-8"),
        ("${prompt} ${title}", r"names \$\{title\}; it may name \$\{prompt\}"),
    ):  # fmt: skip
        asking.write_text(text, encoding="latin-1")
        with pytest.raises(InputError, match=f"policy.txt: {told}"):
            task.messages("Hello")


def test_a_task_with_other_fields_needs_prompts_of_its_own(tmp_path):
    task = PlainTask("mine")
    task.folder, task.fields = tmp_path, FeedbackFields("remark", "bright", "dull")
    with pytest.raises(InputError, match=r"mine has no annotation prompt 'cot': .*prompts/annotation/cot.txt"):
        prompt_path(task, "annotation", "cot")
    assert prompt_path(task, "reflect").is_file()  # it names no field


def test_settings_are_those_of_the_task_on_the_command_line(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(ONE.format(name="mine"))
    for args, expected in (
        (["--task", "slf5k"], get_task("slf5k").place("policy_config")),
        (["--seed", "1", "--task=kodcode"], get_task("kodcode").place("policy_config")),
        (["--task", str(tmp_path / "mine.py")], None),
        ([], None),
    ):
        monkeypatch.setattr(sys, "argv", ["optimize.py", *args])
        assert settings_of_task("policy_config") == expected
    (tmp_path / "policy.yaml").write_text("seed: 3\n")
    monkeypatch.setattr(sys, "argv", ["optimize.py", "--task", str(tmp_path / "mine.py")])
    assert settings_of_task("policy_config") == tmp_path / "policy.yaml"


# Records


def prompts_of(path: Path, task: str = "plain") -> dict[str, str]:
    return {key: get_task(task).prompt(row) for key, row in load_records(path, get_task(task), responses=False).items()}


@pytest.mark.parametrize("task", ["plain", "slf5k", "kodcode", "ultrafeedback"])
def test_a_csv_with_a_prompt_column_is_enough_for_stage_3(tmp_path, task):
    path = tmp_path / "mine.csv"
    path.write_bytes('\ufeffid,prompt\r\nq1,"Write, please:\r\na line"\r\n\r\nq2,Second\r\nq3,Second\r\n'.encode())
    assert prompts_of(path, task) == {"q1": "Write, please:\r\na line", "q2": "Second"}


def test_csv_records_have_responses_and_leave_empty_cells_out(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("prompt,response,reference\nOne?,Yes,\nTwo?,No,Maybe\n")
    first, second = load_records(path, get_task("plain")).values()
    assert first == {"prompt": "One?", "response": "Yes"}
    assert second == {"prompt": "Two?", "response": "No", "reference": "Maybe"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no records"),
        ("prompt\n", "holds no records"),
        ("question\nOne?\n", "record 0: it has no field 'prompt'; it has question; docs/own_task_and_critic.md"),
        ("prompt,prompt\na,b\n", "name each column once"),
        ("prompt\nHello, you\n", "line 2 has 2 cells where the header has 1.*double quotes"),
        ('prompt\n"open\n', "is not CSV"),
    ],
)
def test_bad_csv_files_name_the_line(tmp_path, content, message):
    path = tmp_path / "mine.csv"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        load_records(path, get_task("plain"), responses=False)


def test_an_own_task_that_fails_on_a_record_is_named_with_it(tmp_path):
    file, data = tmp_path / "letters.py", tmp_path / "in.json"
    file.write_text(f"{METHODS}    name = 'letters'\n")
    task = get_task(str(file))
    for record, told in (({"letter": "a"}, "KeyError in line 5: 'reply'"), ({"reply": "b"}, "AttributeError: 'None")):
        save_json(data, [{"letter": "x", "reply": "y"}, record])
        for load in (load_records, load_responses):
            with pytest.raises(InputError, match=f"in.json: record 1: the task letters fails on it .{told}.*; correct"):
                load(data, task)
    save_json(data, [{"letter": "x"}])
    (record,) = load_records(data, task, responses=False).values()
    assert task.about(record, "z") == {"letter": "x", "reply": "z"}


@pytest.mark.parametrize("log", ['{"passed": "yes"}', '{"a": ', '{"a": ' * 100_000, f'{{"a": {"9" * 5000}}}', [True]])
def test_a_log_that_cannot_be_read_says_nothing_of_the_response(log):
    assert get_task("kodcode").known_value({"log": log}) is None
    assert get_task("kodcode").known_value({"log": ' {"passed": true}'}) == 1.0


@pytest.mark.parametrize(("error", "shown"), [("Undecided", False), ("AssertionError", True)])
def test_a_model_reads_no_failure_in_a_log_that_decides_nothing(error, shown):
    record = {"question": "q", "solution": "s", "log": {"passed": False, "error_type": error}}
    assert bool(get_task("kodcode").prompt_fields(record)["log"]) == shown


@pytest.mark.parametrize("reference", [["yes", "no"], 7])
def test_a_reference_that_is_no_text_is_named(tmp_path, reference):
    save_json(tmp_path / "in.json", [{"prompt": "x", "reference": reference}])
    with pytest.raises(InputError, match=r"in.json: record 0: its field 'reference' is not a text but"):
        load_records(tmp_path / "in.json", get_task("plain"), responses=None)


@pytest.mark.parametrize(
    ("task", "record", "told"),
    [
        ("kodcode", {"question": "q", "solution": "s", "test": ["assert f(1)"]}, "'test' has no test function"),
        ("kodcode", {"question": "q", "solution": "s", "test": "assert f(1)"}, "'test' has no test function"),
        ("ultrafeedback", {"prompt": "q", "response": "[{'role': 'assistant', 'content': 'a'}]"}, "messages as a text"),
    ],
)
def test_what_another_form_of_the_data_holds_is_not_misread(tmp_path, task, record, told):
    save_json(tmp_path / "in.json", [record])
    with pytest.raises(InputError, match=f"in.json: record 0: its field .*{told}"):
        load_records(tmp_path / "in.json", get_task(task))


def test_an_id_of_nought_is_an_id(tmp_path):
    save_json(tmp_path / "in.json", [{"id": n, "post": "p", "generated_summary": "s"} for n in range(2)])
    assert list(load_records(tmp_path / "in.json", get_task("slf5k"))) == ["0", "1"]


def test_prompts_keep_their_records_ids(tmp_path):
    path = tmp_path / "in.json"
    rows = [
        {"prompt": "a", "prompt_id": "p7", "response": [{"role": "assistant", "content": "x"}]},
        {"prompt": "a", "prompt_id": "p7", "response": [{"role": "assistant", "content": "y"}]},
        {"prompt": "b", "prompt_id": "p7"},
        {"prompt": "c", "id": 0},
        {"prompt": "d"},
    ]
    save_json(path, rows)
    ids = list(prompts_of(path, "ultrafeedback"))
    assert ids[0] == "p7" and ids[1].startswith("p7#") and ids[2] == "0" and ids[3].startswith("prompt#")
    save_json(path, rows[::-1])
    assert ids[3] in prompts_of(path, "ultrafeedback")  # it does not depend on the record's place
    save_json(path, [{"question_id": "q1", "question": "Add."}])
    assert list(prompts_of(path, "kodcode")) == ["q1"]
