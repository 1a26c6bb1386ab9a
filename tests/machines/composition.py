"""Several machines and the glue between them, explored together.

A composition is a beginning and what can happen next, each happening by a name. Its glue (who
fires what, because of what) is written out in the composition, rule by rule, so that a rule can be
left out to see what it was for. What others know of the host, or of a turn, they know from facts,
and may be behind by up to two of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from rookery.actors.admission.admission_machine import ADMISSION, evolve_host
from rookery.actors.admission.lifecycle_machine import LIFECYCLE
from rookery.actors.kernel.machines.machine import (
    Machine,
    SessionHost,
    TransitionEffect,
    TransitionRejected,
    with_host,
)

__all__ = ["LAG_MAX", "Followed", "Happening", "Worlds", "by_host", "explored", "put", "told"]

W = TypeVar("W")
LAG_MAX = 2
WORLDS_MAX = 300_000
Happening = tuple[str, W]


# --- one machine ----------------------------------------------------------------------------------


def put(machine: Machine[Any], state: Any, on: str, **params: Any) -> Any | None:
    """The state after an input, or ``None`` if it is refused."""
    after = told(machine, state, on, **params)
    return None if after is None else after[0]


def told(
    machine: Machine[Any], state: Any, on: str, **params: Any
) -> tuple[Any, tuple[TransitionEffect, ...]] | None:
    """The state after an input and what it asks of the world, or ``None`` if it is refused."""
    try:
        fact = machine.decide(state, on, machine.candidate(on, params))
    except TransitionRejected:
        return None
    after = machine.evolve(state, fact)
    return after, machine.effects(after, fact)


# --- the host, and who follows it -----------------------------------------------------------------


class Followed(NamedTuple):
    """The host as admission has it, and as another concern knows it."""

    now: SessionHost
    copy: SessionHost
    under_way: tuple[Any, ...] = ()
    """Facts of admission that the other has not been handed yet, oldest first."""

    @property
    def current(self) -> bool:
        """What a fence over the session's subjects asks when another writer commits."""
        return not self.under_way

    def delivered(self) -> Followed:
        """The oldest fact has arrived."""
        first, *later = self.under_way
        return self._replace(copy=evolve_host(self.copy, first), under_way=tuple(later))

    def seen_by(self, state: Any) -> Any:
        """``state`` of a machine, at the host as its owner knows it."""
        return with_host(state, self.copy)


def by_host(host: Followed, on: str, **params: Any) -> Followed | None:
    """Admission moves the host; ``None`` if it is refused, or if the copy is too far behind."""
    machine = LIFECYCLE if on in LIFECYCLE.inputs else ADMISSION
    if len(host.under_way) == LAG_MAX:
        return None
    try:
        fact = machine.decide(host.now, on, machine.candidate(on, params))
    except TransitionRejected:
        return None
    fact = replace(fact)
    return host._replace(now=machine.evolve(host.now, fact), under_way=(*host.under_way, fact))


# --- exploring ------------------------------------------------------------------------------------


class Worlds(Generic[W]):
    """Everything that can come to be, how, and what can follow."""

    def __init__(self) -> None:
        self._came: dict[W, tuple[W, str] | None] = {}
        self._left: dict[W, list[Happening[W]]] = {}

    def __len__(self) -> int:
        return len(self._came)

    @property
    def happenings(self) -> int:
        return sum(map(len, self._left.values()))

    def way_to(self, wrong: Callable[[W], bool]) -> list[str] | None:
        """What has to happen for ``wrong`` to hold, as short as can be; ``None`` if it never can"""
        found = next((world for world in self._came if wrong(world)), None)
        return None if found is None else self._way(found)

    def stuck(
        self, waits: Callable[[W], bool], unforced: Callable[[str], bool]
    ) -> list[str] | None:
        """What has to happen for somebody to wait for ever, if nobody does what nobody must:
        ``unforced`` names that. ``None`` if all who wait can always come to their end."""
        arrivals: dict[W, list[W]] = {}
        for world, happenings in self._left.items():
            for name, after in happenings:
                if not unforced(name):
                    arrivals.setdefault(after, []).append(world)
        relieved = {world for world in self._came if not waits(world)}
        open_worlds = list(relieved)
        while open_worlds:
            for before in arrivals.get(open_worlds.pop(), ()):
                if before not in relieved:
                    relieved.add(before)
                    open_worlds.append(before)
        lost = next((world for world in self._came if world not in relieved), None)
        return None if lost is None else self._way(lost)

    def _way(self, world: W) -> list[str]:
        way: list[str] = []
        while (came := self._came[world]) is not None:
            world, name = came
            way.append(name)
        return way[::-1]


def explored(beginning: W, following: Callable[[W], Iterable[Happening[W]]]) -> Worlds[W]:
    """Every world there is a way to, nearest first."""
    worlds: Worlds[W] = Worlds()
    worlds._came[beginning] = None
    open_worlds = deque([beginning])
    while open_worlds:
        world = open_worlds.popleft()
        happenings = [(name, after) for name, after in following(world) if after != world]
        worlds._left[world] = happenings
        for name, after in happenings:
            if after not in worlds._came:
                assert len(worlds._came) < WORLDS_MAX, "the composition has no end"
                worlds._came[after] = (world, name)
                open_worlds.append(after)
    return worlds
