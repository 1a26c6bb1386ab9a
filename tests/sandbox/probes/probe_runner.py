"""Runs probes and reports what is wrong: the end, the canary, the session, the next session.

The next session is compared, to its last instruction, with one from before all probes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from rookery.actors.sandbox import Sandbox
from rookery.schemas.run import Language, RunResult, SessionLimits
from tests.sandbox.probes.canary import Canary
from tests.sandbox.probes.probe import Probe
from tests.sandbox.programs import without_time
from tests.sandbox.session_fixture import NOW_MS, TOOLS, Stage

__all__ = ["Range", "Shot"]

_KEPT = {
    Language.PYTHON: "kept = 41\ndef more(): return kept + 1",
    Language.TYPESCRIPT: "let kept: number = 41\nfunction more(): number { return kept + 1 }",
}
_NEXT = """
import asyncio, random, time, uuid
seen = [random.random(), time.time(), str(uuid.uuid4()), list({'a', 'b'}), hash('a'), add(1)]
[*seen, *(await asyncio.gather(fetch(1), asyncio.sleep(1, 2)))]
"""


class Shot(NamedTuple):
    """The outcome of a probe."""

    probe: Probe
    faults: list[str]
    late_ms: int
    """The time between the limit and the end of the run; negative if it ended before."""


class Range:
    """A sandbox and the canary outside it."""

    def __init__(self, sandbox: Sandbox, target: Canary) -> None:
        self._sandbox, self._target = sandbox, target
        self._next_before = self._next()

    def shoot(self, probe: Probe) -> Shot:
        stage = self._stage(probe)
        try:
            stage.run(_KEPT[probe.language], language=probe.language)
            if probe.first:
                before = self._sandbox.snapshot(stage.name)
                stage.run(probe.first, inputs=probe.inputs, language=probe.language)
            result = stage.run(
                probe.code,
                inputs=probe.inputs if probe.first else {**self._target.inputs, **probe.inputs},
                limits=probe.run_limits,
                language=probe.language,
            )
            faults = [*self._faults(probe, result)]
            if probe.first:  # Restores the session to the state before its own changes.
                self._sandbox.restore(before.data, tools=TOOLS)
            if stage.value("more()", language=probe.language) != 42:
                faults.append("its session is not what it was")
        finally:
            stage.end()
        if self._next() != self._next_before:
            faults.append("the next session is not what it would have been")
        return Shot(probe, faults, result.metrics.duration_ms - _limit_ms(probe))

    def _stage(self, probe: Probe) -> Stage:
        self._sandbox.create(
            "probed", seed=b"", now_ms=NOW_MS, language=probe.language, tools=TOOLS
        )
        return Stage(self._sandbox, "probed", create=False)

    def _faults(self, probe: Probe, result: RunResult) -> Iterator[str]:
        code, message = None, ""
        if result.error is not None:
            code, message = result.error.code, result.error.message
        if (result.status, code) != (probe.end.status, probe.end.code):
            yield f"it ended as {result.status} {code}: {message[:200]}"
        if probe.says not in message:
            yield f"it says {message[:200]!r}"
        if probe.value not in (msgspec.UNSET, result.result):
            yield f"it found {result.result!r}"
        if self._target.secret.encode() in msgspec.json.encode(result):
            yield "it knows the secret"
        yield from self._target.harm()

    def _next(self) -> RunResult:
        stage = Stage(self._sandbox, "next")
        try:
            return without_time(stage.run(_NEXT))
        finally:
            stage.end()


def _limit_ms(probe: Probe) -> int:
    limits = SessionLimits(**probe.run_limits)
    cpu_bound = probe.end.code == "TIMEOUT_CPU"
    return min(limits.cpu_ms, limits.wall_ms) if cpu_bound else limits.wall_ms
