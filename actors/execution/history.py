"""A session's runs, read back from the journal: what its memory is rebuilt from.

Three families tell of a run: ``turn`` what it was given, what it asked for and how it ended,
``tool`` what its calls were told, ``sandbox`` where the session's memory was last kept. Reading
only; running again is the sandbox's.

What a run went on with, step after step, as the facts of its turn and of its calls tell.

The turn's facts say what each step waited for, what it went on with, and how far its program's time
had gone on; what came of a call, the calls' own facts say. It reads nothing itself and fetches
nothing: answers are ``history``'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.kernel.history_restart import last_restart
from rookery.actors.sandbox.contract import Tool, ToolFailure, ToolResult
from rookery.actors.sandbox.sessions.recorded_runs import RecordedCall, RecordedRun, ResultBatch
from rookery.bus.ports import Blobs, Journal, StoredMessage
from rookery.schemas.calls import CallOutcome, ForkedRun, RequestedCall, RunEnvironment, ToolFault
from rookery.schemas.capability import Capability
from rookery.schemas.codec import FactCodec
from rookery.schemas.envelope import EntityId, Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import sandbox, tool, turn
from rookery.schemas.facts.run_progress import TurnEnd
from rookery.schemas.run import RunRequest, RunResult

__all__ = [
    "AnsweredBatch",
    "PastRun",
    "RunHistoryReader",
    "SessionHistory",
    "SnapshotFact",
    "StepInputs",
    "without_limits",
]


class AnsweredBatch(NamedTuple):
    """What a step went on with."""

    calls: tuple[RequestedCall, ...]
    """By number."""
    passed_ms: tuple[int, ...]
    whole: bool
    """Nothing else was under way."""
    boundary: int
    """Where the last of the answers stands, or that it went on without."""


class StepInputs:
    """One run's steps, from its turn's facts in their order."""

    def __init__(self, answered_at: Mapping[str, int]) -> None:
        """``answered_at``: where the outcome of each operation stands."""
        self._answered_at = answered_at
        self._requested: dict[str, RequestedCall] = {}
        self._registered: tuple[str, ...] = ()
        self._barrier: tuple[str, ...] = ()
        self._steps = self._step_at = 0
        self._batches: list[AnsweredBatch] = []

    def add_fact(self, sequence: int, fact: Fact) -> None:
        """The next fact, which stands at ``sequence``."""
        match fact:
            case turn.ToolCallsReturned(calls=calls):
                self._requested |= {call.operation_id: call for call in calls}
            case turn.OpsRegistered():
                self._registered, self._barrier = fact.op_refs, fact.barrier_ids
            case turn.ToolCallsResolved() if self._is_open:
                self._close_step(sequence, () if fact.passed_ms is UNSET else fact.passed_ms)
        match fact:
            case object(step=int()) if not isinstance(fact, TurnEnd):
                if self._is_open:
                    self._batches.append(_empty_batch(self._step_at))
                self._steps, self._step_at = self._steps + 1, sequence

    def batches(self) -> list[AnsweredBatch]:
        """One a step, but for the last if it still waits. If all that it waits for has come, that
        is what it goes on with."""
        if self._is_open:
            self._close_step(self._step_at)
        return self._batches

    @property
    def _is_open(self) -> bool:
        """Nothing says yet what the last step went on with."""
        return len(self._batches) < self._steps

    def _close_step(self, sequence: int, passed_ms: tuple[int, ...] = ()) -> None:
        barrier, whole = self._barrier, set(self._barrier) == set(self._registered)
        self._barrier = self._registered = ()
        if any(operation not in self._answered_at for operation in barrier):
            return
        calls = sorted(
            (self._requested[operation] for operation in barrier), key=lambda c: c.number
        )
        at = [self._answered_at[operation] for operation in barrier] if whole else []
        earlier = self._batches[-1].boundary if self._batches else 0
        boundary = max(earlier, max(at, default=sequence))
        self._batches.append(AnsweredBatch(tuple(calls), passed_ms, whole, boundary))


def _empty_batch(sequence: int) -> AnsweredBatch:
    """The step at ``sequence`` wanted nothing."""
    return AnsweredBatch((), (), whole=True, boundary=sequence)


_CODECS: Final[Mapping[str, FactCodec[Any]]] = {
    "turn": FactCodec(turn.TURN_FACTS),
    "tool": FactCodec(tool.TOOL_FACTS),
    "sandbox": FactCodec(sandbox.SANDBOX_FACTS),
}
SnapshotFact = sandbox.SnapshotKept | sandbox.SnapshotRestored


@dataclass(kw_only=True)
class PastRun:
    """One driven run."""

    run_id: str
    environment: RunEnvironment
    request: RunRequest
    request_blob: str | UnsetType = UNSET
    now_ms: int
    generation: int
    started_at_sequence: int
    batches: list[ResultBatch] = field(default_factory=list)
    """One a step, but for the last: what it went on with, nothing where it wanted nothing. Those of
    the run it was forked from come first."""
    boundaries: list[int] = field(default_factory=list)
    """Where the last answer to each batch stands, or that it went on without; of another run's,
    where this one began."""
    ended_at_sequence: int = 0
    kept: bool = False
    result: RunResult | UnsetType = UNSET
    result_blob: str | UnsetType = UNSET

    @property
    def calls(self) -> int:
        """How many calls were answered."""
        return sum(len(batch.calls) for batch in self.batches)


@dataclass(kw_only=True)
class SessionHistory:
    """A session's life from where its memory was last kept."""

    base: SnapshotFact | None
    runs: list[PastRun]


