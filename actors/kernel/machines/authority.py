"""``Authority``: the machines and the host of one session behind one lock, shared by its handles.

A handle applies one input to one machine at a time, so all transitions have one order. Observers
are held weakly, one per effect name; a later one replaces an earlier one. They are selected when
the input is decided and called after the lock is released, so that they may call back. No
transition here is journaled.
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
    """Thread-safe. A ``with`` block combines several steps."""

    def __init__(self, host: SessionHost | None = None, *, edition: Edition = Edition.HEAD) -> None:
        self.edition = edition
        self._lock = RLock()
        self._depth = 0
        self._host = host or SessionHost()
        self._states: dict[str, Any] = {}
        self._slots: dict[str, _Slot] = {}
        self._notifications: list[tuple[Notify, Any, TransitionEffect]] = []
        self.input_run_id: str | None = None
        """The run last prepared for an input; the preparing handle commits it."""

    @property
    def host(self) -> SessionHost:
        """The session's present host."""
        with self._lock:
            return self._host

    def read(self, machine: Machine[S]) -> S:
        """The machine's present state."""
        with self._lock:
            state: S = with_host(self._states.get(machine.name, machine.initial), self._host)
            return state

    def apply(
        self, machine: Machine[Any], on: str, params: Mapping[str, Any]
    ) -> tuple[TransitionEffect, ...]:
        """Apply an input with its parameters by name; the effects it requests."""
        return self.decide(machine, on, machine.candidate(on, params))

    def decide(
        self, machine: Machine[Any], on: str, candidate: Any
    ) -> tuple[TransitionEffect, ...]:
        """Apply an input with its candidate fact."""
        with self:
            state = self.read(machine)
            fact = machine.decide(state, on, candidate, edition=self.edition)
            after = machine.evolve(state, fact)
            self._states[machine.name] = after
            self._host = host_of(after) or self._host
            effects = machine.effects(after, fact)
            self._collect_notifications(effects)
            return effects

    def set_host(self, host: SessionHost) -> None:
        """Replace the host after a transition of its own machine."""
        with self._lock:
            self._host = host

    def install(
        self, effect: type[TransitionEffect], observer: O, tell: Callable[[O, Any], None]
    ) -> None:
        """Call ``tell`` with ``observer`` for every such effect while ``observer`` lives. Combined
        with a read in the same ``with`` block, no effect is missed or seen twice."""
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
        notifications: list[tuple[Notify, Any, TransitionEffect]] = []
        if not self._depth:
            notifications, self._notifications = self._notifications, notifications
        self._lock.release()
        for tell, observer, effect in notifications:
            try:
                tell(observer, effect)
            except Exception:  # The input is accepted even if an observer fails.
                log.exception("observer failed", extra={"effect": _name(type(effect))})

    def _collect_notifications(self, effects: tuple[TransitionEffect, ...]) -> None:
        for effect in effects:
            slot = self._slots.get(_name(type(effect)))
            observer = None if slot is None else slot.observer()
            if slot is not None and observer is not None:
                self._notifications.append((slot.notify, observer, effect))


def _name(effect: type[TransitionEffect]) -> str:
    """The effect's name. Two effect classes may share a name, and then share an observer."""
    return str(effect.__struct_config__.tag)
