"""Starting effects: each is given to the performer of its kind, on the bus's loop.

An effect starts only after its fact is durable, and only while this node is certain that its key
is its own: an ack may come late. If the process dies, the next owner of the
partition finds the fact on the horizon's books and starts the effect again; if only the partition
is lost, its effects are given up here, for the same reason. So is what this node cannot do, and
another one may: ``NotExecutableHere``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from rookery.actors.kernel.decider import Effect
from rookery.actors.kernel.failpoints import Failpoints
from rookery.actors.kernel.metrics import KernelMetrics
from rookery.actors.kernel.task_set import TaskSet
from rookery.actors.kernel.watermark import Watermark, WatermarkHold
from rookery.schemas.errors import CODES, Failed, Refused

__all__ = ["EffectHandler", "EffectRunner", "NotExecutableHere"]

log = logging.getLogger(__name__)

EffectHandler = Callable[[Any], Awaitable[None]]
RETRY_S = 0.5


class NotExecutableHere(Exception):
    """This node has not what it takes to perform an effect; ``str`` says what that is. Nothing was
    done, and nothing is until the key has another owner."""


class EffectRunner:
    """One a node; lives on the loop."""

    def __init__(
        self,
        performers: Mapping[type[Effect], EffectHandler],
        horizon: Watermark,
        failpoints: Failpoints,
        acts_for: Callable[[str], bool],
        metrics: KernelMetrics,
    ) -> None:
        """``acts_for``: whether this node performs the effects of a key just now."""
        self._handlers, self._watermark = dict(performers), horizon
        self._failpoints, self._acts_for, self._metrics = failpoints, acts_for, metrics
        self.tasks = TaskSet()
        self._holds: dict[asyncio.Task[None], tuple[str, WatermarkHold]] = {}
        self._running: Counter[tuple[type[Effect], str]] = Counter()

    def register(self, performers: Mapping[type[Effect], EffectHandler]) -> None:
        """Before anything starts: performers that need the actors they perform for."""
        self._handlers.update(performers)

    def start(self, key: str, sequence: int, effects: Sequence[Effect]) -> None:
        """Perform these, each on its own, because a fact of ``key`` stands at ``sequence``; what
        came to stand when the key was another node's already is found by that one."""
        self._failpoints.hit("effect_started")
        for effect in effects if self._acts_for(key) else ():
            ticket = self._watermark.hold(sequence)
            task = self.tasks.start(self._run(key, effect, ticket))
            self._holds[task] = key, ticket
            task.add_done_callback(self._holds.__delitem__)
            self._running[type(effect), effect.key] += 1
            task.add_done_callback(partial(self._on_done, effect))

    def ensure_started(self, key: str, sequence: int, effects: Sequence[Effect]) -> None:
        """Perform these, unless it is done already: the state of ``key`` after ``sequence`` calls
        for them."""
        missing = [e for e in effects if (type(e), e.key) not in self._running]
        self.start(key, sequence, missing)

    def _on_done(self, effect: Effect, _: object) -> None:
        self._running[type(effect), effect.key] -= 1
        if not self._running[type(effect), effect.key]:
            del self._running[type(effect), effect.key]

    def is_busy(self, key: Callable[[str], bool]) -> bool:
        """Whether an effect of such a key is under way."""
        return any(key(of) for of, _ in self._holds.values())

    def cancel_keys(self, gone: Callable[[str], bool]) -> None:
        """The next owner of these keys starts what has not ended here."""
        for task, (key, ticket) in list(self._holds.items()):
            if gone(key):
                task.cancel()
                ticket.release()

    async def _run(self, key: str, effect: Effect, ticket: WatermarkHold) -> None:
        """Outages are waited out; anything else is a bug and is left for the next owner."""
        while self._acts_for(key):
            began_s, outcome = perf_counter(), "cancelled"
            try:
                outcome = await self._perform(effect)
            finally:
                self._metrics.effect(type(effect).__name__, outcome, perf_counter() - began_s)
            if outcome in ("failed", "not_executable"):
                return
            if outcome != "retried":
                break
            await asyncio.sleep(RETRY_S)
        ticket.release()  # Done; or the next owner finds it above the horizon or by name.

    async def _perform(self, effect: Effect) -> str:
        """Call the effect's handler once; the outcome, as the metrics count it."""
        try:
            await self._handlers[type(effect)](effect)
        except NotExecutableHere as why:
            log.warning("an effect is left to others: %s", why, extra={"key": effect.key})
            return "not_executable"
        except Exception as error:
            if isinstance(error, Refused) and error.code == "PARTITION_UNOWNED":
                return "unowned"
            if not isinstance(error, Failed) or not CODES[error.code].retryable:
                log.exception("an effect failed", extra={"key": effect.key})
                return "failed"
            log.info("an effect is tried again", extra={"key": effect.key, "code": error.code})
            return "retried"
        return "done"
