"""What a session sends: the rules of the verb ``send``, and the envelopes as their bytes. Pure but
for the roster and the public keys of this node.

The envelope is in the fact before it leaves. Its number counts the envelopes of the session's key
to this receiver, so that the receiver finds replays however late they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.peers.effects import EnvelopeFailed
from rookery.actors.peers.evolve import counter_key
from rookery.actors.peers.roster.roster_rules import Roster
from rookery.actors.peers.state import SessionPeers
from rookery.actors.peers.trust.peer_keys import peer_id_of
from rookery.schemas.digest import canonical_json
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import peer as facts
from rookery.schemas.ids import derived_uuid7
from rookery.schemas.machines.peer import ResponseStatus
from rookery.schemas.peers.envelope import (
    ENVELOPE_BYTES_MAX,
    Envelope,
    EnvelopeKind,
    OutboxEnvelope,
    PeerFailure,
    UnansweredRequest,
    read_envelope,
)
from rookery.schemas.peers.exchanges import (
    EnvelopeReceipt,
    ExchangeList,
    ListedRequest,
    SendEnvelope,
)
from rookery.schemas.peers.roster import PeerKind

if TYPE_CHECKING:
    from rookery.actors.peers.decider import PeersDecider

__all__ = [
    "OutboxRules",
    "SendContext",
    "delivered",
    "end_delivery",
    "list_exchanges",
]

PATH_MAX: Final = 16
_WEEK_MS: Final = 7 * 86_400_000


class SendContext(NamedTuple):
    """What a node knows of its realm when a session sends."""

    realm: str
    roster: Callable[[], Roster]
    """``Failed`` while the roster is not known."""
    session_key: Callable[[Roster, str], str]
    """The present public key of a session; ``VAULT_KEY_MISSING``."""


class _Receiver(NamedTuple):
    alias: str
    name: str
    realm_key: str
    """A client's own."""
    kind: PeerKind = PeerKind.REALM


