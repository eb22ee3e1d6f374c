"""Records from Parquet files, folders and data sets, in every stage that reads records."""

from __future__ import annotations

from datetime import datetime

import pytest
from datasets import Dataset, DatasetDict

from text2grad.errors import InputError
from text2grad.records import is_data_set, load_records
from text2grad.tasks import get_task

ROWS = [
    {"prompt": "Wie geht's? 🐶", "response": "Good.\r\nThanks.", "id": "a", "reference": None},
    {"prompt": "And now?", "response": "Bad.", "id": None, "reference": "Better."},
]
PLAIN = get_task("plain")


def filled(rows: list[dict]) -> list[dict]:
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def test_parquet_folders_and_saved_data_sets_hold_the_same_records(tmp_path):
    data = Dataset.from_list(ROWS)
    data.to_parquet(tmp_path / "rows.parquet")
    (tmp_path / "folder").mkdir()
    data.to_parquet(tmp_path / "folder" / "train.parquet")
    data.save_to_disk(tmp_path / "saved")
    DatasetDict({"train": data.select([0]), "test": data.select([1])}).save_to_disk(tmp_path / "splits")
    for name in ("rows.parquet", "folder", "saved"):
        records = load_records(tmp_path / name, PLAIN)
        assert list(records.values()) == filled(ROWS), name
        assert next(iter(records)).startswith("a#") and not records.keyed
    assert list(load_records(f"{tmp_path}/splits", PLAIN).values()) == filled(ROWS[:1])
    assert list(load_records(f"{tmp_path}/splits#test", PLAIN).values()) == filled(ROWS[1:])


def test_what_is_no_data_set_is_named_with_its_remedy(tmp_path):
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no table")
    Dataset.from_list([{**ROWS[0], "when": datetime(2026, 1, 1)}]).to_parquet(tmp_path / "dates.parquet")
    Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    (tmp_path / "empty").mkdir()
    for name, message in {
        "broken.parquet": "no Parquet file that can be read",
        "missing.parquet": "no such file",
        "dates.parquet": "record 0 has datetime in 'when'",
        "empty": "no data set",
    }.items():
        with pytest.raises(InputError, match=message):
            load_records(tmp_path / name, PLAIN)
    with pytest.raises(InputError, match="no data set"):
        load_records("nobody/nothing#train", PLAIN)


def test_paths_of_files_are_not_taken_for_names_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "records").write_text("[]")
    assert not any(map(is_data_set, ("data/records.json", "data/records", "data/none.parquet", "records", "/data/set")))
    assert is_data_set("data") and is_data_set("owner/name") and is_data_set("owner/name.v2#train")
    with pytest.raises(InputError, match="no such file"):
        load_records("data/none.json", PLAIN)
