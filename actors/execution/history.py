"""``RunHistoryReader``: a session's past runs, read from the journal to rebuild its memory.

Two entities tell the history of a run: ``turn`` has its environment, requests, calls and end,
``sandbox`` the snapshots of its session. Calls of older runs are in the entity ``tool``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final, Protocol

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from rookery.actors.execution.agents.code_history import CodeHistory, model_of
from rookery.actors.execution.step_inputs import (
    AnsweredBatch,
    FactPosition,
    FoundRuns,
    RecordedWait,
    outcomes_of_calls,
)
from rookery.actors.execution.surface_tools import SurfaceToolsReader, node_tool
from rookery.actors.histories import last_restart
from rookery.actors.policy import RunPolicies
from rookery.actors.protection.sensitive_values import (
    NO_SEAL,
    CallSeal,
    SensitiveParts,
    forked_field,
    is_sealed,
    sensitive_parts,
)
from rookery.actors.sandbox import Tool, ToolResult
from rookery.actors.sandbox.sessions import RecordedCall, RecordedRun, ResultBatch
from rookery.actors.tools.catalogue import VisibleTools
from rookery.bus.ports import Blobs, StoredMessage, ValueSeal
from rookery.schemas.calls import (
    CallOutcome,
    Capability,
    ForkedRun,
    RequestedCall,
    RunEnvironment,
    ToolFault,
)
from rookery.schemas.codec import FactCodec
from rookery.schemas.envelope import EntityId, Fact
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.facts import sandbox, session, tool, turn
from rookery.schemas.facts.run_progress import TURN_ENDS, TurnEnd
from rookery.schemas.protection.rights import RightsSet
from rookery.schemas.run import FileInput, RunRequest, RunResult

__all__ = [
    "EntityReader",
    "PastRun",
    "RunHistoryReader",
    "SessionHistory",
    "SnapshotFact",
    "is_replaceable",
    "without_limits",
]


FILES_BYTES_MAX: Final = 16 << 20
"""Of the files that one run is given; a session holds no more."""


TOOL_SETS_MAX: Final = 64
_CODECS: Final[Mapping[str, FactCodec[Any]]] = {
    "session": FactCodec(session.SESSION_FACTS),
    "turn": FactCodec(turn.RUN_FACTS),
    "tool": FactCodec(tool.TOOL_FACTS),
    "sandbox": FactCodec(sandbox.SANDBOX_FACTS),
}
SnapshotFact = sandbox.SnapshotKept | sandbox.SnapshotRestored
_GOES_ON: Final = (turn.Started, turn.ToolCallsReturned, turn.OpsRegistered, *TURN_ENDS)
"""No run is resumed from an image that was stored before one of these facts."""


@dataclass(kw_only=True)
class PastRun:
    """A run that a node executed."""

    run_id: str
    environment: RunEnvironment
    request: RunRequest
    request_blob: str | UnsetType = UNSET
    now_ms: int
    generation: int
    started_at: FactPosition
    batches: list[ResultBatch] = field(default_factory=list)
    """The results per step, except for the last; empty for a step without calls. The results of the
    run it was forked from come first."""
    boundaries: list[FactPosition] = field(default_factory=list)
    """Per batch, its last outcome or the fact that the step continued without one. For batches of a
    forked run, where this run began."""
    ended_at: FactPosition | None = None
    kept: bool = False
    result: RunResult | UnsetType = UNSET
    result_blob: str | UnsetType = UNSET
    withheld: RunResult | UnsetType = UNSET
    """The result of its program, if a hook left it to the record alone."""
    withheld_blob: str | UnsetType = UNSET
    injected: dict[str, Any] = field(default_factory=dict)
    """The inputs that hooks have added."""
    waits: list[RecordedWait] = field(default_factory=list)
    """The waits of its calls for a timer."""
    rights: RightsSet = ()
    """What it could call, beside revocations."""
    steps: int = 0
    """Of a program in which a model acts: how many steps are on record, without its end."""
    beside: tuple[RequestedCall, ...] = ()
    """Of such a program: its open calls that its last step does not wait for."""

    @property
    def ended_at_sequence(self) -> int:
        """The sequence of its end; 0 if it has not ended."""
        return 0 if self.ended_at is None else self.ended_at.sequence

    @property
    def calls(self) -> int:
        """The number of ended calls."""
        return sum(len(batch.calls) for batch in self.batches)

    @property
    def instructions(self) -> int:
        """What the ended run executed."""
        return 0 if self.result is UNSET else self.result.metrics.instructions

    @property
    def hooked_request(self) -> RunRequest:
        """The request with the inputs that hooks have added."""
        if not self.injected:
            return self.request
        return replace(self.request, inputs={**self.request.inputs, **self.injected})

    def end(self, position: FactPosition, fact: TurnEnd) -> None:
        """Add the end of the run."""
        self.ended_at, self.kept = position, fact.kept
        self.result, self.result_blob = fact.result, fact.result_blob
        self.withheld, self.withheld_blob = fact.withheld, fact.withheld_blob


@dataclass(kw_only=True)
class SessionHistory:
    """A session generation from its last snapshot on."""

    base: SnapshotFact | None
    runs: list[PastRun]


class EntityReader(Protocol):
    """Reads the messages of entities."""

    async def last(self, entity: EntityId) -> StoredMessage | None:
        """The entity's last message."""

    async def read(self, entity: EntityId, after: int = 0) -> list[StoredMessage]:
        """The entity's messages above sequence ``after``, in order."""