class RunHistoryReader:
    """Reads histories. Lives on the bus's loop."""

    def __init__(self, journal: Journal, blobs: Blobs) -> None:
        self._journal, self._blobs = journal, blobs
        self._catalogues: dict[str, dict[str, Capability]] = {}

    async def last_snapshot(self, session: str, generation: int) -> SnapshotFact | None:
        """Where the memory of this life of the session was kept."""
        stored = await self._journal.last(EntityId("sandbox", session))
        if stored is None:
            return None
        kept = _CODECS["sandbox"].decode(stored.body)[-1]
        return kept if isinstance(kept, SnapshotFact) and kept.generation == generation else None

    async def snapshot_before(self, session: str, run: PastRun) -> SnapshotFact | None:
        """Where the memory was kept last, of those places that know nothing of the run."""
        of_life = [
            fact
            for _, fact in await self._facts("sandbox", session, 0)
            if isinstance(fact, SnapshotFact)
            and fact.generation == run.generation
            and fact.after_sequence < run.started_at_sequence
        ]
        return of_life[-1] if of_life else None

    async def find(self, session: str, run_id: str) -> PastRun:
        """How a driven run began; ``Refused`` if there was none of this id in the session."""
        for stored, fact in await self._facts("turn", session, 0):
            if isinstance(fact, turn.Started) and fact.run == run_id and fact.offer is not UNSET:
                return await self._past_run(stored.sequence, fact, fact.offer)
        raise Refused("RUN_NOT_FOUND", f"no node has driven a run {run_id} in session {session}")

    async def history(self, session: str, generation: int) -> SessionHistory:
        """All that is needed to bring the session back as it stands."""
        base = await self.last_snapshot(session, generation)
        return SessionHistory(base=base, runs=await self.runs(session, generation, base))

    async def runs(
        self, session: str, generation: int, base: SnapshotFact | None, until: str = ""
    ) -> list[PastRun]:
        """The driven runs after ``base``, oldest first, the run ``until`` last, if it is given; the
        last may not have ended."""
        after = 0 if base is None else base.after_sequence
        outcomes = await self._outcomes(session, after)
        answered_at = {operation: at for operation, (at, _) in outcomes.items()}
        runs: list[PastRun] = []
        steps: list[StepInputs] = []
        for stored, fact in await self._facts("turn", session, after):
            if fact.generation != generation:
                continue
            match fact:
                case turn.Started(offer=RunEnvironment() as offer):
                    if runs and runs[-1].run_id == until:
                        break
                    runs.append(await self._past_run(stored.sequence, fact, offer))
                    steps.append(StepInputs(answered_at))
                case _ if isinstance(fact, TurnEnd) and runs and runs[-1].run_id == fact.run:
                    runs[-1].ended_at_sequence, runs[-1].kept = stored.sequence, fact.kept
                    runs[-1].result, runs[-1].result_blob = fact.result, fact.result_blob
            if steps:
                steps[-1].add_fact(stored.sequence, fact)
        for run, taken in zip(runs, steps, strict=True):
            for given in taken.batches():
                run.batches.append(await self._batch(given, outcomes))
                run.boundaries.append(given.boundary)
        return runs

    async def forked_answers(self, forked: ForkedRun | UnsetType) -> list[ResultBatch]:
        """What a run was told before it began, as the one it goes on from."""
        if forked is UNSET:
            return []
        told = await self._blobs.get(forked.known_blob)
        batches = msgspec.json.decode(told, type=list[ResultBatch | tuple[RecordedCall, ...]])
        return [one if isinstance(one, ResultBatch) else ResultBatch(calls=one) for one in batches]

    async def request(self, request: Any, blob: Any) -> RunRequest:
        """A run's request, whole."""
        if blob is not UNSET:
            return msgspec.json.decode(await self._blobs.get(blob), type=RunRequest)
        return RunRequest() if request is UNSET else request

    async def result(self, run: PastRun) -> RunResult:
        """What an ended run has come to, whole."""
        if run.result_blob is not UNSET:
            return msgspec.json.decode(await self._blobs.get(run.result_blob), type=RunResult)
        return RunResult() if run.result is UNSET else run.result

    async def to_tool_result(self, outcome: CallOutcome) -> ToolResult:
        """What a program is told of an outcome. No call takes no time: then a sandbox would take
        its own, which another one could not repeat."""
        value, failure = outcome.value, None
        if outcome.value_blob is not UNSET:
            value = msgspec.json.decode(await self._blobs.get(outcome.value_blob))
        if isinstance(outcome.error, ToolFault):
            failure = ToolFailure(outcome.error.code, outcome.error.message)
        return ToolResult(value, failure, max(1, outcome.duration_ms))

    async def tools(self, offer: RunEnvironment) -> tuple[Tool, ...]:
        """The tools a run was offered, with what was declared of them then."""
        declared = await self._catalogue(offer.catalogue)
        return tuple(
            Tool(
                name=offered.name,
                awaited=offered.awaited,
                side_effect=offered.side_effect,
                schema_digest=offered.schema_digest,
                capability=declared.get(offered.name),
            )
            for offered in offer.tools
        )

    async def to_recorded(self, run: PastRun) -> RecordedRun:
        """The run as the sandbox runs it again."""
        return RecordedRun(
            request=without_limits(run.request),
            limits=run.environment.limits,
            tools=await self.tools(run.environment),
            now_ms=run.now_ms,
            batches=tuple(run.batches),
        )

    async def _past_run(self, sequence: int, fact: turn.Started, offer: RunEnvironment) -> PastRun:
        known = await self.forked_answers(fact.forked)
        return PastRun(
            run_id=fact.run,
            environment=offer,
            request=await self.request(fact.request, fact.request_blob),
            request_blob=fact.request_blob,
            now_ms=fact.at_ms if fact.forked is UNSET else fact.forked.begun_at_ms,
            generation=fact.generation,
            started_at_sequence=sequence,
            batches=known,
            boundaries=[sequence] * len(known),
        )

    async def _catalogue(self, digest: str) -> dict[str, Capability]:
        if not digest:
            return {}
        if digest not in self._catalogues:
            listed = msgspec.json.decode(await self._blobs.get(digest), type=list[Capability])
            self._catalogues[digest] = {capability.name: capability for capability in listed}
        return self._catalogues[digest]

    async def _batch(
        self, given: AnsweredBatch, outcomes: Mapping[str, tuple[int, CallOutcome]]
    ) -> ResultBatch:
        calls = [
            RecordedCall(
                number=call.number,
                name=call.name,
                digest=call.digest,
                awaited=call.awaited,
                answer=await self.to_tool_result(outcomes[call.operation_id][1]),
            )
            for call in given.calls
        ]
        return ResultBatch(calls=tuple(calls), passed_ms=given.passed_ms, whole=given.whole)

    async def _outcomes(self, session: str, after: int) -> dict[str, tuple[int, CallOutcome]]:
        """By operation; with each, where it stands."""
        outcomes: dict[str, tuple[int, CallOutcome]] = {}
        for stored, fact in await self._facts("tool", session, after):
            match fact:
                case tool.Completed():
                    outcome = CallOutcome(
                        value=fact.value, value_blob=fact.value_blob, duration_ms=fact.duration_ms
                    )
                case tool.Failed():
                    outcome = CallOutcome(error=fact.error, duration_ms=fact.duration_ms)
                case tool.Refused():
                    outcome = CallOutcome(error=fact.error)
                case _:
                    continue
            outcomes[fact.operation_id] = stored.sequence, outcome
        return outcomes

    async def _facts(
        self, family: str, session: str, after: int
    ) -> list[tuple[StoredMessage, Fact]]:
        codec = _CODECS[family]
        found = await self._journal.read(EntityId(family, session), after)
        found = found[max(0, last_restart(found)) :]
        return [(stored, fact) for stored in found for fact in codec.decode(stored.body)]


def without_limits(request: RunRequest) -> RunRequest:
    """The request with nothing in it that its offer has settled already."""
    return msgspec.structs.replace(request, limits=None, timeout_ms=None)
