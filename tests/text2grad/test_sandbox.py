"""Hostile programs in the sandbox, with each backend that works here: each is contained, and none disturbs the next."""

import os
import secrets
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import text2grad.sandbox.box as module
from tests.processes import ROOT, run_command, running
from text2grad.errors import InputError
from text2grad.sandbox import Result, Sandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")

SHORT, LONG = 1.0, 60.0  # seconds for programs that use up their time, and for those that do not


@pytest.fixture(params=["bubblewrap", "namespaces"])
def sandbox(request) -> Sandbox:
    problem = module._problem(request.param)
    if problem is not None:
        pytest.skip(f"{request.param} does not work here: {problem}")
    return Sandbox(seconds=LONG, memory_mb=256, processes=24, file_mb=4, output_kb=64, backend=request.param)


@pytest.fixture
def attack(sandbox):
    """Run a program; then see that nothing of it is left and that the next program runs as if nothing had been."""

    def run(program: str, *arguments: str, seconds: float = LONG) -> Result:
        token = secrets.token_hex(8)
        command = [sandbox.python, "-I", "-S", "/box/program.py", token, *arguments]
        result = replace(sandbox, seconds=seconds).run({"program.py": program}, command)
        assert result.seconds < module.PATIENCE * seconds + 10
        assert not running(token)
        after = sandbox.run({"next.py": "print('fine')"}, [sandbox.python, "-I", "-S", "/box/next.py"])
        assert (after.stdout, after.returncode, after.reason) == ("fine\n", 0, None)
        return result

    return run


def test_some_isolation_is_in_force():
    sandbox = Sandbox()
    assert sandbox.backend in ("bubblewrap", "namespaces")
    assert sandbox.backend in sandbox.protection
    assert "no network" in sandbox.protection
    assert "1024 MB" in sandbox.protection


def test_ordinary_programs_run(sandbox):
    program = """
import asyncio, os, socket, subprocess, sys, tempfile
from multiprocessing import Pool, Value
from helper.words import WORD
if __name__ == "__main__":
    with Pool(2) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]
    assert Value("i", 3).value == 3
    assert [end.fileno() > 0 for end in socket.socketpair()] == [True, True]
    asyncio.run(asyncio.sleep(0))
    assert subprocess.run(["echo", "hi"], capture_output=True).stdout == b"hi\\n"
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x" * 1000)
    print(WORD, "ü", sys.argv[1], os.environ["MINE"], os.getcwd(), sys.stdin.read())
    print("complaint", file=sys.stderr)
    os.write(int(os.environ["T2G_REPORT"]), b"told" * 20_000)
    sys.exit(3)
"""
    files = {"main.py": program, "helper/words.py": "WORD = 'word'"}
    result = sandbox.run(files, [sandbox.python, "/box/main.py", "argument"], {"MINE": "yes"})
    assert result.stderr == "complaint\n"
    assert result.stdout == "word ü argument yes /tmp \n"
    assert (result.returncode, result.reason) == (3, None)
    assert result.report == "told" * 20_000  # more than it might print


def test_an_interpreter_under_tmp_is_seen_inside(sandbox, tmp_path):
    """Inside, /tmp is the program's own and empty; a virtual environment that lies there must be seen all the same."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (tmp_path / "venv" / "mark.txt").write_text("seen")
    driver = (
        "import sys; from text2grad.sandbox import Sandbox; "
        f"result = Sandbox(seconds=30, backend={sandbox.backend!r})"
        ".run({'a.py': 'import sys; print(open(sys.prefix + \"/mark.txt\").read())'}, [sys.executable, '/box/a.py']); "
        "print(result.stdout or result.stderr)"
    )
    paths = os.pathsep.join([str(ROOT), *sys.path])
    python = tmp_path / "venv" / "bin" / "python"
    assert run_command(python, "-c", driver, PYTHONPATH=paths).stdout.strip() == "seen"


def test_a_signal_and_a_missing_program_are_told_by_the_return_code(sandbox):
    result = sandbox.run({}, [sandbox.python, "-I", "-S", "-c", "import os; os.abort()"])
    assert (result.returncode, result.reason) == (128 + 6, None)
    result = sandbox.run({}, ["/usr/bin/there-is-no-such-thing"])
    assert result.returncode == 127 and "No such file" in result.stderr


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("while True: pass", "timeout"),
        ("import time; time.sleep(1000)", "timeout"),
        ("while True: print('x' * 1000)", "output"),
        ("import os\nwhile True: os.write(int(os.environ['T2G_REPORT']), b'x' * 1000)", "output"),
    ],
    ids=["a loop", "sleep", "output", "a report"],
)
def test_what_has_no_end(attack, program, reason):
    result = attack(program, seconds=SHORT if reason == "timeout" else LONG)
    assert result.reason == reason and len(result.stdout) <= 64 * 1024


def test_fork_bomb(attack):
    # Mild first: a limit that does not hold shows here, and not as a machine that stands still.
    mild = """
