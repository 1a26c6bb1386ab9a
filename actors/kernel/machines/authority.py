"""The one authority all handles of a session share: its machines and its host behind one lock.

A handle puts one input to one machine at a time; whatever the machines have done stands in one
order. Observers are held weakly, one a slot, the last one installed wins. Who is to be told is
decided with the input; they are told after the lock is released, so that they may ask again. What
happens here is journaled by nobody: actors decide by the same rules and keep records of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from threading import RLock
from types import TracebackType
from typing import Any, NamedTuple, TypeVar
from weakref import ref

import msgspec

from rookery.actors.kernel.machines.machine import Edition, Machine, TransitionEffect
from rookery.actors.kernel.machines.session_host import SessionHost, host_of, with_host

__all__ = ["Authority"]

log = logging.getLogger(__name__)

S = TypeVar("S", bound=msgspec.Struct)
O = TypeVar("O")  # noqa: E741 - an observer.
Notify = Callable[[Any, Any], None]


class _Slot(NamedTuple):
    observer: ref[Any]
    notify: Notify


class Authority:
    """Safe to use from any thread. A ``with`` block takes it for several steps together."""

    def __init__(self, host: SessionHost | None = None, *, edition: Edition = Edition.HEAD) -> None:
        self.edition = edition
        self._lock = RLock()
        self._depth = 0
        self._host = host or SessionHost()
        self._states: dict[str, Any] = {}
        self._slots: dict[str, _Slot] = {}
        self._notifications: list[tuple[Notify, Any, TransitionEffect]] = []
        self.input_run_id: str | None = None
        """The run that was last prepared for an input: whoever prepared it commits it."""

    @property
    def host(self) -> SessionHost:
        """The session's host as it stands."""
        with self._lock:
            return self._host

    def read(self, machine: Machine[S]) -> S:
        """The machine's state as it stands."""
        with self._lock:
            state: S = with_host(self._states.get(machine.name, machine.initial), self._host)
            return state

    def apply(
        self, machine: Machine[Any], on: str, params: Mapping[str, Any]
    ) -> tuple[TransitionEffect, ...]:
        """Put an input, by the model's names, to the machine; what it asks of the world."""
        return self.decide(machine, on, machine.candidate(on, params))

    def decide(self, machine: Machine[Any], on: str, draft: Any) -> tuple[TransitionEffect, ...]:
        """The same of a draft."""
        with self:
            state = self.read(machine)
            fact = machine.decide(state, on, draft, edition=self.edition)
            after = machine.evolve(state, fact)
            self._states[machine.name] = after
            self._host = host_of(after) or self._host
            effects = machine.effects(after, fact)
            self._collect_notifications(effects)
            return effects

    def set_host(self, host: SessionHost) -> None:
        """Put the host where one of its own rules has led it."""
        with self._lock:
            self._host = host

    def install(
        self, effect: type[TransitionEffect], observer: O, tell: Callable[[O, Any], None]
    ) -> None:
        """From now on ``observer`` is told of every such effect, for as long as it lives. With what
        is read in the same ``with`` block nothing is told twice and nothing missed."""
        with self._lock:
            self._slots[_name(effect)] = _Slot(ref(observer), tell)

    def __enter__(self) -> Authority:
        self._lock.acquire()
        self._depth += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._depth -= 1
        due: list[tuple[Notify, Any, TransitionEffect]] = []
        if not self._depth:
            due, self._notifications = self._notifications, due
        self._lock.release()
        for tell, observer, effect in due:
            try:
                tell(observer, effect)
            except Exception:  # The input was accepted, whatever becomes of the news.
                log.exception("an observer failed", extra={"effect": _name(type(effect))})

    def _collect_notifications(self, effects: tuple[TransitionEffect, ...]) -> None:
        for effect in effects:
            slot = self._slots.get(_name(type(effect)))
            observer = None if slot is None else slot.observer()
            if slot is not None and observer is not None:
                self._notifications.append((slot.notify, observer, effect))


def _name(effect: type[TransitionEffect]) -> str:
    """Two kinds of an effect may share its name, and then its observer."""
    return str(effect.__struct_config__.tag)
