"""Output that nobody reads, and records that it must not cost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from tests.annotation_runs import SCRIPT, judge, posts
from tests.fault_server import FaultServer


def started(folder, server, records, **options) -> subprocess.Popen:
    (folder / "in.json").write_text(json.dumps(records))
    arguments = ["--data_path", folder / "in.json", "--output_path", folder / "out.json", "--base_url", server.url]
    return subprocess.Popen([sys.executable, SCRIPT, *map(str, arguments), "--model", "m"], **options)


@pytest.mark.promise("nothing_lost")
def test_a_run_goes_on_when_nobody_reads_what_it_says(tmp_path):
    with FaultServer(judge, on_request=lambda body: time.sleep(0.05)) as server:
        run = started(tmp_path, server, posts(40), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while not server.requests:
            time.sleep(0.05)
        run.stdout.close()
        run.stderr.close()
        assert run.wait(120) == 0
    assert len(json.loads((tmp_path / "out.json").read_text())) == 40


@pytest.mark.promise("nothing_lost")
def test_closed_streams_and_an_old_encoding(tmp_path):
    folder = tmp_path / "é"
    folder.mkdir()
    with FaultServer(judge) as server:
        environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
        said = started(folder, server, posts(2), stdout=subprocess.PIPE, env=environment).communicate(timeout=120)[0]
        assert b"2 of 2 records annotated" in said and b"\\xe9" in said
        (folder / "out.json").unlink()
        run = started(folder, server, posts(3), preexec_fn=lambda: (os.close(1), os.close(2)))
        assert run.wait(120) == 0
    assert len(json.loads((folder / "out.json").read_text())) == 3
