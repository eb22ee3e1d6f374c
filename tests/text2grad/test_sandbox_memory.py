"""Programs that take more memory than they may, in every way that the kernel offers."""

import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")


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
