"""What a session records of an agent elsewhere: its calls, its tasks and its responses. Pure.

An agent does not sign. What it says is trusted by TLS and by the card that was accepted, and is on
record as that: an envelope that this realm has made of the answer, with no signature.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from rookery.actors.kernel import FactBuilder
from rookery.actors.kernel.machines import TransitionRejected
from rookery.actors.peers.admission import ingress_facts
from rookery.actors.peers.agents.agent_messages import failed_response
from rookery.actors.peers.envelopes.envelope_rules import EnvelopeSender, ReplayWindow
from rookery.actors.peers.roster.roster_rules import Roster
from rookery.actors.peers.state import SessionPeers
from rookery.schemas.digest import canonical_json, digest_json
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import peer as facts
from rookery.schemas.ids import derived_uuid7
from rookery.schemas.machines.peer import ResponseStatus
from rookery.schemas.machines.peer_admission import classification_params
from rookery.schemas.peers.envelope import (
    AUTH_A2A,
    ENVELOPE_BYTES_MAX,
    Envelope,
    EnvelopeArrival,
    EnvelopeKind,
    read_envelope,
)
from rookery.schemas.peers.exchanges import AgentTask, PeerResponse, UnmatchedReason

if TYPE_CHECKING:
    from rookery.actors.peers.decider import PeersDecider

__all__ = [
    "AgentCallBegun",
    "AgentHasTask",
    "AgentReported",
    "AgentResponded",
    "AgentRules",
    "CallAgent",
    "agent_reply",
    "with_agent_tasks",
]

_LIFE_MS: Final = 60_000


class CallAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An envelope of the outbox is about to leave for an agent."""

    item_id: str
    continues: str = ""
    """The request whose task its message is for, if it names one."""


class AgentCallBegun(msgspec.Struct, frozen=True, kw_only=True):
    """The reply: whether it may leave, and may have left before."""

    is_over: bool
    """No inbox is looked for any more."""
    is_repeat: bool
    task: AgentTask | UnsetType = UNSET


