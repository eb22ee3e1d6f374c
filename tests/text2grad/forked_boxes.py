"""A stand-in for the sandbox that runs both sides of a verdict quickly: pytest is imported once, each side is a fork.

It isolates nothing: for programs that lie to their judge and leave the machine alone.
"""

import gc
import os
import resource
import select
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from _pytest.config import Config, _prepareconfig

from text2grad.sandbox import BOX, REPORT_VARIABLE, Result


class ForkedBoxes:
    """What ``run_tests`` needs of a ``Sandbox``; for one verdict after another."""

    python, seconds = sys.executable, 20.0

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(dir="/dev/shm")
        self._configs: dict[tuple[str, ...], Config] = {}

    def _config(self, argv: Sequence[str]) -> Config:
        """pytest, ready to collect; not capturing, for that begins at once."""
        at = argv.index("pytest_recorder")
        words = tuple(word.replace(BOX, f"{self._folder.name}/tests") for word in (*argv[3 : at - 1], *argv[at + 1 :]))
        if words not in self._configs:
            self._configs[words] = _prepareconfig(["-s", *words])
        return self._configs[words]

    def run(
        self,
        files: Mapping[str, str],
        argv: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        pipes: Sequence[int] = (),
        stop: int | None = None,
    ) -> Result:
        folder = Path(self._folder.name, "tests" if "pytest" in argv else "solution")
        folder.mkdir(exist_ok=True)
        for name, text in files.items():
            (folder / name).write_bytes(text.encode("utf-8", "surrogatepass"))
        streams = {name: os.open(folder / name, os.O_CREAT | os.O_RDWR | os.O_TRUNC) for name in _STREAMS}
        config = self._config(argv) if "pytest" in argv else None
        gc.freeze()
        child = os.fork()
        if not child:
            gc.disable()
            _become(str(folder), argv, environment or {}, streams, set(pipes), config)
        for number in pipes:
            os.close(number)
        handle = os.pidfd_open(child)
        ready = select.select([handle, *([stop] if stop is not None else [])], [], [], self.seconds)[0]
        reason = None if handle in ready else "stopped" if ready else "timeout"
        if reason:
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        told = {name: (folder / name).read_text(errors="replace") for name in _STREAMS}
        for number in (handle, *streams.values()):
            os.close(number)
        code = os.waitstatus_to_exitcode(status)
        return Result(-9 if reason else code if code >= 0 else 128 - code, seconds=0.1, reason=reason, **told)


_STREAMS = ("report", "stdout", "stderr")


def _become(
    folder: str,
    argv: Sequence[str],
    environment: Mapping[str, str],
    streams: Mapping[str, int],
    pipes: set[int],
    config: Config | None,
) -> None:
    """Become the program, with the descriptors that are its own."""
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (10, 11))
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
        os.dup2(streams["stdout"], 1)
        os.dup2(streams["stderr"], 2)
        for number in set(map(int, os.listdir("/proc/self/fd"))) - pipes - {0, 1, 2, streams["report"]}:
            try:
                os.close(number)
            except OSError:
                continue
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        os.environ.update({**environment, REPORT_VARIABLE: str(streams["report"])})
        os.chdir(folder)
        sys.path.insert(0, folder)
        sys.dont_write_bytecode = True  # as in a box; a file of the same second and length would pass for compiled
        if config is not None:
            config.pluginmanager.import_plugin("pytest_recorder")
            code = int(config.hook.pytest_cmdline_main(config=config))
        else:
            main = sys.modules["__main__"] = ModuleType("__main__")
            exec(compile(Path(argv[1].replace(BOX, folder)).read_text(), argv[1], "exec"), vars(main))
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
