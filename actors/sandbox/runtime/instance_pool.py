"""Instances of one guest that are ready, because making one is slow: made in advance, or used by
sessions before and reset since.

A source is checked in such an instance, too, and no other source before it is reset: a source may
be made to run while it is checked.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping

import msgspec

from rookery.actors.sandbox.contract import CheckStep, Guest, Instance, StepEnded, Tool
from rookery.actors.sandbox.runtime.introspection import callable_names
from rookery.actors.sandbox.runtime.suspension import complete
from rookery.actors.sandbox.sessions.guest_run import GuestRun, SavedRun, execute_to_stop
from rookery.actors.sandbox.sessions.meters import RunMeters
from rookery.actors.sandbox.sessions.run_log import RunLog
from rookery.schemas.run import SessionLimits

__all__ = ["InstancePool"]

_READY_MAX = 16
"""As many sessions may begin at once; each instance has 2 MB."""


class InstancePool:
    """The pool of one guest. Call ``fill`` after a run: making an instance delays other work."""

    def __init__(
        self, guest: Guest, count: int, submit: Callable[[Callable[[], None]], None]
    ) -> None:
        self.guest = guest
        self._count, self._submit = count, submit
        self._ready: deque[Instance] = deque()
        self._lock = threading.Lock()
        self._filling = self._closed = False

    def fill(self) -> None:
        with self._lock:
            if self._filling or self._closed or len(self._ready) >= self._count:
                return
            self._filling = True
        self._submit(self._add_instance)

    @property
    def is_ready(self) -> bool:
        try:
            return self._ready[-1].has_fibers
        except IndexError:
            return False

    def acquire(self) -> Instance:
        try:
            return self._ready.pop()  # The last used one, whose memory the processor may have.
        except IndexError:
            return self.guest.instance()

    def release(self, instance: Instance) -> None:
        """Reset an instance for another session, or close it."""
        try:
            if len(self._ready) < _READY_MAX and instance.reset():
                with self._lock:
                    if not self._closed:
                        self._ready.append(instance)
                        return
        except BaseException:
            instance.close()
            raise
        instance.close()

    def check(self, run: GuestRun) -> StepEnded:
        """Drive a run of ``check_run``."""
        instance = self.acquire()
        try:
            step = complete(execute_to_stop(run, instance))
        except BaseException:
            instance.close()
            raise
        self.release(instance)
        assert isinstance(step, StepEnded)
        return step

    def close(self) -> None:
        with self._lock:
            self._closed = True
            while self._ready:
                self._ready.popleft().close()

    @staticmethod
    def check_run(code: str, tools: Mapping[str, Tool], limits: SessionLimits) -> GuestRun:
        """A run that only checks a source."""
        check = CheckStep(code=code, tools=callable_names(tools))
        program = msgspec.json.encode(check)
        log = RunLog(program=program, limits=limits, tools={}, now_ns=0, entries=[])
        return GuestRun(SavedRun(log, RunMeters()))

    def _add_instance(self) -> None:
        try:
            instance = self.guest.instance()
        except Exception:  # ``acquire`` makes an instance, too, and raises the error.
            with self._lock:
                self._filling = False
            return
        with self._lock:
            self._filling = False
            if self._closed:
                instance.close()
            else:
                self._ready.append(instance)
        self.fill()