class AgentHasTask(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's answer to a request is a task."""

    item_id: str
    task: AgentTask


class AgentResponded(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the task has changed, or the agent has answered without one."""

    request_id: str
    response: PeerResponse


class AgentReported(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to both."""

    is_open: bool
    """Whether the request still waits for its last response."""


class AgentRules(NamedTuple):
    """What one report of an agent leaves in a session."""

    decider: PeersDecider
    state: SessionPeers
    session: str
    roster: Roster
    now_ms: int

    def record(self, report: CallAgent | AgentHasTask | AgentResponded) -> Sequence[Fact]:
        """The facts of what an agent is about to get, or has answered."""
        state = self.state
        match report:
            case CallAgent(item_id=item_id):
                if item_id not in state.outbox or item_id in state.agent_calls:
                    return ()
                if state.ended.get(item_id) is not None:  # Nothing waits for it any more.
                    return (facts.MessageFailed(item_id=item_id, code="PEER_TIMED_OUT"),)
                return (facts.AgentCalled(item_id=item_id),)
            case AgentHasTask(item_id=item_id, task=task):
                is_known = item_id not in state.outbox
                return () if is_known else (facts.AgentTaskBegun(corr_id=item_id, task=task),)
            case AgentResponded(request_id=corr_id, response=response):
                if corr_id not in state.requests:
                    return self._unmatched(corr_id, response)
                return self._respond(corr_id, response)

    def _unmatched(self, corr_id: str, response: PeerResponse) -> Sequence[Fact]:
        if response.status is ResponseStatus.ACCEPTED:
            return ()
        why = self.state.ended.get(corr_id) or UnmatchedReason.UNKNOWN
        return (facts.ResponseUnmatched(in_reply_to=corr_id, why=why),)

    def _respond(self, corr_id: str, response: PeerResponse) -> Sequence[Fact]:
        """The response moves its request, as one would that arrives in an envelope."""
        state, decider, session = self.state, self.decider, self.session
        call = state.agent_calls.get(corr_id)
        if call is not None and call.last == digest_json(response):
            return ()
        peer = self.roster.peer_of(state.requests[corr_id].alias)
        sender = EnvelopeSender.of_agent(peer, self.roster.count)
        if peer.is_revoked(sender.name, sender.realm_key, self.now_ms):
            response = failed_response("PEER_REVOKED", "the agent is not trusted any more")
        text = self._envelope_text(corr_id, response, sender)
        envelope = read_envelope(text)
        builder: FactBuilder[SessionPeers, Any] = FactBuilder(state, decider.evolve)
        if corr_id in state.outbox:
            builder.add(facts.EnvelopesDelivered(ids=(corr_id,)))
        params = classification_params(ingress_facts(envelope, sender))
        on = "classify_external_envelope"
        try:
            (fact,) = decider.decide_input(builder.state, session, on, params)
        except TransitionRejected:  # The session has ended.
            return builder.facts
        arrival = EnvelopeArrival(
            text=text.decode(),
            signature="",
            sender=sender.address,
            peer_id=sender.peer_id,
            from_key=sender.realm_key,
            n=envelope.n,
            roster_change=sender.change,
            arrived_ms=self.now_ms,
            auth=AUTH_A2A,
        )
        builder.add(replace(fact, arrival=arrival))
        builder.add(decider.response_fact(builder.state, session, envelope, sender))
        return builder.facts

    def _envelope_text(self, corr_id: str, response: PeerResponse, sender: EnvelopeSender) -> bytes:
        """The answer as the envelope that a peer of ours would have sent."""
        number = self.state.windows.get(sender.realm_key, ReplayWindow()).highest + 1
        envelope = Envelope(
            v=1,
            kind=EnvelopeKind.RESPONSE,
            id=derived_uuid7(self.now_ms, corr_id, str(number), "a2a"),
            from_=sender.name,
            from_key=sender.realm_key,
            to=self.session,
            to_realm_key=self.roster.realm_key,
            n=number,
            at_ms=self.now_ms,
            expires_at_ms=self.now_ms + _LIFE_MS,
            in_reply_to=corr_id,
            thread=self.state.requests[corr_id].thread,
            status=response.status,
            phase=response.phase,
            result=response.result,
            error=response.error,
        )
        try:
            text = canonical_json(envelope)
            if len(text) > ENVELOPE_BYTES_MAX:
                raise Refused("PAYLOAD_TOO_LARGE", f"it has {len(text)} bytes")
            read_envelope(text)
        except Refused as refusal:
            failure = failed_response(refusal.code, f"the agent's answer: {refusal.message}")
            members = {"status": failure.status, "error": failure.error}
            return canonical_json(replace(envelope, phase=UNSET, result=UNSET, **members))
        return text


def agent_reply(state: SessionPeers, report: Any, left: Sequence[Fact]) -> msgspec.Struct:
    """The reply to a report. ``left``: its facts."""
    if not isinstance(report, CallAgent):
        corr_id = report.item_id if isinstance(report, AgentHasTask) else report.request_id
        return AgentReported(is_open=corr_id in state.requests)
    continued = state.agent_calls.get(report.continues)
    return AgentCallBegun(
        is_over=report.item_id not in state.outbox,
        is_repeat=not left,
        task=UNSET if continued is None else continued.task,
    )


def with_agent_tasks(state: SessionPeers, left: Sequence[Fact]) -> list[Fact]:
    """The facts, where those that end requests before their time name what their agents do for
    them. ``state``: before the facts."""
    return [_with_task(state, fact) for fact in left]


def _with_task(state: SessionPeers, fact: Fact) -> Fact:
    if not isinstance(fact, facts.RequestTimedOut):
        return fact
    call = state.agent_calls.get(fact.corr_id)
    return fact if call is None or call.task is UNSET else replace(fact, task=call.task)
