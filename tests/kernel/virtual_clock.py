"""An event loop with virtual time: waiting costs no real time.

A simulated world runs on it in one thread, in an order that depends only on its seed, so a failure
can be repeated. Actors run as under pykka, without the threads.
"""

from __future__ import annotations

import asyncio
import selectors
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

import pykka

from rookery.actors.kernel.actor import FamilyActor
from rookery.actors.kernel.decider import Decider
from rookery.actors.kernel.kernel import Kernel

T = TypeVar("T")


class Clockwork(asyncio.SelectorEventLoop):
    """Time stops while anything can run, then jumps to the next timer."""

    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__(_Skipping(self.skip))

    def time(self) -> float:
        return self._now_s

    def skip(self, seconds: float) -> None:
        self._now_s += seconds

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        return self.run_until_complete(asyncio.wait_for(work, timeout_s))


class _Skipping(selectors.SelectSelector):
    """A selector that waits for no file."""

    def __init__(self, skip: Callable[[float], None]) -> None:
        super().__init__()
        self._skip = skip

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen again")
        self._skip(max(0.0, timeout))
        return []


class LoopActor:
    """A family's actor with the loop for its thread; also its own reference."""

    def __init__(self, actor: FamilyActor, later: Callable[..., None]) -> None:
        self._actor, self._later = actor, later
        self._alive = True

    def tell(self, message: object) -> None:
        if not self._alive:
            raise pykka.ActorDeadError("the actor was stopped")
        self._later(self._receive, message)

    def is_alive(self) -> bool:
        return self._alive

    def stop(self, *, block: bool = True, timeout: float | None = None) -> None:
        self._alive = False

    def _receive(self, message: object) -> None:
        if not self._alive:
            return
        try:
            self._actor.on_receive(message)
        except Exception:
            self._alive = False
            self._actor.on_failure(*sys.exc_info())


class LoopKernel(Kernel):
    """A kernel whose actors run on its loop."""

    def _start_actor(self, concern: Decider) -> None:
        mailbox, loop = self._mailboxes[concern.family], cast("Any", self._loop)
        actor = loop.drive(FamilyActor(concern, mailbox, self))
        self._actors[concern.family] = actor
        mailbox.attach(actor)
