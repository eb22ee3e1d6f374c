"""A warm `python` for tests that start many scripts, the one of ``text2grad/journal/warm.py``.

It has the form of a virtual environment, so that shell scripts find it. The slow tests start the same scripts without.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PRELOADED = (
    "torch.distributed.run", "nl_gradient_policy_optimization.optimize", "nl_reward_model.train_rm",
    "nl_gradient_policy_optimization.baselines.dpo", "deepspeed", "scipy.stats", "sklearn.metrics", "matplotlib.pyplot",
)  # fmt: skip


@dataclass(frozen=True)
class Warm:
    """The path of the warm `python`, the variables that it and the project's shell scripts need, and the hub's."""

    path: str
    variables: dict[str, str]
    hub: dict[str, str]

    def python(self, environment: Mapping[str, str]) -> str:
        """The warm `python`; the real one for other variables of the hub, which its library reads when it is loaded."""
        return self.path if hub_variables(environment) == self.hub else sys.executable


def hub_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith("HF_")}


@contextmanager
def warm_environment(modules: tuple[str, ...] = PRELOADED) -> Iterator[Warm]:
    """Warm commands for as long as the block lasts."""
    real = Path(sys.executable).parent.parent
    with tempfile.TemporaryDirectory(prefix="warm-") as name:
        folder = Path(name) / "environment"
        folder.mkdir()
        shutil.copy(real / ".installed", folder)  # env.sh: nothing to install
        command = [sys.executable, str(ROOT / "text2grad" / "journal" / "warm.py"), "serve", str(folder), *modules]
        environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE) as server:
            while not (folder / "server").exists():
                assert server.poll() is None, "the warm server did not start; its error is above"
                time.sleep(0.05)
            commands = folder / "bin"
            (commands / "activate").write_text(f'PATH="{commands}:{real / "bin"}:$PATH"\n')
            variables = {"VENV": os.path.relpath(folder, ROOT), "TEXT2GRAD_WARM": str(folder / "server")}
            yield Warm(str(commands / "python"), variables, hub_variables(os.environ))