class OutboxRules:
    """The envelopes of one session."""

    def __init__(
        self,
        context: SendContext,
        state: SessionPeers,
        session: str,
        command_id: str,
        now_ms: int,
        *,
        envelope_id: str = "",
    ) -> None:
        """``envelope_id``: of a program's call; else it follows from the command."""
        self._context, self._state, self._session = context, state, session
        self._command_id, self._now_ms = command_id, now_ms
        self._roster, self._envelope_id = context.roster(), envelope_id

    @property
    def envelope_id(self) -> str:
        """The same for a repeated command."""
        if self._envelope_id:
            return self._envelope_id
        return derived_uuid7(0, self._roster.realm_key, self._session, self._command_id)

    @property
    def own_id(self) -> str:
        """The session's id as a peer."""
        return peer_id_of(self._roster.realm_key, self._session)

    def receipt(self, sending: SendEnvelope) -> EnvelopeReceipt:
        """The reply to a command, also to a repeated one."""
        thread = self.envelope_id if sending.thread is UNSET else sending.thread
        to = sending.to or sending.in_reply_to or ""
        return EnvelopeReceipt(id=self.envelope_id, thread=thread, to=to)

    def send(
        self, sending: SendEnvelope, *, path: tuple[str, ...] = (), peer_id: str = ""
    ) -> Sequence[Fact]:
        """The facts of an envelope; a machine still decides on those of an exchange. ``path``: the
        peers that wait for a request; ``peer_id``: whom a response is for, if that is to be
        checked."""
        if sending.intent is not UNSET:
            return (self._request(sending, path),)
        if sending.stream:
            raise Refused("INVALID_ARGUMENT", "only a request has a stream of responses")
        if sending.status is not UNSET:
            return (self._response(sending, peer_id),)
        if sending.to is UNSET or sending.body is UNSET:
            raise Refused("INVALID_ARGUMENT", "a message has a receiver and a body")
        receiver = self._find(sending.to)
        members = {
            "kind": EnvelopeKind.MESSAGE,
            "body": sending.body,
            "in_reply_to": sending.in_reply_to,
            "thread": sending.thread,
        }
        return (facts.MessageSent(sent=self._pack(receiver, members)),)

    def decline(
        self, corr_id: str, request: UnansweredRequest, code: str, message: str
    ) -> OutboxEnvelope:
        """The response to a request that is not wanted."""
        error = PeerFailure(code=code, message=message)
        return self._answer(corr_id, request, {"status": ResponseStatus.FAILED, "error": error})

    def _request(self, sending: SendEnvelope, path: tuple[str, ...]) -> Fact:
        if sending.to is UNSET:
            raise Refused("INVALID_ARGUMENT", "a request has a receiver")
        if len(path) > PATH_MAX:
            text = f"{len(path)} peers would wait for this request, the limit is {PATH_MAX}"
            raise Refused("PEER_TOO_DEEP", text)
        receiver = self._find(sending.to)
        due_at_ms = self._now_ms + sending.timeout_ms
        members = {
            "kind": EnvelopeKind.REQUEST,
            "intent": sending.intent,
            "params": sending.params,
            "due_at_ms": due_at_ms,
            "thread": sending.thread,
            "path": path,
        }
        sent = self._pack(receiver, members, life_ms=min(sending.timeout_ms, _WEEK_MS))
        return facts.RequestSent(
            corr_id=sent.id,
            dest=f"{receiver.name}@{receiver.alias}",
            sent=sent,
            intent=str(sending.intent),
            thread=sent.id if sending.thread is UNSET else sending.thread,
            due_at_ms=due_at_ms,
        )

    def _response(self, sending: SendEnvelope, peer_id: str) -> Fact:
        corr_id = sending.in_reply_to
        if corr_id is UNSET or sending.to is not UNSET:
            raise Refused(
                "INVALID_ARGUMENT", "a response names its request, and goes to the peer that asked"
            )
        request = self._state.unanswered.get(corr_id)
        if request is not None and peer_id not in ("", self._peer_id(request)):
            request = None
        if request is None and self._state.replied.get(corr_id) is not None:
            raise Refused("PEER_ALREADY_REPLIED", f"request {corr_id} has its last response")
        if request is None:
            raise Refused(
                "PEER_REQUEST_NOT_FOUND",
                f"no peer waits for a response to {corr_id}",
                hint=f"rookery peers exchanges {self._session}",
            )
        members = {
            "status": sending.status,
            "phase": sending.phase,
            "result": sending.result,
            "error": sending.error,
        }
        sent = self._answer(corr_id, request, members)
        if sending.status is ResponseStatus.ACCEPTED:
            return facts.ProgressSent(corr_id=corr_id, sent=sent)
        return facts.ResponseReplied(corr_id=corr_id, sent=sent)

    def _peer_id(self, request: UnansweredRequest) -> str:
        """The id of the peer that has asked."""
        receiver = self._find(f"{request.name}@{request.alias}")
        return peer_id_of(receiver.realm_key, receiver.name)

    def _answer(
        self, corr_id: str, request: UnansweredRequest, members: dict[str, Any]
    ) -> OutboxEnvelope:
        receiver = self._find(f"{request.name}@{request.alias}")
        answer = {"kind": EnvelopeKind.RESPONSE, "in_reply_to": corr_id, "thread": request.thread}
        return self._pack(receiver, answer | members)

    def _find(self, address: str) -> _Receiver:
        name, _, alias = self._roster.full_address(address).partition("@")
        if alias in ("", self._context.realm):
            return _Receiver(self._context.realm, name, self._roster.realm_key)
        peer = self._roster.peer_of(alias)
        if peer.is_revoked(name, peer.pairing.key, self._now_ms):
            raise Refused("PEER_REVOKED", f"{address} is not trusted any more")
        kind = peer.pairing.kind
        if kind is not PeerKind.REALM and name not in peer.pairing.names:
            word = "client" if kind is PeerKind.CLIENT else "agent"
            raise Refused("PEER_UNKNOWN", f"the {word} {alias} is {peer.pairing.names[0]}@{alias}")
        return _Receiver(alias, name, peer.pairing.key, kind)

    def _pack(
        self, receiver: _Receiver, members: dict[str, Any], life_ms: int = _WEEK_MS
    ) -> OutboxEnvelope:
        """The envelope as its bytes; ``Refused`` if no receiver would admit them."""
        session, state = self._session, self._state
        from_key = self._context.session_key(self._roster, session)
        counter = counter_key(from_key, receiver.alias, receiver.name)
        envelope = Envelope(
            v=1,
            id=self.envelope_id,
            from_=session,
            from_key=from_key,
            to=receiver.name,
            to_realm_key=receiver.realm_key,
            n=state.counters.get(counter, 0) + 1,
            at_ms=self._now_ms,
            expires_at_ms=self._now_ms + life_ms,
            **members,
        )
        text = canonical_json(envelope)
        if len(text) > ENVELOPE_BYTES_MAX:
            raise Refused("PAYLOAD_TOO_LARGE", f"an envelope of {len(text)} bytes")
        try:
            read_envelope(text)
        except Refused as refusal:
            raise Refused("INVALID_ARGUMENT", refusal.message) from None
        return OutboxEnvelope(
            id=envelope.id,
            alias=receiver.alias,
            to=receiver.name,
            text=text.decode(),
            from_key=from_key,
            n=envelope.n,
            expires_at_ms=envelope.expires_at_ms,
            is_client=receiver.kind is PeerKind.CLIENT,
            is_agent=receiver.kind is PeerKind.AGENT,
        )


def delivered(state: SessionPeers, item_id: str) -> Sequence[Fact]:
    """The facts of an envelope that an inbox has."""
    known = item_id in state.outbox
    return (facts.EnvelopesDelivered(ids=(item_id,)),) if known else ()


def end_delivery(
    decider: PeersDecider, state: SessionPeers, session: str, failed: EnvelopeFailed
) -> Sequence[Fact]:
    """The facts of an envelope that no inbox will get."""
    if failed.item_id not in state.outbox:
        return ()
    if failed.item_id not in state.requests:
        return (facts.MessageFailed(item_id=failed.item_id, code=failed.code),)
    params = {"corr_id": failed.item_id}
    (fact,) = decider.decide_input(state, session, "request_send_failed", params)
    return (replace(fact, code=failed.code),)


def list_exchanges(state: SessionPeers) -> ExchangeList:
    """The open exchanges of a session."""
    pending = state.outbound.pending_peer_requests
    requests = (
        ListedRequest(
            id=corr_id,
            peer=request.address,
            intent=request.intent,
            due_at_ms=request.due_at_ms,
            state=pending.get(corr_id),
            thread=request.thread,
        )
        for corr_id, request in sorted(state.requests.items())
    )
    unanswered = (
        ListedRequest(
            id=corr_id,
            peer=f"{request.name}@{request.alias}",
            intent=request.intent,
            due_at_ms=request.due_at_ms,
            thread=request.thread,
        )
        for corr_id, request in sorted(state.unanswered.items())
    )
    return ExchangeList(
        requests=tuple(requests), unanswered=tuple(unanswered), undelivered=len(state.outbox)
    )
