"""What a sandboxed process does before it becomes the untrusted program: lock itself in, then ``exec``.

Started as a script by :class:`text2grad.sandbox.Sandbox`, never imported; standard library only. It reads its orders
as JSON from standard input. Under ``unshare`` it first builds the file system (bubblewrap has done so already) and
stays behind as process 1; in every case the program then gets another user id (started as root), no capabilities, a
filter on system calls and its resource limits.
"""

import ctypes
import errno
import json
import os
import platform
import resource
import signal
import stat
import struct
import sys

LIBC = ctypes.CDLL(None, use_errno=True)

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_REMOUNT = 1, 2, 4, 8, 4096, 16384, 32
MNT_DETACH = 2
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 4, 22, 24, 38
SECCOMP_MODE_FILTER = 2

# System calls by machine: (audit architecture, clone, mmap, socket, setsockopt, those refused outright). Refused are
# the calls that hold memory outside the process (no limit would count it), new namespaces, and kernel interfaces that
# no test needs.
SYSTEM_CALLS = {
    "x86_64": (
        0xC000003E, 56, 9, 41, 54, {
            "shmget": 29, "msgget": 68, "semget": 64, "mq_open": 240, "memfd_create": 319, "memfd_secret": 447,
            "unshare": 272, "setns": 308, "clone3": 435, "mount": 165, "umount2": 166, "pivot_root": 155,
            "chroot": 161, "fsopen": 430, "open_tree": 428, "move_mount": 429, "mount_setattr": 442, "ptrace": 101,
            "process_vm_readv": 310, "process_vm_writev": 311, "bpf": 321, "perf_event_open": 298,
            "userfaultfd": 323, "io_uring_setup": 425, "add_key": 248, "request_key": 249, "keyctl": 250,
            "personality": 135, "open_by_handle_at": 304, "fanotify_init": 300, "modify_ldt": 154,
        },
    ),
    "aarch64": (
        0xC00000B7, 220, 222, 198, 208, {
            "shmget": 194, "msgget": 186, "semget": 190, "mq_open": 180, "memfd_create": 279, "memfd_secret": 447,
            "unshare": 97, "setns": 268, "clone3": 435, "mount": 40, "umount2": 39, "pivot_root": 41,
            "chroot": 51, "fsopen": 430, "open_tree": 428, "move_mount": 429, "mount_setattr": 442, "ptrace": 117,
            "process_vm_readv": 270, "process_vm_writev": 271, "bpf": 280, "perf_event_open": 241,
            "userfaultfd": 282, "io_uring_setup": 425, "add_key": 217, "request_key": 218, "keyctl": 219,
            "personality": 92, "open_by_handle_at": 265, "fanotify_init": 262,
        },
    ),
}  # fmt: skip
NEW_NAMESPACES = 0x7E020080  # every CLONE_NEW* flag
SHARED_ANONYMOUS = 0x21  # MAP_SHARED | MAP_ANONYMOUS: pages that leave the resident set and stay in memory
UNIX = 1  # the one family of sockets: others do not obey network namespaces (vsock), or grow their buffers (TCP)
DEVICES = ("null", "full", "random", "urandom")  # not zero: mapped shared, it is memory that no process owns
SOL_SOCKET, BUFFER_SIZES = 1, (7, 8, 32, 33)  # SO_SNDBUF, SO_RCVBUF and both of them by force


def call(name: str, *arguments) -> None:
    """A libc function that fails with OSError."""
    if getattr(LIBC, name)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    call("mount", source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())


def lock(target: str) -> None:
    """Make a mount and all below it read-only, nosuid and nodev (mount_setattr, Linux 5.12)."""
    attributes = struct.pack("QQQQ", MS_NOSUID | MS_NODEV | MS_RDONLY, 0, 0, 0)
    at_fdcwd, at_recursive = -100, 0x8000
    call("syscall", 442, at_fdcwd, target.encode(), at_recursive, attributes, ctypes.c_size_t(len(attributes)))


def build_root(root: str, read_only: dict, size: int) -> None:
    """Make ``root`` the file system: what is bound read-only, a few devices, and two writable folders of ``size``."""
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,nr_inodes=4k,mode=755")
    for target in ("/tmp", "/dev/shm"):  # first, for what is bound may lie inside one: a project under /tmp
        os.makedirs(root + target)
        mount("tmpfs", root + target, "tmpfs", MS_NOSUID | MS_NODEV, f"size={size},nr_inodes=20k,mode=1777")
    for target, source in read_only.items():
        place = root + target
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if os.path.islink(source):
            os.symlink(os.readlink(source), place)
            continue
        bind(source, place)
        lock(place)
    os.makedirs(root + "/proc")
    mount("proc", root + "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for name in DEVICES:
        bind("/dev/" + name, f"{root}/dev/{name}")
    for name, target in {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}.items():
        os.symlink(target, f"{root}/dev/{name}")
    old = root + "/.old"
    os.mkdir(old)
    call("pivot_root", root.encode(), old.encode())
    os.chdir("/")
    call("umount2", b"/.old", MNT_DETACH)
    os.rmdir("/.old")
    mount("none", "/", "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def bind(source: str, place: str) -> None:
    os.makedirs(os.path.dirname(place), exist_ok=True)
    if stat.S_ISDIR(os.stat(source).st_mode):
        os.makedirs(place, exist_ok=True)
    else:
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o644))
    mount(source, place, "", MS_BIND | MS_REC)


