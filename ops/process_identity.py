"""Where a process runs, written so that a neighbour on the same machine can tell that it died.

A node killed with -9 leaves its claims behind until they expire; a neighbour that can see the
process is gone takes over at once. Of processes on other machines, or in containers that do not
see each other's processes, nothing is known: they are waited for.
"""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from hashlib import sha3_256
from pathlib import Path

import msgspec

from rookery.bus.clock import entropy

__all__ = [
    "ProcessIdentity",
    "is_dead",
    "is_token_dead",
    "process_name",
    "process_token",
    "this_process",
]

_TOKEN = re.compile(r".*\.[0-9a-f]{12}([0-9a-f]{12})([0-9a-f]{6})([0-9a-f]{12})", re.DOTALL)
"""What an intent names its process by: the epoch, the machine, the pid, when it was born."""


class ProcessIdentity(msgspec.Struct, frozen=True):
    """One process, told apart from a later one with the same id."""

    host: str
    boot: str
    pid: int
    born: str


def this_process() -> ProcessIdentity:
    """This process."""
    return ProcessIdentity(platform.node(), _boot(), os.getpid(), _start_ticks(os.getpid()))


def process_name() -> str:
    """A name no other process has: a restarted node is another one."""
    host = "".join(c if c.isalnum() or c in "-_" else "-" for c in platform.node())[:32]
    return f"{host or 'node'}-{os.getpid()}-{entropy(2).hex()}"


def process_token() -> str:
    """This process, to be written behind an epoch: a claim is soon gone, and so is what it says of
    its holder, but an intent says for ever which process recorded it. Empty where the system does
    not say when a process was born."""
    born = _start_ticks(os.getpid())
    return f"{_machine()}{os.getpid():06x}{int(born):012x}" if born else ""


def is_token_dead(process: str) -> bool:
    """Whether the process of an epoch with its mark is known to have ended."""
    mark = _TOKEN.fullmatch(process)
    if mark is None or mark[1] != _machine():
        return False
    return _has_ended(int(mark[2], 16), str(int(mark[3], 16)))


def is_dead(presence: bytes) -> bool:
    """Whether the process an encoded presence names is known to be gone."""
    try:
        other = msgspec.json.decode(presence, type=ProcessIdentity)
    except msgspec.DecodeError:
        return False
    if other.host != platform.node() or other.boot != _boot():
        return False
    return _has_ended(other.pid, other.born)


def _has_ended(pid: int, born: str) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return _start_ticks(pid) != born


def _machine() -> str:
    """This machine since its start, in 12 letters."""
    return sha3_256(f"{platform.node()}/{_boot()}".encode()).hexdigest()[:12]


def _boot() -> str:
    """Tells machines of one name apart, a machine from itself before a restart, and containers
    that number their processes differently."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    return ""


def _start_ticks(pid: int) -> str:
    """When a process started, in ticks since boot; empty where the system does not say, and of
    one that has ended and only waits for its parent to notice."""
    with suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    return ""
