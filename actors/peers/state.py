"""The peers of a session: the states of its machines, its outbox and its exchanges. Data only."""

from __future__ import annotations

from typing import Final

import msgspec
from immutables import Map
from msgspec import UNSET, UnsetType

from rookery.actors.kernel.machines import SessionMachineState
from rookery.actors.peers.context_machine import SessionContext
from rookery.actors.peers.drain_machine import CommsDrain
from rookery.actors.peers.envelopes.envelope_rules import ReplayWindow
from rookery.actors.peers.interaction_machine import InboundRequests, OutboundRequests
from rookery.actors.peers.stream_machine import InteractionStreams
from rookery.schemas.facts.peer import RosterChange
from rookery.schemas.peers.envelope import OutboxEnvelope, UnansweredRequest
from rookery.schemas.peers.exchanges import AgentTask, UnmatchedReason
from rookery.schemas.peers.items import PeerItem, ReceivePattern, Responder

__all__ = [
    "QUEUED_BYTES_MAX",
    "QUEUED_ITEMS_MAX",
    "RECENT_CALLS_MAX",
    "UNANSWERED_MAX",
    "AgentCall",
    "DeclineRate",
    "EndedExchanges",
    "OpenRequest",
    "ReceivedItem",
    "Receiver",
    "SessionPeers",
]

UNANSWERED_MAX: Final = 1_000
"""Requests of peers without a response; more are declined."""
QUEUED_ITEMS_MAX: Final = 1_000
QUEUED_BYTES_MAX: Final = 8 << 20
"""Of envelopes that no program has received yet; requests beyond are declined, others dropped."""
RECENT_CALLS_MAX: Final = 1_000
"""How long after its end a call is known: until its turn has its end on record. A program awaits
500 calls together, and a node that dies may have recorded the ends of none in its turn."""
ENDED_MAX: Final = 5_000
"""Ended exchanges in each of two maps."""
DECLINES_MAX: Final = 10
"""Recorded a second for one sender."""


class OpenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of this session without its last response."""

    alias: str
    name: str
    intent: str
    due_at_ms: int
    thread: str

    @property
    def address(self) -> str:
        return f"{self.name}@{self.alias}"


class Receiver(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a program that waits for an item."""

    operation_id: str
    pattern: ReceivePattern
    until_ms: int = 0


class ReceivedItem(msgspec.Struct, frozen=True, kw_only=True):
    """What a call has received; it is returned if the program had dropped the call before."""

    operation_id: str
    item: PeerItem


class EndedExchanges(msgspec.Struct, frozen=True, kw_only=True):
    """What a late response to an ended request is, for the last ended ones, in constant memory."""

    newer: Map[str, UnmatchedReason] = Map()
    older: Map[str, UnmatchedReason] = Map()

    def get(self, corr_id: str) -> UnmatchedReason | None:
        return self.newer.get(corr_id) or self.older.get(corr_id)

    def add(self, corr_id: str, why: UnmatchedReason) -> EndedExchanges:
        newer = self.newer.set(corr_id, why)
        if len(newer) < ENDED_MAX:
            return EndedExchanges(newer=newer, older=self.older)
        return EndedExchanges(older=newer)


class DeclineRate(msgspec.Struct, frozen=True):
    """How many requests of one sender were declined in the current second."""

    second: int = 0
    count: int = 0

    def is_exceeded(self, now_ms: int) -> bool:
        return self.second == now_ms // 1_000 and self.count >= DECLINES_MAX

    def add(self, at_ms: int) -> DeclineRate:
        second = at_ms // 1_000
        return DeclineRate(second, self.count + 1 if second == self.second else 1)


class StreamReader(msgspec.Struct, frozen=True, kw_only=True):
    """The reader of a stream."""

    reserved_at_ms: int
    name: str = ""
    """Empty until it is attached."""
    operation_id: str = ""
    """Of the program's call that sent the request, if a program reads."""


class AgentCall(msgspec.Struct, frozen=True, kw_only=True):
    """A message to an agent elsewhere that has left, or was about to."""

    task: AgentTask | UnsetType = UNSET
    """What the request has become there; unset while no answer is on record."""
    last: str = ""
    """Digest of its last report of progress."""


class SessionPeers(SessionMachineState, frozen=True, kw_only=True):
    """The state of one key; ingress only uses the host."""

    outbound: OutboundRequests = OutboundRequests()
    inbound: InboundRequests = InboundRequests()
    streams: InteractionStreams = InteractionStreams()
    drain: CommsDrain = CommsDrain()
    context: SessionContext = SessionContext()
    requests: Map[str, OpenRequest] = Map()
    """Of this session, by id: what the outbound machine does not have."""
    readers: Map[str, StreamReader] = Map()
    """Of streams, by the id of the request: what the machine of streams does not have."""
    unanswered: Map[str, UnansweredRequest] = Map()
    """Of peers, by id: what the inbound machine does not have."""
    ended: EndedExchanges = EndedExchanges()
    replied: EndedExchanges = EndedExchanges()
    """Of peers' requests."""
    outbox: Map[str, OutboxEnvelope] = Map()
    """Envelopes that no inbox has yet, by id."""
    agent_calls: Map[str, AgentCall] = Map()
    """To agents elsewhere, by the id of the envelope."""
    counters: Map[str, int] = Map()
    """The last number of an envelope, by the sender's key and the receiver."""
    declines: Map[str, DeclineRate] = Map()
    """By the key of the sender."""
    windows: Map[str, ReplayWindow] = Map()
    """The numbers of envelopes by the key of their sender."""
    queue: tuple[PeerItem, ...] = ()
    """What peers have sent, and neither a receiver nor the responder has got yet."""
    receivers: tuple[Receiver, ...] = ()
    received: tuple[ReceivedItem, ...] = ()
    """By calls that ended lately."""
    recent_calls: tuple[str, ...] = ()
    """The calls that have ended lately, but for requests."""
    responder: Responder | UnsetType = UNSET
    serving: PeerItem | UnsetType = UNSET
    """The item that a run of the responder handles."""
    failures: int = 0
    """How many such runs have failed since the last one that did not."""
    respawns: int = 0
    """How often the drain was spawned again since then."""
    drain_due_ms: int = 0
    """When its timer fires; 0 without one."""
    roster: tuple[RosterChange, ...] = ()
    """All changes of the roster, genuine and forged: ``Roster`` tells them apart. Only under
    ``_roster``."""
    expired: Map[str, int] = Map()
    """By alias: the time that was over, where that is on record. Only under ``_roster``."""