def drop_privileges(user) -> None:
    """Become ``user`` (started as root), without capabilities or a way to regain any."""
    for capability in range(64):
        LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    version_3 = struct.pack("Ii", 0x20080522, 0)
    call("capset", version_3, bytes(24))
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def filter_system_calls() -> None:
    """Load the seccomp filter, where the machine's system call numbers are known."""
    if platform.machine() not in SYSTEM_CALLS:
        return
    architecture, clone, map_memory, open_socket, set_option, refused = SYSTEM_CALLS[platform.machine()]
    load, equal, at_least, any_bit, both, give = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
    allow, kill = 0x7FFF0000, 0x80000000

    def fail(number: int) -> int:
        return 0x00050000 | number

    def argument(index: int) -> int:
        return 16 + 8 * index

    steps = [(load, 0, 0, 4), (equal, 1, 0, architecture), (give, 0, 0, kill), (load, 0, 0, 0)]
    steps += [(at_least, 0, 1, 0x40000000), (give, 0, 0, fail(errno.ENOSYS))]
    for name, number in refused.items():
        # glibc falls back to clone where clone3 does not exist; the rest is told that it may not.
        steps += [(equal, 0, 1, number), (give, 0, 0, fail(errno.ENOSYS if name == "clone3" else errno.EPERM))]
    steps += [(equal, 0, 4, clone), (load, 0, 0, argument(0)), (any_bit, 0, 1, NEW_NAMESPACES)]
    steps += [(give, 0, 0, fail(errno.EPERM)), (give, 0, 0, allow)]
    steps += [(equal, 0, 5, map_memory), (load, 0, 0, argument(3)), (both, 0, 0, SHARED_ANONYMOUS)]
    steps += [(equal, 0, 1, SHARED_ANONYMOUS), (give, 0, 0, fail(errno.EPERM)), (give, 0, 0, allow)]
    steps += [(equal, 0, len(BUFFER_SIZES) + 5, set_option), (load, 0, 0, argument(1))]
    steps += [(equal, 0, len(BUFFER_SIZES) + 2, SOL_SOCKET), (load, 0, 0, argument(2))]
    steps += [(equal, len(BUFFER_SIZES) - index, 0, option) for index, option in enumerate(BUFFER_SIZES)]
    steps += [(give, 0, 0, allow), (give, 0, 0, fail(errno.EPERM))]
    steps += [(equal, 0, 3, open_socket), (load, 0, 0, argument(0)), (equal, 1, 0, UNIX)]
    steps += [(give, 0, 0, fail(errno.EAFNOSUPPORT)), (give, 0, 0, allow)]

    program = b"".join(struct.pack("HBBI", *step) for step in steps)
    held = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(held))
    call("prctl", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0)


def limit(limits: dict) -> None:
    for name, value in limits.items():
        number = getattr(resource, "RLIMIT_" + name, None)
        if number is not None:
            soft, hard = value
            _, ceiling = resource.getrlimit(number)
            if ceiling != resource.RLIM_INFINITY:
                soft, hard = min(soft, ceiling), min(hard, ceiling)
            resource.setrlimit(number, (soft, hard))


def stay_as_init(child: int) -> None:
    """Process 1 of the namespace: reap what dies, leave when the program does (the kernel then kills the rest)."""
    call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)
    while True:
        pid, status = os.wait()
        if pid == child:
            os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def main() -> None:
    orders = json.load(sys.stdin)
    os.umask(0o022)  # the program's user must be able to enter the folders that are made here
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if orders["root"]:
        build_root(**orders["root"])
        child = os.fork()
        if child:
            for number in [orders["report"], *orders["pipes"]]:
                os.close(number)
            stay_as_init(child)
    os.chdir(orders["folder"])
    os.setpriority(os.PRIO_PROCESS, 0, max(5, os.getpriority(os.PRIO_PROCESS, 0)))  # to lower it needs a privilege
    limit(orders["limits"])
    if orders["isolated"]:
        drop_privileges(orders["user"])
        filter_system_calls()
    for name in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and what is ignored outlives exec
        signal.signal(name, signal.SIG_DFL)
    os.write(orders["report"], b"ready\n")
    for number in [orders["report"], *orders["pipes"]]:
        os.set_inheritable(number, True)
    try:
        os.execve(orders["argv"][0], orders["argv"], orders["environment"])
    except OSError as error:
        print(f"{orders['argv'][0]}: {error.strerror}", file=sys.stderr)
        os._exit(127)


if __name__ == "__main__":
    main()
