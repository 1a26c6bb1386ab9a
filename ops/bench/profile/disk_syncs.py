"""The fsyncs of a process, counted by ``strace``: Linux counts them nowhere else by process.

A traced server is slower, so its fsyncs are counted in a pass of their own. Without ``strace``, or
where the system does not let it attach, there is a reason instead of a count.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rookery.bus.clock import wait_until

__all__ = ["SyncCount", "count_syncs"]

_CALLS = ("fsync", "fdatasync")
_PATIENCE_S = 10.0
_TRACER = "TracerPid:"


class SyncCount:
    """The count of a traced block, known after its end."""

    def __init__(self) -> None:
        self.syncs = 0
        self.reason = ""
        """Why nothing was counted."""


@contextmanager
def count_syncs(pid: int, scratch: Path) -> Iterator[SyncCount]:
    """Count the fsyncs of ``pid`` within this block; ``scratch`` is a folder for the trace."""
    count = SyncCount()
    strace = shutil.which("strace")
    if strace is None:
        count.reason = "strace is not installed (Debian package strace)"
        yield count
        return
    trace = scratch / "fsyncs"
    command = [strace, "-f", "-qq", "-e", f"trace={','.join(_CALLS)}", "-o", str(trace)]
    tracer = subprocess.Popen(
        [*command, "-p", str(pid)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: tracer.poll() is not None or _is_traced(pid), _PATIENCE_S)
        yield count
    finally:
        tracer.send_signal(signal.SIGINT)
        _, complaint = tracer.communicate(timeout=_PATIENCE_S)
    lines = trace.read_text().splitlines() if trace.exists() else []
    count.syncs = sum(_begins(line) for line in lines)
    if not lines and complaint:
        count.reason = f"strace: {complaint.strip().splitlines()[-1]}"


def _is_traced(pid: int) -> bool:
    """Whether a tracer is attached to every thread."""
    return all(
        f"{_TRACER}\t0" not in status.read_text()
        for status in Path("/proc", str(pid), "task").glob("*/status")
    )


def _begins(line: str) -> bool:
    """Whether a line of the trace begins a call: ``resumed`` lines only end one."""
    return any(f" {call}(" in line for call in _CALLS)
