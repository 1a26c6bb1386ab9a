"""``EffectRunner``: starts effects; and ``Watermark``: up to which fact all of them have ended."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import NamedTuple

from rookery.actors.kernel.decider import Effect
from rookery.actors.kernel.executors.asks import EffectHandler, NotExecutableHere
from rookery.actors.kernel.executors.failpoints import Failpoints
from rookery.actors.metrics import KernelMetrics
from rookery.bus.ports import TaskSet
from rookery.schemas.errors import CODES, Failed, Refused

__all__ = [
    "EffectRunner",
    "Watermark",
    "WatermarkHold",
    "WatermarkState",
]

# --- watermark ------------------------------------------------------------------------------------

# ``Watermark``: the journal sequence up to which this node has nothing left to do.
#
# After a crash the partition's next owner reads the journal from the watermark and finds unfinished
# reactions and effects. Work in progress has a hold: an append from before it is sent, a reaction
# or effect until it has ended, without a gap between them. An append has no sequence until it is
# acknowledged, so the watermark stays below it. A slow reaction or effect is listed by its fact's
# sequence instead of holding the watermark back.


class WatermarkState(NamedTuple):
    """The watermark and the unfinished facts below it."""

    through: int = 0
    """All facts up to this sequence are done,"""
    unfinished: tuple[int, ...] = ()
    """except these, in ascending order."""


class WatermarkHold:
    """One piece of unfinished work; releasing it twice is harmless."""

    __slots__ = ("_holds", "_sequence", "_watermark")

    def __init__(self, watermark: Watermark, holds: dict[int, int], sequence: int) -> None:
        self._watermark: Watermark | None = watermark
        self._holds, self._sequence = holds, sequence

    def release(self) -> None:
        """Mark the work as done or dropped."""
        if self._watermark is not None:
            self._watermark.on_released(self._holds, self._sequence)
            self._watermark = None


class Watermark:
    """Holds are created on the loop and released on any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0
        """The highest sequence known to be committed."""
        self._held_facts: dict[int, int] = {}
        """The number of holds per fact sequence."""
        self._appending: dict[int, int] = {}
        """The same for appends, by the lowest sequence they may get."""

    def hold(self, sequence: int) -> WatermarkHold:
        """Hold for a reaction to, or an effect of, the fact at ``sequence``."""
        return self._hold(self._held_facts, sequence)

    def hold_next(self) -> WatermarkHold:
        """Hold for an append about to be sent: its sequence will be above all known ones."""
        return self._hold(self._appending, self._last + 1)

    def advance(self, sequence: int) -> None:
        """Note that ``sequence`` is committed and that its reactions and effects have holds."""
        self._last = max(self._last, sequence)

    def reset(self) -> None:
        """Forget everything: the journal has been replaced."""
        with self._lock:
            self._last = 0
            self._held_facts, self._appending = {}, {}

    def on_released(self, holds: dict[int, int], sequence: int) -> None:
        """Called by ``WatermarkHold.release``."""
        with self._lock:
            holds[sequence] -= 1
            if not holds[sequence]:
                del holds[sequence]

    @property
    def held(self) -> int:
        """How many facts have holds."""
        return len(self._held_facts)

    def state(self, unfinished_max: int) -> WatermarkState:
        """The state to save, with at most ``unfinished_max`` facts listed below the watermark."""
        with self._lock:
            called_for = list(self._held_facts)
            through = min(self._last, min(self._appending, default=self._last + 1) - 1)
        unfinished = sorted(sequence for sequence in called_for if sequence <= through)
        if len(unfinished) > unfinished_max:
            through = unfinished[unfinished_max] - 1
        return WatermarkState(through, tuple(unfinished[:unfinished_max]))

    def _hold(self, holds: dict[int, int], sequence: int) -> WatermarkHold:
        with self._lock:
            holds[sequence] = holds.get(sequence, 0) + 1
        return WatermarkHold(self, holds, sequence)


# --- effect runner --------------------------------------------------------------------------------

# ``EffectRunner``: starts effects and passes each to the handler of its type, on the bus's loop.
#
# An effect starts only after its fact is durable, or while the fact is held (``Decider.hold_s``),
# and only while this node is certain that it owns the key, because an ack may arrive late. If the
# process dies, the partition's next owner finds the fact, or what a held one follows, by the
# watermark and starts the effect again. If the node loses only the partition, it cancels the
# effects here for the same reason. Effects that raise ``NotExecutableHere`` wait for another owner
# too.


log = logging.getLogger(__name__)

RETRY_S = 0.5