import os, time
count = 0
try:
    for _ in range(100):
        if os.fork() == 0: time.sleep(30)
        count += 1
except OSError: pass
print(count)
"""
    assert 10 < int(attack(mild).stdout) < 24
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    assert attack(bomb, seconds=SHORT).reason == "timeout"


def test_threads_without_end(attack):
    program = """
import threading, time
try:
    while True: threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
except RuntimeError: print(threading.active_count())
"""
    assert int(attack(program).stdout) <= 24


def test_it_works_at_any_niceness():
    """Batch schedulers start jobs at a lower priority, which an ordinary user cannot raise again."""
    program = "from text2grad.sandbox import Sandbox as S; s = S(); print(s.run({}, [s.python, '-c', '']).returncode)"
    assert run_command("nice", "-n", "15", sys.executable, "-c", program).stdout == "0\n"


def test_it_works_under_a_strict_umask(sandbox):
    """The program's user is another one than the caller's, where that is root."""
    before = os.umask(0o077)
    try:
        assert module._problem.__wrapped__(sandbox.backend) is None
        result = sandbox.run({"a/b/c.py": "print(open(__file__).read())"}, [sandbox.python, "-I", "/box/a/b/c.py"])
    finally:
        os.umask(before)
    assert "print" in result.stdout, result.stderr


def test_filling_the_folders_it_may_write(attack):
    program = """
for folder in ("/tmp", "/dev/shm"):
    written = 0
    try:
        for number in range(100): written += open(f"{folder}/{number}", "wb", 0).write(b"x" * (1 << 20))
    except OSError: pass
    print(written >> 20)
try: open("/tmp/0", "wb").truncate(1 << 40)
except OSError: print("refused")
"""
    sizes = attack(program).stdout.split()
    assert all(int(size) <= 4 for size in sizes[:2])
    assert sizes[2] == "refused"


def test_network(attack):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        program = """
import socket, sys
print([line.split(":")[0].strip() for line in list(open("/proc/net/dev"))[2:]])
for family, address in [
    (socket.AF_INET, ("127.0.0.1", int(sys.argv[2]))),
    (socket.AF_INET, ("1.1.1.1", 53)),
    (socket.AF_UNIX, "/run/systemd/private"),
    (socket.AF_UNIX, "/var/run/docker.sock"),
    (socket.AF_VSOCK, (2, 1)),
    (socket.AF_PACKET, None),
]:
    try:
        channel = socket.socket(family)
        channel.settimeout(0.2)
        channel.connect(address)
        print("reached", address)
    except OSError: pass
"""
        result = attack(program, str(server.getsockname()[1]))
        assert result.stdout == "['lo']\n"
        with pytest.raises(TimeoutError):
            server.accept()


def test_writing_and_deleting_where_it_must_not(attack, tmp_path):
    name = f"sandbox-{secrets.token_hex(8)}"
    places = ["/etc", str(Path.home()), str(tmp_path), str(Path(module.__file__).parent), sys.prefix, "/usr/lib", "/"]
    places += ["/box", "/dev", "/var/tmp", "/proc/sys/kernel"]
    program = """
import os, shutil, sys
for place in sys.argv[3:]:
    for attempt in (os.mkdir, lambda path: open(path, "w")):
        try:
            attempt(os.path.join(place, sys.argv[2]))
            print("wrote", place)
        except OSError: pass
shutil.rmtree("/box", ignore_errors=True)
print(os.listdir("/box"))
"""
    assert attack(program, name, *places).stdout == "['program.py']\n"
    assert not [place for place in places if Path(place, name).exists()]


def test_reading_the_environment_and_other_files(attack, tmp_path, monkeypatch):
    secret = f"secret-{secrets.token_hex(8)}"
    monkeypatch.setenv("OPENAI_API_KEY", secret)
    (tmp_path / "key").write_text(secret)
    in_home = Path.home() / f".{secrets.token_hex(8)}"
    in_home.write_text(secret)
    program = """
