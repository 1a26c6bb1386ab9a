"""Kills what an interrupted pytest leaves: nodes, workers and commands that its tests have started.

Every process of pytest starts a sweeper, in a session of its own. Only pytest has the other end of
the sweeper's stdin, so the kernel closes it even after a ``kill -9``. What tests start inherits a
variable with the number of its pytest, by which the sweeper finds it in ``/proc``. A server has not
the variable, and its guard ends it (``rookery.bus.server.parent_guard``).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

__all__ = ["start_sweeper"]

VARIABLE = "PYTEST_STARTED_BY"
_PAUSE_S = 0.2
_EMPTY_LOOKS = 3
"""A process may be forked while another is killed: so many looks in a row have to find none."""


def start_sweeper() -> None:
    """Mark what this process starts from now on, and have it killed when this process has ended."""
    if not sys.platform.startswith("linux"):
        return
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    os.environ[VARIABLE] = number = uuid4().hex
    sweeper = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, number],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    _sweepers.append(sweeper)


_sweepers: list[subprocess.Popen[bytes]] = []
"""A sweeper ends with us: while it is in use, its stdin is open."""


def sweep(number: str) -> None:
    """Kill the marked processes, until there are none."""
    empty_looks = 0
    while empty_looks < _EMPTY_LOOKS:
        empty_looks += 1
        for pid in _marked(f"{VARIABLE}={number}".encode()):
            empty_looks = 0
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def _marked(mark: bytes) -> Iterator[int]:
    for folder in Path("/proc").iterdir():
        with suppress(OSError):  # It has ended, or is of another user.
            if folder.name.isdecimal() and mark in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)


def main() -> None:
    sys.stdin.read()
    sweep(sys.argv[1])


if __name__ == "__main__":
    main()
