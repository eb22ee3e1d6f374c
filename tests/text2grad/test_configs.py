"""How settings are read: choices, aliases, and the file of a task's own settings."""

from dataclasses import MISSING, dataclass, make_dataclass
from pathlib import Path
from typing import Literal

import pytest

from text2grad.configs import help_text, parse, setting
from text2grad.errors import InputError

pytestmark = pytest.mark.fast


@dataclass
class Settings:
    size: int = setting(1, "how large", "--extent")
    order: Literal["both", "one"] = setting("both", "which orders")
    form: Literal["cot", "no_cot"] | None = setting(None, "what is asked for")


def refused(file: Path, text: str, told: str) -> None:
    file.write_text(text)
    with pytest.raises(InputError, match=told):
        parse(Settings, args=["--config", str(file)])


def test_a_choice_may_be_left_open_and_is_checked_otherwise(tmp_path):
    assert parse(Settings, args=[]).form is None
    assert parse(Settings, args=["--form", "no_cot"]).form == "no_cot"
    refused(tmp_path / "a.yaml", "form: long\n", r"--form 'long' does not exist; choose one of cot, no_cot$")
    text = help_text(Settings)
    assert "--form {cot,no_cot}" in text and "--size N, --extent N" in text


@pytest.mark.parametrize(
    ("name", "hint", "values"), [("batch_size", int, ["0"]), ("workers", int, ["0"]), ("k", list[int], ["1", "0"])]
)
def test_what_several_commands_count_is_above_zero_in_each(name, hint, values):
    kind = make_dataclass("Several", [(name, hint, setting(MISSING, "so many"))])
    with pytest.raises(InputError, match=f"--{name} must be above 0, not 0"):
        parse(kind, args=[f"--{name}", *values])


@dataclass
class Kinds:
    count: int = setting(1, "how many")
    share: float | None = setting(0.5, "how much")
    name: str = setting("", "who")
    merge: bool = setting(False, "whether")
    names: list[str] = setting([], "who else")
    rates: list[float] = setting([], "how fast", above=0)
    seeds: list[int] | None = setting(None, "of what")
    sizes: dict[str, int] = setting({}, "of what")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("names: none\n", Kinds(names=["none"])), ("names: [a, b]\nname: 5\n", Kinds(names=["a", "b"], name="5")),
        ("share: 1e-3\nmerge: yes\n", Kinds(share=0.001, merge=True)),
        ("share: null\ncount: 1_000\n", Kinds(share=None, count=1000)), ("name: null\n", "name has no value"),
        ("rates: [1e-3, 2]\nseeds: null\n", Kinds(rates=[0.001, 2.0])), ("seeds: 3\n", Kinds(seeds=[3])),
        ("rates: [0]\n", "rates must be above 0, not 0"), ("seeds: [1, x]\n", "seeds is a list of int values, and"),
        ("sizes: {a: 1}\n", Kinds(sizes={"a": 1})), ("sizes: [a]\n", "sizes is names with values, not list"),
        ("names: [a, null]\n", "names is a list of str values, and holds"),
        ("count: [3]\n", "count is one value, not list"), ("count: 3.5\n", "invalid int value: '3.5'"),
    ],
)  # fmt: skip
def test_a_files_value_is_what_the_command_line_would_make_of_it(tmp_path, capsys, text, expected):
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    if isinstance(expected, Kinds):
        assert parse(Kinds, args=["--config", str(file)]) == expected
        return
    with pytest.raises((InputError, SystemExit)) as error:
        parse(Kinds, args=["--config", str(file)])
    assert expected in f"{error.value}{capsys.readouterr().err}"


def test_a_file_goes_over_the_one_that_it_extends(tmp_path):
    (tmp_path / "task").mkdir()
    (tmp_path / "base.yaml").write_text("size: 5\norder: one\n")
    own = tmp_path / "task" / "config.yaml"
    own.write_text("extends: ../base.yaml\nextent: 7\n")  # another name of size
    assert parse(Settings, args=["--config", str(own)]) == Settings(7, "one")
    refused(own, "extends: ../nowhere.yaml\n", "extends")
    refused(own, "extends: config.yaml\n", "not YAML")


def test_the_task_settings_are_read_where_no_file_is_named_and_a_line_says_so(tmp_path, capsys, monkeypatch):
    own, other = tmp_path / "config.yaml", tmp_path / "other.yaml"
    own.write_text("extent: 5\n")
    other.write_text("order: one\n")
    assert parse(Settings, args=["--order", "one"], default_config=own) == Settings(5, "one")
    assert f"settings: {own}" in capsys.readouterr().out
    assert parse(Settings, args=["--config", str(other)], default_config=own) == Settings(1, "one")
    assert parse(Settings, args=["--size", "7"], default_config=own).size == 7
    capsys.readouterr()
    monkeypatch.setenv("RANK", "1")
    parse(Settings, args=[], default_config=own)
    assert capsys.readouterr().out == ""
    assert f"(default:{own})" in "".join(help_text(Settings, default_config=own).split())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("env: {PATH: /tmp}\nsize: 3\n", "no setting 'env'"),
        ("[" * 3000, "not YAML"),
        ("size: " + "1" * 5000, "not YAML"),
        ("size: 3\nsize: 4\n", "'size' stands twice"),
        ("size: !!python/object/apply:os.getcwd []", "not YAML"),
    ],
)
def test_a_file_of_settings_can_do_nothing_but_set_them(tmp_path, text, told):
    refused(tmp_path / "settings.yaml", text, told)


def test_a_second_file_of_settings_is_refused(tmp_path):
    """The library would read it, and set the environment variables that it names."""
    args = [part for name in "ab" for part in ("--config", str(tmp_path / f"{name}.yaml"))]
    with pytest.raises(InputError, match="given twice"):
        parse(Settings, args=args)


def test_a_second_value_is_refused_with_its_flag():
    with pytest.raises(InputError, match="'2' is left over: --size takes one value"):
        parse(Settings, args=["--order", "one", "--size", "1", "2"])


@dataclass
class Files:
    output_path: str = setting("", "what is written")
    data_path: str = setting("", "what is read")
    opinions: list[str] = setting([], "what is read as well")


def test_an_output_is_none_of_the_inputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.json").touch()
    (tmp_path / "link.json").symlink_to("data.json")
    for name, output in (("data_path", "./data.json"), ("data_path", "link.json"), ("opinions", "data.json")):
        with pytest.raises(InputError, match=f"--output_path {output}: is --{name} as well"):
            parse(Files, args=[f"--{name}", "data.json", "--output_path", output])
    assert parse(Files, args=["--data_path", "data.json", "--output_path", "other.json"]).output_path == "other.json"