import glob, os, sys
print(dict(os.environ))
for path in [*sys.argv[2:], *glob.glob("/proc/*/environ"), *glob.glob("/proc/*/cmdline"), *glob.glob("/proc/*/maps")]:
    try: print(path, open(path, "rb").read())
    except OSError: pass
for root, folders, files in os.walk("/"):
    if root.startswith(("/proc", "/usr")) or root == sys.base_prefix: folders.clear()
    for name in files:
        if name in ("shadow", "passwd", "hostname", "id_rsa", "key", ".env", ".bashrc", ".netrc"):
            print("found", root, name)
"""
    try:
        result = attack(program, str(tmp_path / "key"), str(in_home), "/etc/passwd", "/etc/shadow", "/proc/kcore")
    finally:
        in_home.unlink()
    assert result.returncode == 0, result.stderr
    assert secret not in result.stdout
    assert "root:" not in result.stdout
    assert "found" not in result.stdout


def test_attacking_the_process_that_watches_it_and_killing_its_parents(attack):
    program = """
import ctypes, glob, os, signal
libc = ctypes.CDLL(None, use_errno=True)
for pid in {1, os.getppid()}:
    print(libc.ptrace(16, pid, 0, 0))
    for name in ("root/etc/shadow", "root/home", "cwd/box/../etc/passwd"):
        try:
            open(f"/proc/{pid}/{name}", "rb").read(1)
            print("read", pid, name)
        except OSError: pass
print(libc.unshare(0x10000000), libc.mount(b"none", b"/tmp", b"tmpfs", 0, None), libc.setuid(0), os.geteuid() == 0)
for pid in (os.getppid(), 1):
    for number in (signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL):
        try: os.kill(pid, number)
        except OSError: pass
print(*glob.glob("/proc/[0-9]*"))
try: os.kill(-1, signal.SIGKILL)
except ProcessLookupError: pass
print("still here")
"""
    result = attack(program)
    *traced, gained, processes, last = result.stdout.splitlines()
    assert (result.returncode, last, set(traced)) == (0, "still here", {"-1"})
    assert len(processes.split()) <= 4  # no process but its own namespace's
    assert gained == "-1 -1 -1 False" if os.geteuid() == 0 else gained.startswith("-1 -1")


def test_staying_behind_as_a_daemon(attack):
    program = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:  # holds the output pipe open
            time.sleep(0.05)
            print("still here", flush=True)
    os._exit(0)
print("gone")
"""
    result = attack(program)
    assert (result.returncode, result.reason) == (0, None)
    assert result.seconds < LONG / 2


def test_several_at_once_do_not_see_one_another(sandbox):
    quiet = "import os, time; open('/tmp/mine', 'x'); time.sleep(0.3); print(len(os.listdir('/proc')), os.getpid())"
    programs = [quiet, "while True: pass", quiet, "while True: print('x')", quiet, "import os\nos.kill(-1, 9)", quiet]
    brief = replace(sandbox, seconds=2)
    with ThreadPoolExecutor(4) as pool:
        run = pool.map(lambda text: brief.run({"a.py": text}, [brief.python, "-I", "-S", "/box/a.py"]), programs)
        results = list(run)
    assert [result.reason for result in results] == [None, "timeout", None, "output", None, None, None]
    assert len({results[i].stdout for i in (0, 2, 4, 6)}) == 1
    assert all(results[i].returncode == 0 for i in (0, 2, 4, 6))


def test_without_isolation_it_refuses(without_isolation):
    with pytest.raises(InputError, match=r"(?s)namespaces are forbidden.*apt install bubblewrap.*--allow_unsafe"):
        Sandbox()


