"""The approvals and grants of a realm, folded from their facts, and the queries about them.

Only the newest ended ones are stored. Facts and values that this version does not know are
skipped, since a list must not fail. The queries work without a node, too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from rookery.actors.projections.checkpoint import CheckpointStore, version_of
from rookery.actors.projections.pages import Unpaged
from rookery.actors.projections.projector import Projector
from rookery.bus.ports import Delivery, Filter, Journal, StoredMessage
from rookery.schemas.approvals.lists import (
    ApprovalList,
    ApprovalState,
    GrantedQuery,
    GrantList,
    GrantState,
    ListedApproval,
    ListedGrant,
    PendingQuery,
)
from rookery.schemas.approvals.records import tool_digest
from rookery.schemas.codec import decode_command, fact_tag
from rookery.schemas.envelope import Fact
from rookery.schemas.facts import approval
from rookery.schemas.ids import check_session_id

__all__ = ["ENDED_KEPT_MAX", "ApprovalProjection", "ApprovalQueryHandler"]

FAMILY: Final = "approval"
FOLDS: Final = 2
ENDED_KEPT_MAX: Final = 1_000
_ENDS: Final = frozenset(ApprovalState) - {ApprovalState.PENDING}

T = TypeVar("T")


class PolicyRefView(Struct, gc=False):
    id: str = ""


class ApprovalRequestView(Struct, gc=False):
    allowed_decisions: tuple[str, ...] = ()
    policy_refs: tuple[PolicyRefView, ...] = ()


class ApprovalRecordView(Struct, gc=False):
    request: ApprovalRequestView | None = None


class RecordPayloadView(Struct, gc=False):
    record: ApprovalRecordView | None = None


class JournalRecordView(Struct, gc=False):
    payload: RecordPayloadView | None = None

    @property
    def approval_request(self) -> ApprovalRequestView:
        payload = self.payload
        recorded = None if payload is None else payload.record
        return (None if recorded is None else recorded.request) or ApprovalRequestView()


class ApprovalFactView(Struct, gc=False):
    """The fields of approval facts that lists show."""

    type: str
    at_ms: int = 0
    approval_id: str = ""
    operation_id: str = ""
    run: str = ""
    attempt: int = 1
    tool: str = ""
    surface: str = ""
    side_effect: str = ""
    policy: str = ""
    request_digest: str = ""
    schema_digest: str = ""
    arguments_ref: str = ""
    summary: str = ""
    due_ms: int = 0
    why: str = ""
    dispatchers: tuple[str, ...] = ()
    decision: str = ""
    actor: str = ""
    verified: bool = False
    status: str = ""
    reason_code: str = ""
    reason: str = ""
    grant_id: str = ""
    expires_at_ms: int = 0
    record: JournalRecordView | None = None


_decode = msgspec.json.Decoder(list[ApprovalFactView]).decode


class ApprovalPart(Struct, array_like=True):
    """The whole projection in one part, since it stores few ended approvals."""

    pending: list[ListedApproval]
    ended: list[ListedApproval]
    automatic: list[ApprovalFactView]
    issued: list[ListedGrant]
    spent: list[ListedGrant]


class ApprovalProjection(Unpaged):
    """The approvals by approval id and the grants by grant id."""

    name = "approvals"
    version = version_of(FOLDS, ApprovalPart)

    def __init__(self) -> None:
        self._pending: dict[str, ListedApproval] = {}
        self._pending_of: dict[str, set[str]] = {}
        """The ids of a session's pending approvals."""
        self._ended: OrderedDict[str, ListedApproval] = OrderedDict()
        self._automatic: dict[str, ApprovalFactView] = {}
        """Calls allowed by a rule or a session grant, until their grant is issued."""
        self._issued: dict[str, ListedGrant] = {}
        self._spent: OrderedDict[str, ListedGrant] = OrderedDict()

    def apply(self, stored: StoredMessage) -> None:
        """Fold a message of the journal."""
        if stored.entity.family != FAMILY:
            return
        try:
            facts = _decode(stored.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return  # Sealed or damaged.
        for fact in facts:
            fold = _FOLDS.get(fact.type)
            if fold is not None:
                fold(self, stored.entity.key, fact)

    def parts(self) -> Iterator[bytes]:
        """The contents of a checkpoint."""
        tables = (self._pending, self._ended, self._automatic, self._issued, self._spent)
        yield msgspec.msgpack.encode([list(entries.values()) for entries in tables])

    def empty(self) -> ApprovalProjection:
        return ApprovalProjection()

    def restore(self, part: bytes) -> None:
        """Add the part of a checkpoint."""
        stored = msgspec.msgpack.decode(part, type=ApprovalPart)
        for one in stored.pending:
            self._add_pending(one)
        self._ended |= {one.approval_id: one for one in stored.ended}
        self._automatic |= {one.approval_id: one for one in stored.automatic}
        self._issued |= {one.grant_id: one for one in stored.issued}
        self._spent |= {one.grant_id: one for one in stored.spent}

    @property
    def waiting(self) -> int:
        """How many requests wait for an answer."""
        return len(self._pending)

    def get(self, approval_id: str) -> ListedApproval | None:
        return self._pending.get(approval_id) or self._ended.get(approval_id)

    def approvals(self, session: str | None = None, *, ended: bool) -> Iterator[ListedApproval]:
        """Pending approvals of a session or of all, soonest due first; then ended ones, newest
        first."""
        ids = self._pending if session is None else self._pending_of.get(session, ())
        pending = map(self._pending.__getitem__, ids)
        yield from sorted(pending, key=lambda a: (a.due_ms, a.approval_id))
        if ended:
            yield from _of_session(session, reversed(self._ended.values()))

    def grants(self, *, ended: bool, now_ms: int) -> Iterator[ListedGrant]:
        """Grants, newest first; a grant past its time is expired, also without a fact."""
        for grant in reversed(self._issued.values()):
            if grant.expires_at_ms > now_ms:
                yield grant
            elif ended:
                yield replace(grant, state=GrantState.EXPIRED)
        if ended:
            yield from reversed(self._spent.values())

    def _add_pending(self, one: ListedApproval) -> None:
        self._pending[one.approval_id] = one
        self._pending_of.setdefault(one.session_id, set()).add(one.approval_id)

    def _pop_pending(self, approval_id: str) -> ListedApproval | None:
        known = self._pending.pop(approval_id, None)
        if known is not None:
            of_session = self._pending_of[known.session_id]
            of_session.discard(approval_id)
            if not of_session:
                del self._pending_of[known.session_id]
        return known

    # --- one fold a fact --------------------------------------------------------------------------

    def _on_requested(self, session: str, fact: ApprovalFactView) -> None:
        request = (fact.record or JournalRecordView()).approval_request
        requested = ListedApproval(
            approval_id=fact.approval_id,
            session_id=session,
            run_id=fact.run,
            operation_id=fact.operation_id,
            attempt=fact.attempt,
            tool=fact.tool,
            surface=fact.surface,
            side_effect=fact.side_effect,
            policy=fact.policy,
            policy_refs=tuple(ref.id for ref in request.policy_refs),
            allowed_decisions=request.allowed_decisions,
            summary=fact.summary,
            request_digest=fact.request_digest,
            tool_digest=tool_digest(fact.tool, fact.surface, fact.schema_digest, fact.policy),
            arguments_ref=fact.arguments_ref,
            requested_at_ms=fact.at_ms,
            due_ms=fact.due_ms,
            why=fact.why,
        )
        self._add_pending(requested)

    def _on_dispatched(self, session: str, fact: ApprovalFactView) -> None:
        del session
        if (known := self._pending.get(fact.approval_id)) is not None:
            names = dict.fromkeys((*known.dispatchers, *fact.dispatchers))
            self._pending[fact.approval_id] = replace(known, dispatchers=tuple(names))

    def _on_refused(self, session: str, fact: ApprovalFactView) -> None:
        del session
        for table in (self._pending, self._ended):
            if (known := table.get(fact.approval_id)) is not None:
                table[fact.approval_id] = replace(known, answers_refused=known.answers_refused + 1)

    def _on_answered(self, session: str, fact: ApprovalFactView) -> None:
        del session
        self._end(
            fact,
            fact.decision,
            reason_code=f"approval.{fact.decision}",
            reason=fact.reason,
            actor=fact.actor,
            verified=fact.verified,
        )

    def _on_closed(self, session: str, fact: ApprovalFactView) -> None:
        """End the approval, or add the code to a denial, whose answer has more details."""
        del session
        known = self._ended.get(fact.approval_id)
        if known is not None:
            self._ended[fact.approval_id] = replace(known, reason_code=fact.reason_code)
            return
        self._end(fact, fact.status, reason_code=fact.reason_code, reason=fact.reason)

    def _end(self, fact: ApprovalFactView, state: str, **changes: Any) -> None:
        if state not in _ENDS:
            return  # An end that only a newer version knows.
        known = self._pop_pending(fact.approval_id)
        if known is not None:
            changes |= {"state": ApprovalState(state), "ended_at_ms": fact.at_ms}
            _put_bounded(self._ended, fact.approval_id, replace(known, **changes))

    def _on_auto_allowed(self, session: str, fact: ApprovalFactView) -> None:
        del session
        self._automatic[fact.approval_id] = fact

    def _on_grant_issued(self, session: str, fact: ApprovalFactView) -> None:
        known = self._automatic.pop(fact.approval_id, None) or self.get(fact.approval_id)
        self._issued[fact.grant_id] = ListedGrant(
            grant_id=fact.grant_id,
            session_id=session,
            approval_id=fact.approval_id,
            operation_id=fact.operation_id,
            tool="" if known is None else known.tool,
            policy="" if known is None else known.policy,
            actor="" if known is None else known.actor,
            issued_at_ms=fact.at_ms,
            expires_at_ms=fact.expires_at_ms,
        )

    def _on_session_grant_issued(self, session: str, fact: ApprovalFactView) -> None:
        self._issued[fact.grant_id] = ListedGrant(
            grant_id=fact.grant_id,
            session_id=session,
            approval_id=fact.approval_id,
            tool=fact.tool,
            policy=fact.policy,
            actor=fact.actor,
            issued_at_ms=fact.at_ms,
            expires_at_ms=fact.expires_at_ms,
        )

    def _on_grant_spent(self, fact: ApprovalFactView, state: GrantState) -> None:
        known = self._issued.pop(fact.grant_id, None)
        if known is not None:
            _put_bounded(self._spent, fact.grant_id, replace(known, state=state))


def _put_bounded(table: OrderedDict[str, T], key: str, value: T) -> None:
    table[key] = value
    if len(table) > ENDED_KEPT_MAX:
        table.popitem(last=False)


def _grant_spender(
    state: GrantState,
) -> Callable[[ApprovalProjection, str, ApprovalFactView], None]:
    return lambda table, _, fact: table._on_grant_spent(fact, state)


_ApprovalFold = Callable[[ApprovalProjection, str, ApprovalFactView], None]
_KINDS: Final[Mapping[type[Fact], _ApprovalFold]] = {
    approval.Requested: ApprovalProjection._on_requested,
    approval.DispatchIntended: ApprovalProjection._on_dispatched,
    approval.Escalated: ApprovalProjection._on_dispatched,
    approval.AnswerRefused: ApprovalProjection._on_refused,
    approval.Answered: ApprovalProjection._on_answered,
    approval.Closed: ApprovalProjection._on_closed,
    approval.AutoAllowed: ApprovalProjection._on_auto_allowed,
    approval.GrantIssued: ApprovalProjection._on_grant_issued,
    approval.SessionGrantIssued: ApprovalProjection._on_session_grant_issued,
    approval.GrantConsumed: _grant_spender(GrantState.CONSUMED),
    approval.GrantExpired: _grant_spender(GrantState.EXPIRED),
    approval.GrantRevoked: _grant_spender(GrantState.REVOKED),
}
_FOLDS: Final = {fact_tag(kind): fold for kind, fold in _KINDS.items()}


L = TypeVar("L", ListedApproval, ListedGrant)


class ApprovalQueryHandler:
    """Replies to the queries ``pending`` and ``granted``. Runs on the bus's loop."""

    def __init__(self, projector: Projector, now_ms: Callable[[], int]) -> None:
        """``projector`` has an ``ApprovalProjection``."""
        self._projector, self._now_ms = projector, now_ms

    @classmethod
    def without_node(
        cls,
        journal: Journal,
        now_ms: Callable[[], int],
        *,
        session: str | None = None,
        store: CheckpointStore | None = None,
    ) -> ApprovalQueryHandler:
        """A handler that reads the journal of one ``session`` or of all.

        For all sessions it starts at the checkpoint in ``store``, if there is one.
        """
        store = store if session is None else None
        where = Filter("approval", session)
        return cls(Projector(journal, [ApprovalProjection()], where, store), now_ms)

    @property
    def waiting(self) -> int:
        """How many requests wait for an answer, as far as the journal was read."""
        return self._projection.waiting

    @property
    def _projection(self) -> ApprovalProjection:
        return self._projector.projection(ApprovalProjection)

    async def list_approvals(self, query: PendingQuery) -> ApprovalList:
        """The matching approvals."""
        await self._projector.refresh()
        return self._approvals(query)

    async def list_grants(self, query: GrantedQuery) -> GrantList:
        """The matching grants."""
        await self._projector.refresh()
        return self._grants(query)

    async def handle_pending(self, delivery: Delivery) -> ApprovalList:
        """The query ``pending``."""
        await self._projector.refresh_for_query()
        return self._approvals(
            decode_command(delivery.body, PendingQuery, content_type=delivery.content_type)
        )

    async def handle_granted(self, delivery: Delivery) -> GrantList:
        """The query ``granted``."""
        await self._projector.refresh_for_query()
        return self._grants(
            decode_command(delivery.body, GrantedQuery, content_type=delivery.content_type)
        )

    def _approvals(self, query: PendingQuery) -> ApprovalList:
        """The matching approvals, as far as the journal was read."""
        _check_session(query.session)
        if query.approval_id is not None:
            found = self._projection.get(query.approval_id)
            return ApprovalList() if found is None else ApprovalList(approvals=(found,), total=1)
        listed = list(self._projection.approvals(query.session, ended=query.ended))
        return ApprovalList(approvals=tuple(listed[: query.limit]), total=len(listed))

    def _grants(self, query: GrantedQuery) -> GrantList:
        """The matching grants, as far as the journal was read."""
        _check_session(query.session)
        grants = self._projection.grants(ended=query.ended, now_ms=self._now_ms())
        listed = _of_session(query.session, grants)
        return GrantList(grants=tuple(listed[: query.limit]), total=len(listed))


def _check_session(session: str | None) -> None:
    if session is not None:
        check_session_id(session)


def _of_session(session: str | None, listed: Iterable[L]) -> list[L]:
    return [one for one in listed if session in (None, one.session_id)]
