"""The environment of the peers: packages in the user's cache, and processes in groups."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from rookery.bus.clock import wait_until
from rookery.ops.bench.harness.process_usage import resident_bytes

__all__ = [
    "Child",
    "Environment",
    "PeerUnavailable",
    "Program",
    "family_of",
    "memory_bytes",
]

# --- child process --------------------------------------------------------------------------------

# The processes of a peer: servers and programs, each in its own group and ended by its own id.


_STOP_PATIENCE_S = 20.0
_START_PATIENCE_S = 60.0
_REPLY_PATIENCE_S = 400.0
_REASON_CHARACTERS_MAX = 200


class PeerUnavailable(Exception):
    """A peer cannot be measured here; the message is the reason."""


class Child:
    """A server of a peer, with its output in a log file."""

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        user: str | None = None,
        stdio: int = subprocess.DEVNULL,
    ) -> None:
        self.log = log
        with log.open("ab") as output:
            try:
                self.process = subprocess.Popen(
                    [str(part) for part in command],
                    stdin=stdio,
                    stdout=output if stdio == subprocess.DEVNULL else stdio,
                    stderr=output,
                    env={**os.environ, **(environment or {})},
                    cwd="/",
                    user=user,
                    start_new_session=True,
                )
            except OSError as error:
                raise PeerUnavailable(f"{command[0]} does not start: {error.strerror}") from None

    def kill(self) -> None:
        """End it and its children at once, as a crash does, and wait until they have ended."""
        family = family_of(self.process.pid)
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._close()
        wait_until(lambda: not any(_is_alive(pid) for pid in family), _STOP_PATIENCE_S)

    def stop(self) -> None:
        """Ask it to end, and kill what does not."""
        children = family_of(self.process.pid)[1:]
        self.process.terminate()
        try:
            self.process.wait(_STOP_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
        for pid in set(children) & set(_parents()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        self._close()

    def check_running(self) -> None:
        """``PeerUnavailable`` if it has ended, with its last words."""
        if self.process.poll() is not None:
            raise PeerUnavailable(f"it ended with {self.process.returncode}: {self._last_words()}")

    def _last_words(self) -> str:
        """The last line of the log that names an error, else the last."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        found = [line for line in lines if "error" in line.lower()] or lines
        return found[-1].strip()[-_REASON_CHARACTERS_MAX:] if found else "without a word"

    def _close(self) -> None:
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Program(Child):
    """A process that is asked in lines of JSON; its first line says that it is ready."""

    def __init__(self, command: Sequence[str | Path], log: Path) -> None:
        super().__init__(command, log, stdio=subprocess.PIPE)
        try:
            self.hello = self._receive(_START_PATIENCE_S)
        except BaseException:
            self.kill()
            raise

    def request(self, verb: str, **fields: object) -> Any:
        """The reply; ``PeerUnavailable`` if the program fails."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(msgspec.json.encode({"verb": verb, **fields}) + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise PeerUnavailable(f"{verb}: it has ended: {self._last_words()}") from None
        reply = self._receive(_REPLY_PATIENCE_S)
        if "error" in reply:
            raise PeerUnavailable(f"{verb}: {reply['error']}"[:_REASON_CHARACTERS_MAX])
        return reply

    def _receive(self, patience_s: float) -> Any:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], patience_s)
        line = self.process.stdout.readline() if readable else b""
        if not line:
            why = self._last_words() if readable else f"no answer within {patience_s:.0f} s"
            raise PeerUnavailable(why)
        return msgspec.json.decode(line)


def family_of(pid: int) -> list[int]:
    """The process and its descendants."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for child, parent in _parents().items():
        children[parent].append(child)
    found = [pid]
    for member in found:
        found += children[member]
    return found


def memory_bytes(pids: Sequence[int]) -> int:
    """The memory of these processes and their descendants, shared pages counted once."""
    total = 0
    for pid in pids:
        for member in family_of(pid):
            with suppress(OSError, ValueError):
                total += resident_bytes(member)
    return total


def _is_alive(pid: int) -> bool:
    """Whether the process still runs: what has ended but was not waited for does not."""
    try:
        fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX"


def _parents() -> dict[int, int]:
    found = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = entry.read_text().rpartition(")")[2].split()
            found[int(entry.parent.name)] = int(fields[1])
    return found


# --- environment ----------------------------------------------------------------------------------

# Packages are installed when they are first needed, from the indexes that pip and npm are
# configured with. What cannot be installed makes its peer ``PeerUnavailable``, and is tried again
# the next time.


_INSTALL_PATIENCE_S = 600
_VERSIONS = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(found))
"""


class Environment:
    """One folder with everything the peers need."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def python(self) -> Path:
        """The interpreter of the peers."""
        return self.folder / "venv" / "bin" / "python"

    @property
    def modules(self) -> Path:
        """The folder of npm's packages."""
        return self.folder / "node_modules"

    def provide_python(self, packages: Sequence[str]) -> dict[str, str]:
        """Install what is missing of these packages from PyPI; the versions."""
        if not self.python.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            _run([sys.executable, "-m", "venv", self.python.parents[1]])
        names = [package.partition("[")[0] for package in packages]
        found = self._versions(names)
        if found.keys() != set(names):
            _run([self.python, "-m", "pip", "install", "--quiet", *packages])
            found = self._versions(names)
        return found

    def provide_node(self, packages: Sequence[str]) -> dict[str, str]:
        """Install what is missing of these packages from npm; the versions."""
        if shutil.which("node") is None or shutil.which("npm") is None:
            raise PeerUnavailable("node and npm are not installed (Debian packages nodejs, npm)")
        manifests = {name: self.modules / name / "package.json" for name in packages}
        if not all(manifest.exists() for manifest in manifests.values()):
            self.modules.mkdir(parents=True, exist_ok=True)
            _run(["npm", "install", "--no-audit", "--no-fund", *packages], self.folder)
        return {name: _npm_version(manifest) for name, manifest in manifests.items()}

    def _versions(self, names: Sequence[str]) -> dict[str, str]:
        output = _run([self.python, "-c", _VERSIONS, *names])
        return msgspec.json.decode(output, type=dict[str, str])


def _npm_version(manifest: Path) -> str:
    version: str = msgspec.json.decode(manifest.read_bytes())["version"]
    return version


def _run(command: Sequence[str | Path], folder: Path | None = None) -> str:
    """The output of a command; ``PeerUnavailable`` with its last line if it fails."""
    name = " ".join(str(part) for part in command)[-80:]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=_INSTALL_PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        raise PeerUnavailable(f"`{name}` took longer than {_INSTALL_PATIENCE_S} s") from None
    except OSError as error:
        raise PeerUnavailable(f"`{name}`: {error.strerror}") from None
    if done.returncode != 0:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise PeerUnavailable(f"`{name}`: {lines[-1].strip() if lines else 'failed'}")
    return done.stdout
