"""Starts ``rookery`` by forking a process that has imported it and has the schemas of its verbs: a
third of a second of CPU less.

What starts is a process of its own, with its own arguments, environment, folder, files and signals;
only what Python reads for itself when it starts is shared. There is one parent a test process, and
one for each module that only some of them import, on Linux. Elsewhere, and where Python is to read
something else, ``can_fork`` is false and processes start as users start them.
"""

from __future__ import annotations

import atexit
import faulthandler
import functools
import gc
import importlib
import io
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name
from types import TracebackType
from typing import Any, NoReturn

__all__ = ["Forked", "Piped", "can_fork", "fork", "fork_piped"]

FOLLOWED = {"PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONFAULTHANDLER"}
"""What a forked process reads of Python's settings, or may do without. One with a
``sitecustomize.py`` on its path imports it, after Rookery."""
MODULES = (
    "rookery.ops.cli.commands.up",
    "rookery.ops.cli.commands.run",
    "rookery.ops.cli",
    "quickjs_rs",
    "uvloop",
)
MAIN = "rookery.ops.cli:main"
_NUMBER = struct.Struct("!I")


class Forked:
    """A process of which the fork server tells when it has ended, as ``subprocess.Popen`` does."""

    returncode: int | None = None

    def __init__(self, pid: int, ended: int, stdout: int) -> None:
        self.pid = pid
        self.stdout = os.fdopen(stdout, encoding="utf-8")
        self._ended = os.fdopen(ended, "rb", buffering=0)
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """The exit code, negative for a signal's number; ``None`` while it runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def _look(self, timeout: float | None) -> int | None:
        with self._lock:
            if self._ended.closed:
                return self.returncode
            if not select.select([self._ended], [], [], timeout)[0]:
                return None
            with self._ended:
                (status,) = _NUMBER.unpack(self._ended.read(_NUMBER.size))
            self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # The fork server is about to say that it has ended.
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Piped(Forked):
    """One with an input, and perhaps an error output that is to be read."""

    def __init__(self, forked: tuple[int, int, int], stdin: int, stderr: int | None) -> None:
        super().__init__(*forked)
        self.stdin = os.fdopen(stdin, "w", encoding="utf-8")
        self.stderr = None if stderr is None else os.fdopen(stderr, encoding="utf-8")

    def communicate(self, text: str = "", timeout: float | None = None) -> tuple[str, str]:
        """End its input, read all that it prints, and wait for its end."""
        errors: list[str] = []
        reading = threading.Thread(target=lambda: errors.append(self._errors()))
        reading.start()
        with suppress(BrokenPipeError), self.stdin:
            self.stdin.write(text)
        with self.stdout:
            output = self.stdout.read()
        reading.join()
        self.wait(timeout)
        return output, errors[0]

    def _errors(self) -> str:
        if self.stderr is None:
            return ""
        with self.stderr:
            return self.stderr.read()

    def __enter__(self) -> Piped:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in (self.stdin, self.stdout, self.stderr):
            if file is not None:
                with suppress(BrokenPipeError):
                    file.close()
        self.wait()


def can_fork(env: Mapping[str, str]) -> bool:
    settings = {name for name in env if name.startswith("PYTHON")}
    return sys.platform == "linux" and settings <= FOLLOWED


def fork(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    stderr: int,
    imported: str = "",
) -> Forked:
    """``rookery`` with these arguments, whose output is to be read and whose input is empty.
    ``imported``: one more module that its parent has imported, because that takes long."""
    with open(os.devnull, "rb") as nothing:
        wanted = _wanted(arguments, env, cwd)
        return Forked(*_parent(imported).fork(wanted, nothing.fileno(), stderr))


def fork_piped(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    stderr: int | None = None,
    main: str = MAIN,
) -> Piped:
    """The same with an input. ``main``: another function that is called for the exit code. Without
    ``stderr`` its errors are to be read, too."""
    reads, stdin = os.pipe()
    errors, writes = os.pipe() if stderr is None else (None, stderr)
    try:
        forked = _parent().fork(_wanted(arguments, env, cwd, main), reads, writes)
    finally:
        os.close(reads)
        if stderr is None:
            os.close(writes)
    return Piped(forked, stdin, errors)


def _wanted(arguments: Sequence[str], env: Mapping[str, str], cwd: Path, main: str = MAIN) -> bytes:
    argv = ["rookery", *arguments]
    wanted = {"argv": argv, "env": dict(env), "cwd": str(cwd), "main": main}
    return json.dumps(wanted).encode()


@functools.cache
def _parent(imported: str = "") -> _Parent:
    return _Parent(imported)


class _Parent:
    """The fork server, as its one client sees it. It ends with us."""

    def __init__(self, imported: str) -> None:
        self._lock = threading.Lock()
        self._line, its = socket.socketpair()
        with its:
            command = [sys.executable, __file__, str(its.fileno()), imported]
            self._process = subprocess.Popen(
                command, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL
            )
        atexit.register(self._end)

    def fork(self, wanted: bytes, stdin: int, stderr: int) -> tuple[int, int, int]:
        """Its id, and the ends of two pipes: of its end, and of its output."""
        reads, stdout = os.pipe()
        ended, ends = os.pipe()
        with self._lock:
            head = _NUMBER.pack(len(wanted))
            socket.send_fds(self._line, [head], [stdin, stdout, stderr, ends])
            self._line.sendall(wanted)
            os.close(stdout)
            os.close(ends)
            (pid,) = _NUMBER.unpack(self._line.recv(_NUMBER.size))
        return pid, ended, reads

    def _end(self) -> None:
        self._line.close()
        self._process.wait()


class _Server:
    """Forks, and tells of ends. ``serve`` returns in every child, with the name of the function
    that it calls, and in the server never."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._children: dict[int, int] = {}
        self._wake, self._woken = os.pipe()
        os.set_blocking(self._woken, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def serve(self) -> str:
        while True:
            ready, _, _ = select.select([self._line, self._wake], [], [])
            if self._wake in ready:
                os.read(self._wake, 4096)
                self._tell_of_ends()
            if self._line in ready and (main := self._fork_one()):
                return main

    def _fork_one(self) -> str:
        head, files, _, _ = socket.recv_fds(self._line, _NUMBER.size, 4)
        if not head:
            os._exit(0)
        (size,) = _NUMBER.unpack(head)
        wanted = self._line.recv(size, socket.MSG_WAITALL)
        pid = os.fork()
        if pid == 0:
            return self._become(wanted, files)
        *its, ends = files
        for file in its:
            os.close(file)
        self._children[pid] = ends
        self._line.sendall(_NUMBER.pack(pid))
        return ""

    def _tell_of_ends(self) -> None:
        for pid, ends in [*self._children.items()]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._children[pid]
                with os.fdopen(ends, "wb") as pipe:
                    pipe.write(_NUMBER.pack(status))

    def _become(self, wanted: bytes, files: list[int]) -> str:
        """What the system and Python do for a process that starts; the function that it calls."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, file in enumerate(files[:3]):
            os.dup2(file, number)
        self._line.detach()
        self._children.clear()
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        asked = json.loads(wanted)
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["env"])
        sys.argv[:] = asked["argv"]
        sys.stdout, sys.stderr = _text(1), _text(2, errors="backslashreplace", line_buffering=True)
        sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        importlib.invalidate_caches()
        if os.environ.get("PYTHONFAULTHANDLER"):
            faulthandler.enable(file=2)
        with suppress(ModuleNotFoundError):
            importlib.import_module("sitecustomize")
        return str(asked["main"])


def _text(file: int, **how: Any) -> io.TextIOWrapper:
    raw = io.FileIO(file, "wb", closefd=False)
    if os.environ.get("PYTHONUNBUFFERED"):
        return io.TextIOWrapper(raw, encoding="utf-8", write_through=True, **how)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", **how)


def _make_schemas() -> None:
    """A node makes them once, when it starts: a third of its CPU until it serves."""
    metrics = sys.modules["rookery.ops.metrics"].NodeMetrics("")
    verbs = sys.modules["rookery.schemas.commands"].COMMANDS
    sys.modules["rookery.ops.probes"].build_service("", "", verbs, metrics, now_ms=0)


def main() -> None:
    sys.path.pop(0)  # The folder of this file, which no other start knows.
    line, imported = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    for name in filter(None, (*MODULES, imported)):
        importlib.import_module(name)
    _make_schemas()
    gc.collect()
    gc.freeze()
    name = _Server(line).serve()
    _end(int(resolve_name(name)() or 0))


def _end(code: int) -> NoReturn:
    """What Python does when a process ends, but for its objects: to free those that it shares with
    its parent takes as much CPU as a command."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = code or 120
    os._exit(code)


if __name__ == "__main__":
    main()
