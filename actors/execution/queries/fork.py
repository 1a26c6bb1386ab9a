"""The query ``fork``: starts a session from a past run of another.

The new session gets the memory that the old one had before the run. If the position is within the
run, the run itself continues there: it first gets the recorded results and then makes calls of its
own. It also gets the conversation as it was there; a run of a model does not continue, because the
next prompt does. All this follows from one fact, ``sandbox.snapshot_restored``; the old session
is only read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from math import inf
from typing import NamedTuple

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from rookery.actors.execution.conversation_history import ConversationReader
from rookery.actors.execution.history import PastRun, SnapshotFact
from rookery.actors.execution.queries.snapshots import SessionSnapshots
from rookery.actors.execution.rebuilt_session import SessionRebuilder
from rookery.actors.execution.step_inputs import FactPosition
from rookery.actors.protection.checks import check_count, check_rights
from rookery.actors.protection.sensitive_values import forked_field
from rookery.actors.session_snapshots import RestoreSnapshot, SnapshotState
from rookery.bus.ports import Blobs, Delivery
from rookery.schemas.agents import ConversationOrigin
from rookery.schemas.calls import ForkedRun, ForkPoint, RunEnvironment
from rookery.schemas.codec import decode_command, encode_json
from rookery.schemas.commands import ForkRun
from rookery.schemas.errors import Refused
from rookery.schemas.ids import check_client_session, derived_uuid7
from rookery.schemas.protection.rights import intersect
from rookery.schemas.replies import ForkReceipt
from rookery.schemas.run import SNAPSHOT_BYTES_MAX

__all__ = ["RunForker"]


class _ForkPosition(NamedTuple):
    """A position in an old session's run."""

    base: SnapshotFact | None
    before: list[PastRun]
    """The ended runs between ``base`` and the run."""
    run: PastRun
    batches: int
    """How many of its batches have ended."""
    at: FactPosition
    waits: dict[int, int]
    """By the number of a call, until when it waited at the position that was requested."""

    @property
    def is_run_end(self) -> bool:
        return self.run.ended_at == self.at

    @property
    def continues_run(self) -> bool:
        """Whether the new session begins in the middle of the run of a program. A run of a model
        ends there: the next prompt goes on."""
        return not self.is_run_end and self.run.environment.model is UNSET

    @property
    def calls(self) -> int:
        return sum(len(batch.calls) for batch in self.run.batches[: self.batches])


