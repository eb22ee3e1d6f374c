"""A run's folder: one process, one set of settings, files that are what was written."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from text2grad.errors import InputError
from text2grad.journal.checksums import CHECKSUMS, damage, save_checksums
from text2grad.journal.run_folder import changes_shown, check_kind, claimed, continued, settings_at
from text2grad.records import check_output, save_json

pytestmark = pytest.mark.fast


def refused(folder: Path, told: str, kind: str = "policy") -> None:
    with pytest.raises(InputError, match=told):
        claimed(folder, kind).__enter__()


def test_a_folder_belongs_to_one_process_until_it_dies(tmp_path, monkeypatch):
    program = (
        "import sys, time\nfrom text2grad.journal.run_folder import claimed\n"
        f"with claimed({str(tmp_path)!r}, 'policy'):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        refused(tmp_path, rf"another run is working there \(process {holder.pid} on ")
        monkeypatch.setenv("RANK", "1")  # left by another job: this process still trains by itself
        refused(tmp_path, "another run")
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.delenv("MASTER_ADDR", raising=False)
        refused(tmp_path, "without MASTER_ADDR")
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        with claimed(tmp_path, "policy"):  # of two that train together, the first holds the lock
            pass
        monkeypatch.delenv("RANK")
        link = tmp_path.with_name(f"{tmp_path.name}-link")
        link.symlink_to(tmp_path)
        refused(link, "another run")
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with claimed(tmp_path, "policy"):
            pass
    for rank in ("abc", "9" * 5000):
        monkeypatch.setenv("RANK", rank)
        refused(tmp_path, f"RANK={rank[:3]}")


@pytest.mark.parametrize("name", [".lock", ".text2grad.jsonl"])
def test_a_lock_or_a_ledger_that_leads_elsewhere_is_not_followed(tmp_path, name):
    mine = tmp_path / "mine"
    mine.write_text("precious")
    for place in (lambda path: path.symlink_to(mine), os.mkfifo, os.mkdir):
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        place(folder / name)
        with pytest.raises(InputError, match=f"{name}: was not written by this program"):
            claimed(folder, "policy").__enter__() if name == ".lock" else check_output(folder / "output.json")
    assert mine.read_text() == "precious"


RUNS = {
    "policy": {"config": {}, "task": "slf5k", "method": "text2grad", "seed": 1},
    "reward_model": {"prompt": "p"},
    "sft": {"method": "sft"},
}


@pytest.mark.parametrize("there", RUNS)
@pytest.mark.parametrize("kind", RUNS)
def test_a_folder_is_not_taken_by_another_kind_of_run(tmp_path, there, kind):
    save_json(tmp_path / "run.json", RUNS[there])
    if there == kind:
        check_kind(tmp_path, kind)
    else:
        refused(tmp_path, r"holds .*; choose another --output_dir", kind)


@pytest.mark.parametrize("name", ["checkpoint-8/state.json", "reward_model.json", "config.json", "adapter_config.json"])
def test_a_model_or_a_run_without_its_record_is_not_taken(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    refused(tmp_path, r"no run\.json")


BEGUN = {"rate": 1, "data": "a", "size": 8}


@pytest.mark.parametrize(
    ("kind", "name"), [("reward_model", "README.md"), ("sft", "README.md"), ("policy", "metrics.jsonl")]
)
def test_a_users_own_file_is_not_overwritten(tmp_path, kind, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match=f"holds {name}, which this run would overwrite; choose another"):
        check_kind(tmp_path, kind)


def test_other_settings_are_refused_or_recorded_from_their_step_on(tmp_path):
    path = tmp_path / "run.json"
    assert continued(path, BEGUN, BEGUN, 0, False) == BEGUN
    with pytest.raises(InputError, match=r"begun with other settings \(rate: 1 then, 2 now\).*--allow_changed true"):
        continued(path, BEGUN, BEGUN | {"rate": 2}, 4, False)
    run = continued(path, BEGUN, BEGUN | {"rate": 2}, 4, True)
    assert run == BEGUN | {"changes": [{"from_step": 5, "settings": {"rate": 2}}]}
    assert continued(path, run, BEGUN | {"rate": 2}, 9, False) == run  # what it was last continued with
    with pytest.raises(InputError, match="rate: 2 then, 1 now"):
        continued(path, run, BEGUN, 9, False)
    # killed before step 5 was saved: the change counts from the step that is really repeated
    again = continued(path, run, BEGUN | {"rate": 2}, 3, True)
    assert again["changes"] == [{"from_step": 4, "settings": {"rate": 2}}]
    both = continued(path, run, BEGUN | {"rate": 2, "data": "b"}, 9, True)
    assert settings_at(BEGUN, both["changes"], 6) == BEGUN | {"rate": 2}
    assert settings_at(BEGUN, both["changes"]) == BEGUN | {"rate": 2, "data": "b"}
    assert changes_shown(both["changes"]).splitlines()[2] == "- changed from step 10 on: data b"
    assert continued(path, run, BEGUN | {"rate": 3}, 9, True, more=False) == run  # nothing is left to do with it
    # what checkpoints hold cannot change at all
    assert "changes" in continued(path, BEGUN, BEGUN | {"size": 4}, 0, True, fixed=("size",))
    with pytest.raises(InputError, match=r"size: 8 then, 4 now.*checkpoints"):
        continued(path, BEGUN, BEGUN | {"size": 4}, 1, True, fixed=("size",))


def test_damage_of_equal_size_is_found_and_weights_get_the_usual_mode(tmp_path):
    (tmp_path / "part").mkdir()
    weights, other = tmp_path / "a.safetensors", tmp_path / "part" / "b.pt"
    weights.write_bytes(bytes(range(256)) * 40)
    other.write_bytes(b"state")
    (tmp_path / "notes.txt").write_text("mine")
    assert damage(tmp_path) is None  # nothing is known of it
    save_checksums(tmp_path)
    other.write_bytes(b"other")  # by default only the weights beside it count
    assert damage(tmp_path) is None
    save_checksums(tmp_path, "**/*")
    assert damage(tmp_path) is None
    other.write_bytes(b"sta7e")
    assert damage(tmp_path) == f"its file part{os.sep}b.pt is damaged (other content than was written)"
    other.write_bytes(b"state")
    whole = weights.read_bytes()
    weights.write_bytes(whole[:5000] + bytes(len(whole) - 5000))
    assert "a.safetensors is damaged" in damage(tmp_path)
    weights.unlink()
    assert "a.safetensors is missing" in damage(tmp_path)
    weights.touch(0o600)  # a library's: it can be read by whom the umask lets
    before = os.umask(0o027)
    try:
        save_checksums(tmp_path)
    finally:
        os.umask(before)
    assert weights.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    "listed",
    ["[]", "null", '{"a": ', '{"a": null}', '{"/dev/zero": "x"}', "[" * 100_000, '{"a\\u0000b": "x"}', "\xff"],
)  # fmt: skip
def test_a_damaged_list_of_checksums_is_damage(tmp_path, listed):
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / CHECKSUMS).write_bytes(listed.encode("latin-1"))
    assert damage(tmp_path)
