"""What a process has used so far: processor time and switches, in all and by the role of a thread.

A node under test reports its own usage, since only the process itself knows the names of its
threads. The usage of another process is read from ``/proc``. Without ``/proc`` (outside Linux) the
list of threads is empty.
"""

from __future__ import annotations

import os
import re
import threading
from collections import defaultdict
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import msgspec

__all__ = ["ProcessUsage", "ThreadUsage", "resident_bytes", "usage_here", "usage_of"]

_ROLLUP = Path("/proc/self/smaps_rollup")
_ROLES = (
    (r"rookery-bus", "bus loop"),
    (r".*Actor-\d+", "actors"),
    (r"sandbox-beat", "sandbox ticks"),
    (r"sandbox.*", "sandbox"),
    (r"rookery-tools?", "tool threads"),
    (r"MainThread", "main thread"),
)
"""The first pattern that matches a thread's name is its role."""
NATIVE, OTHER = "native threads", "other threads"


class ThreadUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The threads of one role."""

    role: str
    cpu_s: float = 0.0
    voluntary: int = 0
    involuntary: int = 0


class ProcessUsage(msgspec.Struct, frozen=True, kw_only=True):
    """A process with all threads, also those that have ended."""

    cpu_s: float
    voluntary: int
    """Switches: the thread waited for something."""
    involuntary: int
    """Switches: the system gave the processor to another thread."""
    resident_bytes: int = 0
    threads: tuple[ThreadUsage, ...] = ()

    def since(self, before: ProcessUsage) -> ProcessUsage:
        """What was used after ``before``; the memory is that of now."""
        earlier = {thread.role: thread for thread in before.threads}
        return ProcessUsage(
            cpu_s=self.cpu_s - before.cpu_s,
            voluntary=self.voluntary - before.voluntary,
            involuntary=self.involuntary - before.involuntary,
            resident_bytes=self.resident_bytes,
            threads=tuple(
                _difference(thread, earlier.get(thread.role, ThreadUsage(role=thread.role)))
                for thread in self.threads
            ),
        )


def usage_here() -> ProcessUsage:
    """The usage of this process, with the roles of its threads."""
    used = getrusage(RUSAGE_SELF)
    return ProcessUsage(
        cpu_s=used.ru_utime + used.ru_stime,
        voluntary=used.ru_nvcsw,
        involuntary=used.ru_nivcsw,
        resident_bytes=resident_bytes(),
        threads=_by_role("self", {t.native_id: t.name for t in threading.enumerate()}),
    )


def usage_of(pid: int) -> ProcessUsage:
    """The usage of another process on Linux; its threads have no names there."""
    threads = _by_role(str(pid), {})
    return ProcessUsage(
        cpu_s=sum(thread.cpu_s for thread in threads),
        voluntary=sum(thread.voluntary for thread in threads),
        involuntary=sum(thread.involuntary for thread in threads),
    )


def resident_bytes(pid: int | str = "self") -> int:
    """The memory of a process, with pages shared between processes counted proportionally.
    Where the system does not report that: the peak of this process's resident memory."""
    rollup = Path(f"/proc/{pid}/smaps_rollup")
    if _ROLLUP.exists():
        (kilobytes,) = re.findall(r"^Pss:\s+(\d+) kB", rollup.read_text(), re.MULTILINE)
        return int(kilobytes) * 1024
    return getrusage(RUSAGE_SELF).ru_maxrss


def _by_role(process: str, names: dict[int | None, str]) -> tuple[ThreadUsage, ...]:
    """The threads of ``/proc/<process>/task``, summed up by role."""
    summed: defaultdict[str, list[ThreadUsage]] = defaultdict(list)
    tasks = Path("/proc", process, "task")
    for task in tasks.iterdir() if tasks.exists() else ():
        try:
            used = _thread(task, names.get(int(task.name)))
        except (FileNotFoundError, ProcessLookupError):
            continue  # The thread ended while it was read.
        summed[used.role].append(used)
    return tuple(
        ThreadUsage(
            role=role,
            cpu_s=sum(thread.cpu_s for thread in threads),
            voluntary=sum(thread.voluntary for thread in threads),
            involuntary=sum(thread.involuntary for thread in threads),
        )
        for role, threads in sorted(summed.items())
    )


def _thread(task: Path, name: str | None) -> ThreadUsage:
    status = (task / "status").read_text()
    switches = dict(re.findall(r"^(\w+)_ctxt_switches:\s+(\d+)$", status, re.MULTILINE))
    return ThreadUsage(
        role=_role(name),
        cpu_s=_cpu_s(task),
        voluntary=int(switches["voluntary"]),
        involuntary=int(switches["nonvoluntary"]),
    )


def _cpu_s(task: Path) -> float:
    """Nanoseconds where the kernel counts them (``schedstat``), else clock ticks of 10 ms."""
    schedule = task / "schedstat"
    if schedule.exists():
        return int(schedule.read_text().split()[0]) / 1e9
    fields = (task / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _role(name: str | None) -> str:
    if name is None:
        return NATIVE
    return next((role for pattern, role in _ROLES if re.fullmatch(pattern, name)), OTHER)


def _difference(now: ThreadUsage, before: ThreadUsage) -> ThreadUsage:
    """A role whose threads have ended in between has used nothing that is known."""
    return ThreadUsage(
        role=now.role,
        cpu_s=max(0.0, now.cpu_s - before.cpu_s),
        voluntary=max(0, now.voluntary - before.voluntary),
        involuntary=max(0, now.involuntary - before.involuntary),
    )
