"""Records, replies and settings that the tests of annotation share."""

import json
import re
import sys
from pathlib import Path
from subprocess import Popen

import pytest

from rm_data_anno.annotate import AnnotateConfig, annotate
from tests.fault_server import FaultServer
from tests.processes import ROOT, flags, start_command

SCRIPT = ROOT / "rm_data_anno" / "slf5k" / "dual_feedback_annotation_RM.py"
PRICES = "batch_discount: 0.5\nmodels:\n  judge*: {input: 0, cached_input: 0, output: 1000}\n"  # 0.001 $ a token


def posts(count: int) -> dict[str, dict]:
    return {
        f"t3_{i}": {"post": f"Post number {i} tells of a lost dog.", "generated_summary": f"Dog {i} ran off; what now?"}
        for i in range(count)
    }


def record_of(body: dict) -> str:
    return "t3_" + re.search(r"Post number (\d+) ", body["messages"][0]["content"]).group(1)


def judge(body: dict) -> str:
    """A good reply to any of the prompts; its spans are words of the summary."""
    summary = re.search(r"<summary>\n(.*)\n</summary>", body["messages"][0]["content"], re.DOTALL).group(1)
    first, second = summary.split("; ")
    critique = f"It says that the {first.lower()}, but '{second}' is vague."
    value = {"reasoning": "The post is short.", "textual_feedback": critique}
    return json.dumps({**value, "good_spans": [first], "poor_spans": [second]})


def setting(tmp_path: Path, server: FaultServer, records: object, **options) -> AnnotateConfig:
    data = tmp_path / "in.json"
    data.write_text(json.dumps(records))
    defaults = {"output_path": str(tmp_path / "out.json"), "base_url": server.url, "model": "judge-1", "timeout": 2.0}
    return AnnotateConfig(data_path=str(data), **{**defaults, **options})


def unfinished(config: AnnotateConfig) -> None:
    """An annotation that leaves records without feedback, and says so by its exit code."""
    with pytest.raises(SystemExit, match="1"):
        annotate("slf5k", config)


def read(tmp_path: Path, ending: str = "") -> dict:
    return json.loads((tmp_path / f"out.json{ending}").read_text())


def prices(folder: Path) -> Path:
    path = folder / "prices.yaml"
    path.write_text(PRICES)
    return path


def start(tmp_path: Path, server: FaultServer, *args: str, **env: str) -> Popen[str]:
    files = {"data_path": tmp_path / "in.json", "output_path": tmp_path / "out.json"}
    given = flags(**files, base_url=server.url, model="judge-1")
    return start_command(sys.executable, SCRIPT, *given, *args, **env)


def rows(path: Path) -> list[dict]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