class EffectRunner:
    """One per node; lives on the loop."""

    def __init__(
        self,
        effect_handlers: Mapping[type[Effect], EffectHandler],
        watermark: Watermark,
        failpoints: Failpoints,
        acts_for: Callable[[str], bool],
        metrics: KernelMetrics,
    ) -> None:
        """``acts_for``: whether this node performs the effects of a key now."""
        self._handlers, self._watermark = dict(effect_handlers), watermark
        self._failpoints, self._acts_for, self._metrics = failpoints, acts_for, metrics
        self.tasks = TaskSet()
        self._holds: dict[asyncio.Task[None], tuple[str, WatermarkHold]] = {}
        self._running: Counter[tuple[type[Effect], str]] = Counter()

    def register(self, effect_handlers: Mapping[type[Effect], EffectHandler]) -> None:
        """Add handlers that need the actors; call it before the first effect."""
        self._handlers.update(effect_handlers)

    def start(self, key: str, sequence: int, effects: Sequence[Effect]) -> None:
        """Start each effect of a fact of ``key`` committed at ``sequence``. If the key has moved to
        another node, that node finds the fact and starts them."""
        self._failpoints.hit("effect_started")
        for effect in effects if self._acts_for(key) else ():
            if effect.is_instant:
                self._perform_now(effect, sequence)
                continue
            hold = self._watermark.hold(sequence)
            task = self.tasks.start(self._run(key, effect, hold))
            self._holds[task] = key, hold
            self._running[type(effect), effect.key] += 1
            task.add_done_callback(partial(self._on_done, effect))

    def ensure_started(self, key: str, sequence: int, effects: Sequence[Effect]) -> None:
        """Start the effects that the state of ``key`` after ``sequence`` calls for, but not those
        that are running."""
        missing = [e for e in effects if (type(e), e.key) not in self._running]
        self.start(key, sequence, missing)

    def _on_done(self, effect: Effect, task: asyncio.Task[None]) -> None:
        del self._holds[task]
        self._running[type(effect), effect.key] -= 1
        if not self._running[type(effect), effect.key]:
            del self._running[type(effect), effect.key]

    def is_busy(self, key: Callable[[str], bool]) -> bool:
        """Whether an effect of a matching key is running."""
        return any(key(of) for of, _ in self._holds.values())

    def cancel_keys(self, is_lost: Callable[[str], bool]) -> None:
        """Cancel the effects of these keys; their next owner starts them again."""
        for task, (key, hold) in list(self._holds.items()):
            if is_lost(key):
                task.cancel()
                hold.release()

    def _perform_now(self, effect: Effect, sequence: int) -> None:
        """Perform an instant effect. One that fails is left to the next owner, as others are."""
        began_s, outcome = perf_counter(), "done"
        try:
            self._handlers[type(effect)](effect)
        except Exception:
            log.exception("effect failed", extra={"key": effect.key})
            outcome = "failed"
            self._watermark.hold(sequence)
        self._metrics.effect(type(effect).__name__, outcome, perf_counter() - began_s)

    async def _run(self, key: str, effect: Effect, hold: WatermarkHold) -> None:
        """Run one effect. Outages are retried, a conflict the first time at once: the state that it
        began with was decided again. Any other failure is a bug and left to the next owner."""
        has_conflicted = False
        while self._acts_for(key):
            began_s, outcome = perf_counter(), "cancelled"
            try:
                outcome = await self._perform(effect)
            finally:
                self._metrics.effect(type(effect).__name__, outcome, perf_counter() - began_s)
            if outcome in ("failed", "not_executable"):
                return
            if outcome == "conflicted" and not has_conflicted:
                has_conflicted = True
                continue
            if outcome not in ("retried", "conflicted"):
                break
            await asyncio.sleep(RETRY_S)
        hold.release()  # It is done, or the key's next owner finds it by the watermark.

    async def _perform(self, effect: Effect) -> str:
        """Call the effect's handler once; the outcome, as the metrics count it."""
        try:
            work = self._handlers[type(effect)](effect)
            assert work is not None, f"the handler of {type(effect).__name__} is no coroutine"
            await work
        except NotExecutableHere as why:
            log.warning("effect left to another node: %s", why, extra={"key": effect.key})
            return "not_executable"
        except Exception as error:
            if isinstance(error, Refused) and error.code == "PARTITION_UNOWNED":
                return "unowned"
            if not isinstance(error, Failed) or not CODES[error.code].retryable:
                log.exception("effect failed", extra={"key": effect.key})
                return "failed"
            log.info("effect failed, retrying", extra={"key": effect.key, "code": error.code})
            return "conflicted" if error.code == "CONFLICT" else "retried"
        return "done"