class RunForker:
    """One per node; lives on the bus's loop."""

    def __init__(
        self,
        rebuilder: SessionRebuilder,
        snapshots: SessionSnapshots,
        images: Blobs,
        blobs: Blobs,
        *,
        check: Callable[[RunEnvironment], None],
        pin: Callable[[RunEnvironment], RunEnvironment],
        now_ms: Callable[[], int],
    ) -> None:
        """``check`` raises ``Refused`` if this node lacks something of a run's environment;
        ``pin``: the environment with the policy and hooks of today, which hold after the fork."""
        self._pin = pin
        self._conversations = ConversationReader(rebuilder.reader)
        self._rebuilder, self._snapshots = rebuilder, snapshots
        self._images, self._blobs = images, blobs
        self._require_same_schemas, self._now_ms = check, now_ms

    async def reply(self, delivery: Delivery) -> ForkReceipt:
        """The query ``fork``."""
        session = check_client_session(delivery.key)
        query = decode_command(delivery.body, ForkRun, content_type=delivery.content_type)
        narrower = () if query.rights is UNSET else (check_rights(query.rights),)
        position = await self._find_position(query)
        self._require_same_schemas(position.run.environment)
        begun = position.before[0] if position.before else position.run
        runs = [*position.before, position.run] if position.is_run_end else position.before
        limits = position.run.environment.session_limits
        inherited = await self._rebuilder.rights_of(query.session)
        rights = check_count(intersect(inherited.rights, position.run.rights, narrower))
        conversation = await self._conversations.origin(
            query.session, position.run.generation, position.at
        )
        snapshot = await self._rebuilder.snapshot(session, position.base, runs, begun, limits)
        restoring = RestoreSnapshot(
            snapshot_id=snapshot.id,
            blob=await self._images.put_marked(
                snapshot.data, session, self._now_ms(), SNAPSHOT_BYTES_MAX
            ),
            language=position.run.environment.language,
            build=position.run.environment.build,
            size_bytes=len(snapshot.data),
            asked_by=delivery.id,
            forked_from=_fork_point(query.session, position),
            limits=limits,
            rights=rights or UNSET,
            descends_from=inherited.origins_of(session) or UNSET,
            classes=await self._rebuilder.classes_of(query.session),
            conversation=conversation,
        )
        if position.continues_run:
            restoring = await self._with_run(session, query.session, position, restoring)
        kept = await self._snapshots.open_session(session, restoring)
        await self._images.unmark(kept.blob)
        return _receipt(session, kept, position, conversation)

    async def _find_position(self, query: ForkRun) -> _ForkPosition:
        """The last boundary at or before the requested fact."""
        at = (query.at_sequence, inf if query.at_fact is UNSET else query.at_fact)
        reader, source = self._rebuilder.reader, check_client_session(query.session)
        run = await reader.find(source, query.run_id)
        if at < run.started_at:
            raise Refused(
                "INVALID_ARGUMENT",
                f"run {run.run_id} began at {run.started_at.sequence}.{run.started_at.number}, "
                f"after {query.at_sequence}",
                hint=f"rookery runs show {run.run_id} prints the positions of its facts",
            )
        base = await reader.snapshot_before(source, run)
        if run.environment.model is not UNSET:
            earlier = await reader.runs(source, run.generation, base)
            last = await self._last_fact(source, run, at)
            before = [one for one in earlier if one.ended_at is not None and one.ended_at <= last]
            return _ForkPosition(base, before, run, 0, last, {})
        *before, run = await reader.runs(source, run.generation, base, until=run.run_id)
        if run.ended_at is not None and run.ended_at <= at:
            return _ForkPosition(base, before, run, len(run.batches), run.ended_at, {})
        batches = bisect_right(run.boundaries, at)
        boundary = run.boundaries[batches - 1] if batches else run.started_at
        waits = {w.number: w.until_ms for w in run.waits if w.position <= at}
        return _ForkPosition(base, before, run, batches, boundary, waits)

    async def _last_fact(self, source: str, run: PastRun, at: tuple[int, float]) -> FactPosition:
        """The last fact of the run at or before a position."""
        found = run.started_at
        for position, fact in await self._rebuilder.reader.facts("turn", source, 0):
            if run.started_at < position <= at and fact.run == run.run_id:
                found = position
        return found

    async def _with_run(
        self,
        session: str,
        source: str,
        position: _ForkPosition,
        restoring: RestoreSnapshot,
    ) -> RestoreSnapshot:
        """Add the run, so that it continues in the new session."""
        run, request_blob = position.run, position.run.request_blob
        forked = ForkedRun(
            of=_fork_point(source, position),
            begun_at_ms=run.now_ms,
            offer=self._pin(run.environment),
            batches=position.batches,
            known_blob=await self._blobs.put(await self._known(source, position)),
            waits=position.waits or UNSET,
        )
        request = replace(
            run.hooked_request if position.batches else run.request, session_id=session
        )
        if isinstance(request_blob, str):
            if position.batches and run.injected:
                request_blob = await self._blobs.put(encode_json(request))
            request = replace(request, code="", inputs={}, files=UNSET)
        return replace(
            restoring,
            run=derived_uuid7(self._now_ms(), session, restoring.asked_by, "fork"),
            forked=forked,
            request=request,
            request_blob=request_blob,
        )

    async def _known(self, source: str, position: _ForkPosition) -> bytes:
        """The outcomes that the new run takes over; sealed if one of them may be sensitive."""
        reader, text = self._rebuilder.reader, encode_json(position.run.batches[: position.batches])
        if not await reader.sensitive_tools(position.run.environment):
            return text
        field = forked_field(_fork_point(source, position))
        return reader.call_seal(source).seal_batches(field, text)


def _receipt(
    session: str,
    kept: SnapshotState,
    position: _ForkPosition,
    conversation: ConversationOrigin | UnsetType,
) -> ForkReceipt:
    return ForkReceipt(
        session_id=session,
        snapshot_id=kept.snapshot_id,
        run_id=kept.run_id or None,
        calls=position.calls,
        at_sequence=position.at.sequence,
        at_fact=position.at.number,
        messages=0 if conversation is UNSET else conversation.messages,
    )


def _fork_point(source: str, position: _ForkPosition) -> ForkPoint:
    return ForkPoint(
        session=source,
        generation=position.run.generation,
        run_id=position.run.run_id,
        calls=position.calls,
        at_sequence=position.at.sequence,
        at_fact=position.at.number,
    )