class RunHistoryReader:
    """Reads histories. Lives on the bus's loop."""

    def __init__(
        self,
        journal: EntityReader,
        blobs: Blobs,
        seal: ValueSeal = NO_SEAL,
        visible: VisibleTools | None = None,
        policies: RunPolicies | None = None,
    ) -> None:
        """``seal`` opens sensitive values. The rules of calls read the other two, too."""
        self._journal, self.blobs, self._seal = journal, blobs, seal
        self._tools: dict[Any, tuple[Tool, ...]] = {}
        """By the parts of an environment that say what they are."""
        self._policies = policies or RunPolicies(blobs)
        self._surface_tools = SurfaceToolsReader(visible or VisibleTools(blobs))
        self._catalogues: dict[str, dict[str, Capability]] = {}
        self._sensitive: dict[str, dict[str, SensitiveParts]] = {}
        """Of each catalogue, the tools that have any."""

    async def last_snapshot(self, session: str, generation: int) -> SnapshotFact | None:
        """The last snapshot of this session generation."""
        stored = await self._journal.last(EntityId("sandbox", session))
        if stored is None:
            return None
        snapshot = _CODECS["sandbox"].decode(stored.body)[-1]
        if isinstance(snapshot, SnapshotFact) and snapshot.generation == generation:
            return snapshot
        return None

    async def snapshots(self, session: str) -> list[SnapshotFact]:
        """The snapshots of all generations that remain, oldest first."""
        read = await self.facts("sandbox", session, 0)
        facts = [fact for _, fact in read if isinstance(fact, SnapshotFact)]
        return [
            fact
            for fact, newer in zip_longest(facts, facts[1:])
            if newer is None or newer.blob == fact.blob or not is_replaceable(fact)
        ]

    async def snapshot_before(self, session: str, run: PastRun) -> SnapshotFact | None:
        """The last snapshot that contains nothing of the run."""
        of_life = [
            fact
            for fact in await self.snapshots(session)
            if fact.generation == run.generation and fact.after_sequence < run.started_at.sequence
        ]
        return of_life[-1] if of_life else None

    async def end_of(self, session: str, generation: int, run_id: str) -> int:
        """The sequence of the end of a run after the last snapshot; mostly it is the last one. Else
        it is one of the last, of maybe a thousand."""
        entity, decode = EntityId("turn", session), _CODECS["turn"].decode
        newest = await self._journal.last(entity)
        if newest is not None and _has_end(decode(newest.body), run_id):
            return newest.sequence
        base = await self.last_snapshot(session, generation)
        after = 0 if base is None else base.after_sequence
        for stored in reversed(await self._journal.read(entity, after)):
            if _has_end(decode(stored.body), run_id):
                return stored.sequence
        raise Failed("FACT_UNKNOWN", f"run {run_id} has no end in the journal")

    async def parked_image(self, session: str) -> str:
        """The blob that the session's run is resumed from; empty if there is none."""
        newest = await self._journal.last(EntityId("turn", session))
        if newest is None:
            return ""
        last = _CODECS["turn"].decode(newest.body)[-1]
        if isinstance(last, turn.Parked):
            return last.snapshot_blob
        blob = ""
        for _, fact in await self.facts("turn", session, 0):
            if isinstance(fact, turn.Parked):
                blob = fact.snapshot_blob
            elif isinstance(fact, _GOES_ON):
                blob = ""
        return blob

    async def find(self, session: str, run_id: str) -> PastRun:
        """The beginning of a run; ``Refused`` if no node has executed it in the session."""
        for position, fact in await self.facts("turn", session, 0):
            if isinstance(fact, turn.Started) and fact.run == run_id and fact.offer is not UNSET:
                return await self._past_run(position, fact, fact.offer)
        raise Refused("RUN_NOT_FOUND", f"no node has executed a run {run_id} in session {session}")

    async def find_first(self, session: str, generation: int) -> PastRun:
        """The beginning of the first run of a generation that a node executed."""
        for position, fact in await self.facts("turn", session, 0):
            match fact:
                case turn.Started(offer=RunEnvironment() as offer) if fact.generation == generation:
                    return await self._past_run(position, fact, offer)
        raise Refused("GUARD_REJECTED", f"session {session} has executed no run yet")

    async def history(self, session: str, generation: int) -> SessionHistory:
        """Everything needed to rebuild the session."""
        base = await self.last_snapshot(session, generation)
        return SessionHistory(base=base, runs=await self.runs(session, generation, base))

    async def runs(
        self, session: str, generation: int, base: SnapshotFact | None, until: str = ""
    ) -> list[PastRun]:
        """The executed runs of programs after ``base``, oldest first, up to ``until`` if given; the
        last one may be unfinished. Of runs that models drive, only the programs in which they act
        are executed in the sandbox: each counts as a run, by the id of its call."""
        after = 0 if base is None else base.after_sequence
        turn_facts = await self.facts("turn", session, after)
        outcomes = await self._outcomes(session, after, turn_facts)
        answered_at = {operation: position for operation, (position, _) in outcomes.items()}
        found, code = FoundRuns(answered_at), None
        for position, fact in turn_facts:
            if fact.generation != generation:
                continue
            if isinstance(fact, turn.Started):
                if found.runs and found.runs[-1].run_id == until:
                    break
                code = None
                if (environment := model_of(fact)) is not None:
                    model_run = await self._past_run(position, fact, environment)
                    code = CodeHistory(model_run, answered_at, self.blobs.get)
                elif isinstance(fact.offer, RunEnvironment):
                    found.begin(await self._past_run(position, fact, fact.offer))
            if code is None:
                found.add(position, fact)
            elif (program := await code.add(position, fact)) is not None:
                found.begin(*program)
        runs = found.runs
        for run, inputs in zip(runs, found.steps, strict=True):
            for given in inputs.batches():
                run.batches.append(await self._batch(session, given, outcomes))
                run.boundaries.append(given.boundary)
        return runs

    async def forked_answers(self, forked: ForkedRun | UnsetType) -> list[ResultBatch]:
        """The results that a forked run continues with."""
        if forked is UNSET:
            return []
        data = await self.blobs.get(forked.known_blob)
        if is_sealed(data):
            data = self.call_seal(forked.of.session).open_batches(forked_field(forked.of), data)
        batches = msgspec.json.decode(data, type=list[ResultBatch | tuple[RecordedCall, ...]])
        return [one if isinstance(one, ResultBatch) else ResultBatch(calls=one) for one in batches]

    async def request(self, request: Any, blob: Any) -> RunRequest:
        """A run's complete request."""
        if blob is not UNSET:
            return msgspec.json.decode(await self.blobs.get(blob), type=RunRequest)
        return RunRequest() if request is UNSET else request

    async def complete(self, request: RunRequest) -> RunRequest:
        """The request with the contents of its blobs."""
        if request.inputs_blob is not UNSET:
            stored = msgspec.json.decode(
                await self.blobs.get(request.inputs_blob), type=dict[str, Any]
            )
            request = replace(request, inputs={**stored, **request.inputs}, inputs_blob=UNSET)
        if not request.files:
            return request
        files, size_bytes = dict(request.files), 0
        for path, file in files.items():
            if file is not None and file.blob is not UNSET:
                files[path] = FileInput(data=await self.blobs.get(file.blob))
            if (given := files[path]) is not None:
                size_bytes += given.size_bytes
            if size_bytes > FILES_BYTES_MAX:
                text = f"the files of the run have more than {FILES_BYTES_MAX} bytes"
                raise Refused("FILES_FULL", text, hint="write them in several runs, or fewer")
        return replace(request, files=files)

    async def result(self, run: PastRun) -> RunResult:
        """The complete result of an ended run's program."""
        if run.withheld is not UNSET:
            return run.withheld
        if run.withheld_blob is not UNSET:
            return msgspec.json.decode(await self.blobs.get(run.withheld_blob), type=RunResult)
        if run.result_blob is not UNSET:
            return msgspec.json.decode(await self.blobs.get(run.result_blob), type=RunResult)
        return RunResult() if run.result is UNSET else run.result

    def call_seal(self, session_id: str) -> CallSeal:
        """Seals and opens the sensitive values of a session's calls."""
        return CallSeal(self._seal, session_id)

    async def sensitive_tools(self, environment: RunEnvironment) -> Mapping[str, SensitiveParts]:
        """The run's tools that have sensitive arguments or results."""
        await self._catalogue(environment.catalogue)
        of_node = self._sensitive.get(environment.catalogue, {})
        if environment.surfaces is UNSET:
            return of_node
        return {**(await self._surface_tools.read(environment.surfaces)).sensitive, **of_node}

    async def to_tool_result(
        self, session_id: str, operation_id: str, outcome: CallOutcome
    ) -> ToolResult:
        """An outcome as the program gets it. The duration is at least 1 ms: for 0 a sandbox would
        use its own clock, and a replay would differ."""
        value, failure = outcome.value, None
        if outcome.value_blob is not UNSET:
            value = msgspec.json.decode(await self.blobs.get(outcome.value_blob))
        if outcome.sealed is True:
            value = self.call_seal(session_id).open_result(operation_id, value)
        if isinstance(outcome.error, ToolFault):
            failure = outcome.error
        return ToolResult(value, failure, max(1, outcome.duration_ms))

    async def tools(self, environment: RunEnvironment) -> tuple[Tool, ...]:
        """The run's tools, as declared when it started: the same tuple for the same tools, from
        which the sandbox derives everything else once."""
        key = environment.catalogue, environment.tools, environment.surfaces, environment.policy
        await self._policies.load(environment.policy)  # The rules of calls need it.
        if (found := self._tools.get(key)) is None:
            if len(self._tools) >= TOOL_SETS_MAX:
                self._tools.clear()
            found = self._tools[key] = await self._read_tools(environment)
        elif environment.surfaces is not UNSET:
            await self._surface_tools.read(environment.surfaces)  # The rules of calls need them.
        return found

    async def program_tools(self, environment: RunEnvironment) -> tuple[Tool, ...]:
        """The tools that a program sees. One in which a model acts sees those that its model might
        see: none with sensitive arguments or results, which are given to no model."""
        found = await self.tools(environment)
        if environment.model is UNSET:
            return found
        named, sensitive = environment.model.tools, await self.sensitive_tools(environment)
        is_open = [one.name not in sensitive for one in found]
        if named is not UNSET:
            is_open = [may and one.name in named for may, one in zip(is_open, found, strict=True)]
        return tuple(one for may, one in zip(is_open, found, strict=True) if may)

    async def _read_tools(self, environment: RunEnvironment) -> tuple[Tool, ...]:
        declared = await self._catalogue(environment.catalogue)
        of_surfaces: tuple[Tool, ...] = ()
        if environment.surfaces is not UNSET:
            read = await self._surface_tools.read(environment.surfaces)
            of_surfaces = read.judged_by(self._policies.get(environment.policy))
        of_node = (node_tool(offered, declared.get(offered.name)) for offered in environment.tools)
        return (*of_node, *of_surfaces)

    async def to_recorded(self, run: PastRun) -> RecordedRun:
        """The run in the form that the sandbox replays."""
        return RecordedRun(
            request=without_limits(await self.complete(run.hooked_request)),
            limits=run.environment.limits,
            tools=await self.program_tools(run.environment),
            now_ms=run.now_ms,
            batches=tuple(run.batches),
        )

    async def _past_run(
        self, position: FactPosition, fact: turn.Started, environment: RunEnvironment
    ) -> PastRun:
        recorded = await self.forked_answers(fact.forked)
        return PastRun(
            run_id=fact.run,
            environment=environment,
            request=await self.request(fact.request, fact.request_blob),
            request_blob=fact.request_blob,
            now_ms=fact.at_ms if fact.forked is UNSET else fact.forked.begun_at_ms,
            generation=fact.generation,
            started_at=position,
            batches=recorded,
            boundaries=[position] * len(recorded),
            rights=fact.rights or (),
        )

    async def _catalogue(self, digest: str) -> dict[str, Capability]:
        if not digest:
            return {}
        if digest not in self._catalogues:
            listed = msgspec.json.decode(await self.blobs.get(digest), type=list[Capability])
            self._catalogues[digest] = {capability.name: capability for capability in listed}
            parts = {capability.name: sensitive_parts(capability) for capability in listed}
            self._sensitive[digest] = {name: found for name, found in parts.items() if found}
        return self._catalogues[digest]

    async def _batch(
        self,
        session_id: str,
        given: AnsweredBatch,
        outcomes: Mapping[str, tuple[FactPosition, CallOutcome]],
    ) -> ResultBatch:
        calls = [
            RecordedCall(
                number=call.number,
                name=call.name,
                digest=call.digest,
                awaited=call.awaited,
                answer=await self.to_tool_result(
                    session_id, call.operation_id, outcomes[call.operation_id][1]
                ),
            )
            for call in given.calls
        ]
        return ResultBatch(calls=tuple(calls), passed_ms=given.passed_ms, whole=given.whole)

    async def _outcomes(
        self, session: str, after: int, turn_facts: Sequence[tuple[FactPosition, Fact]]
    ) -> dict[str, tuple[FactPosition, CallOutcome]]:
        """By operation: the position of its outcome, and the outcome."""
        older = await self.facts("tool", session, after)
        return outcomes_of_calls((*older, *turn_facts))

    async def facts(self, family: str, session: str, after: int) -> list[tuple[FactPosition, Fact]]:
        """A family's facts above sequence ``after``, since its last restart of history."""
        codec = _CODECS[family]
        found = await self._journal.read(EntityId(family, session), after)
        found = found[max(0, last_restart(found)) :]
        return [
            (FactPosition(stored.sequence, number), fact)
            for stored in found
            for number, fact in enumerate(codec.decode(stored.body), 1)
        ]


def is_replaceable(snapshot: SnapshotFact) -> bool:
    """Whether the snapshot's blob is deleted when a newer snapshot is recorded."""
    return isinstance(snapshot, sandbox.SnapshotKept) and snapshot.replaceable is True


def _has_end(facts: Sequence[Fact], run_id: str) -> bool:
    return any(isinstance(fact, TurnEnd) and fact.run == run_id for fact in facts)


def without_limits(request: RunRequest) -> RunRequest:
    """The request without the limits, which the run's environment contains."""
    return msgspec.structs.replace(request, limits=None, timeout_ms=None)