def test_unless_told_that_it_may_go_on(without_isolation, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open", raising=False)  # not every Python has it
    sandbox = Sandbox(seconds=LONG, memory_mb=512, processes=8, output_kb=64, allow_unsafe=True)
    short = replace(sandbox, seconds=SHORT)
    assert sandbox.protection.startswith("NO ISOLATION")
    files = {"a.py": "import sys\nfrom b import c\nprint(c, *sys.argv[1:])", "b.py": "c = 1"}
    fine = sandbox.run(files, [sandbox.python, "/box/a.py", "/opt/boxed/box/a", "/boxes"])
    assert (fine.stdout, fine.returncode) == ("1 /opt/boxed/box/a /boxes\n", 0)
    assert short.run({"a.py": "while True: pass"}, [sandbox.python, "/box/a.py"]).reason == "timeout"
    assert sandbox.run({"a.py": "while True: print(1)"}, [sandbox.python, "/box/a.py"]).reason == "output"
    assert "MemoryError" in sandbox.run({"a.py": "bytearray(10 << 30)"}, [sandbox.python, "/box/a.py"]).stderr
    many = "import subprocess\nwhile True: subprocess.Popen(['sleep', '30'])"
    assert sandbox.run({"a.py": many}, [sandbox.python, "/box/a.py"]).reason == "processes"
    monkeypatch.delattr(os, "waitid")
    with pytest.raises(InputError, match=r"on Linux, or on macOS with Python 3\.13"):
        Sandbox(allow_unsafe=True)


def test_a_sandbox_that_cannot_start_is_not_a_program_that_failed(sandbox, monkeypatch):
    monkeypatch.setattr(module, "_INSIDE", Path("/nowhere/inside.py"))
    with pytest.raises(RuntimeError, match="did not start"):
        sandbox.run({}, [sandbox.python, "-c", "pass"])


@pytest.mark.parametrize("setting", [{"seconds": 0}, {"memory_mb": -1}, {"processes": 0}, {"backend": "docker"}])
def test_impossible_settings(setting):
    with pytest.raises(InputError):
        Sandbox(**setting)


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", ""])
def test_files_stay_in_the_box(sandbox, name):
    with pytest.raises(ValueError, match="relative path"):
        sandbox.run({name: "x"}, [sandbox.python, "-c", "pass"])


# Programs that take more memory than they may, in every way that the kernel offers


def test_ten_gigabytes_at_once(attack):
    result = attack("data = bytearray(10 << 30)")
    assert result.returncode == 1
    assert "MemoryError" in result.stderr


def test_ten_gigabytes_in_many_processes(attack):
    program = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        held = [b"x" * (10 << 20) for _ in range(50)]
        time.sleep(30)
time.sleep(30)
"""
    assert attack(program).reason == "memory"


def test_memory_that_no_limit_would_count(attack):
    program = """
import ctypes, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
tries = {
    "shared": lambda: mmap.mmap(-1, 1 << 20),
    "memfd": lambda: os.memfd_create("x"),
    "segment": lambda: 1 / (libc.shmget(0, 1 << 20, 0o1600) + 1),
    "queue": lambda: 1 / (libc.msgget(0, 0o1600) + 1),
}
for name, attempt in tries.items():
    try: print(name, attempt())
    except (OSError, ZeroDivisionError): pass
"""
    result = attack(program)
    assert (result.stdout, result.returncode) == ("", 0)


SIX = """
import mmap, os, socket, time
def fill(connection):
    connection.setblocking(False)
    try:
        while True: print(connection.send(b"x" * 65536), flush=True)
    except OSError: pass
for _ in range(6):
    if os.fork() == 0:
        held = []
HOLDING
        time.sleep(30)
        os._exit(0)
for _ in range(6): os.wait()
"""
"""Each process prints the bytes that the kernel holds for it; one that is refused them ends with an error."""
HOLDING = {
    "zero": """
        held = mmap.mmap(os.open("/dev/zero", os.O_RDWR), 200 << 20, mmap.MAP_SHARED)
        for at in range(0, 200 << 20, 10 << 20):
            for page in range(at, at + (10 << 20), 4096): held[page] = 1
            held.madvise(mmap.MADV_DONTNEED, at, 10 << 20)
            print(10 << 20, flush=True)
""",
    "unix": """
        while True:
            try: held.append(socket.socketpair())
            except OSError: break
            try: held[-1][0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
            except OSError: pass
            fill(held[-1][0])
""",
    "tcp": """
        server = socket.create_server(("127.0.0.1", 0), backlog=200)
        while True:
            try: held.append((socket.create_connection(server.getsockname()), server.accept()[0]))
            except OSError: break
            fill(held[-1][0])
""",
}


@pytest.mark.parametrize("kind", HOLDING)
def test_memory_that_only_the_kernel_holds(attack, kind):
    """Limit 256 MB: it is refused, or counted by its most."""
    result = attack(SIX.replace("HOLDING", HOLDING[kind]))
    held = sum(map(int, result.stdout.split()))
    if kind == "unix":
        assert result.reason == "memory" and 0 < held < 1 << 29, f"{held >> 20} MB"
    else:
        assert (result.reason, held, result.stderr.count("Traceback")) == (None, 0, 6)
