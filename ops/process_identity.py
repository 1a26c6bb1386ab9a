"""The identity of a process, by which another node on the same machine detects that it has ended.

A node killed with -9 leaves claims behind until they expire. A node on the same machine sees that
the process has ended and takes over at once. For processes on other machines, or in containers with
their own processes, nodes wait until the claims expire.
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
"""How an intent names its process: the epoch, the machine, the pid, the start time."""


class ProcessIdentity(msgspec.Struct, frozen=True):
    """One process, distinct from a later one with the same id."""

    host: str
    boot: str
    pid: int
    born: str


def this_process() -> ProcessIdentity:
    """The identity of this process."""
    return ProcessIdentity(platform.node(), _boot(), os.getpid(), _start_ticks(os.getpid()))


def process_name() -> str:
    """A name that no other process has, so a restarted node is another node."""
    host = "".join(c if c.isalnum() or c in "-_" else "-" for c in platform.node())[:32]
    return f"{host or 'node'}-{os.getpid()}-{entropy(2).hex()}"


def process_token() -> str:
    """This process as a suffix of an epoch. Claims expire, but an intent names its process forever.
    Empty where the system does not report a process's start time."""
    born = _start_ticks(os.getpid())
    return f"{_machine()}{os.getpid():06x}{int(born):012x}" if born else ""


def is_token_dead(process: str) -> bool:
    """Whether the process that an epoch names is known to have ended."""
    mark = _TOKEN.fullmatch(process)
    if mark is None or mark[1] != _machine():
        return False
    return _has_ended(int(mark[2], 16), str(int(mark[3], 16)))


def is_dead(presence: bytes) -> bool:
    """Whether the process of an encoded identity is known to have ended."""
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
    """This machine since its start, in 12 hex digits."""
    return sha3_256(f"{platform.node()}/{_boot()}".encode()).hexdigest()[:12]


def _boot() -> str:
    """An id that differs between machines of one name, restarts of a machine, and containers with
    their own process numbers."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    return ""


def _start_ticks(pid: int) -> str:
    """When a process started, in ticks since boot; empty if the system does not report it, and for
    a process that has ended but is not reaped yet."""
    with suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    return ""
