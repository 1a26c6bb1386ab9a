"""A program that runs a server of tools and ends it, with all it has started, when its node ends.

``python process_guard.py <control> <memory> <cpu> <folder> <command...>``: only the node holds the
other end of ``control``, so the kernel closes it even after a ``kill -9``. The server gets the
standard streams of this program, its environment and no other descriptor, runs in a session of its
own, and is killed by the kernel if this program is. What it starts is adopted by this program when
it is orphaned (on Linux), so that no daemon of it is left. The exit code is that of the server.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

__all__ = ["run"]

NOT_FOUND = 127
GRACE_S = 2.0
POLL_S = 0.02
_SET_DEATH_SIGNAL, _SET_SUBREAPER = 1, 36  # prctl(2)


def run(control: int, limits: Mapping[int, int], folder: str, command: list[str]) -> int:
    """The exit code of ``command``; 128 and more say which signal ended it. ``limits``: by
    resource; 0 is none."""
    _control_process(_SET_SUBREAPER, 1)
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    guard, child = os.getpid(), os.fork()
    if child == 0:
        _execute(guard, limits, folder, command)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # The guard ends with the server, never before it.
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)  # The ends of the server's streams are the server's alone.
    status = _wait(child, control, wake)
    if status is None:
        _kill_group(child, signal.SIGTERM)
        status = _wait(child, -1, wake, GRACE_S)
    _kill_group(child, signal.SIGKILL)
    if status is None:
        status = _wait(child, -1, wake)
    _kill_descendants()
    return 1 if status is None else status


def _execute(guard: int, limits: Mapping[int, int], folder: str, command: list[str]) -> None:
    """Become the server."""
    try:
        os.setsid()
        _control_process(_SET_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(NOT_FOUND)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for limited, most in limits.items():
            if most:
                resource.setrlimit(limited, (most, most))
        os.chdir(folder)
        os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        os.execvp(command[0], command)  # noqa: S606 - no shell is wanted.
    except OSError as error:
        os.write(2, f"{command[0]} cannot be run: {error.strerror}\n".encode())
    finally:
        os._exit(NOT_FOUND)


def _wait(child: int, control: int, wake: int, timeout_s: float | None = None) -> int | None:
    """The exit code; ``None`` if ``control`` was closed, or if the time is over."""
    readable = [wake] if control < 0 else [wake, control]
    while True:
        ended, status = _reap(child)
        if ended:
            return status
        found, _, _ = select.select(readable, [], [], timeout_s)
        if wake in found:
            os.read(wake, 4096)
        elif not found or not os.read(control, 1):
            return None


def _reap(child: int) -> tuple[bool, int]:
    """Whether the server has ended, and its exit code; ended orphans of it are released, too."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True, 1
        if pid == 0:
            return False, 0
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return True, code if code >= 0 else 128 - code


def _kill_group(leader: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _kill_descendants() -> None:
    """Kill what the server has started outside its group: each is a child of this program, or
    becomes one when its own parent has ended."""
    for _ in range(int(GRACE_S / POLL_S)):
        for pid in _children():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not _children():
            return
        select.select([], [], [], POLL_S)


def _children() -> list[int]:
    own = os.getpid()
    try:
        listed = Path(f"/proc/{own}/task/{own}/children").read_text(encoding="ascii")
    except OSError:  # No Linux: what has left the group of the server is not adopted.
        return []
    return list(map(int, listed.split()))


def _control_process(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    control, memory, cpu = map(int, sys.argv[1:4])
    limits = {resource.RLIMIT_AS: memory, resource.RLIMIT_CPU: cpu}
    sys.exit(run(control, limits, sys.argv[4], sys.argv[5:]))
