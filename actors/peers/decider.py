"""The decider of the family ``peer``: binds its six machines to the session, and has the roster.

The machines record what a session admits, which answers it awaits and owes, and its streams. The
roster is an entity of its own: the peers that the realm trusts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from rookery.actors.admission.admission_machine import evolve_host
from rookery.actors.kernel import Effect, FactBuilder
from rookery.actors.kernel.machines import (
    LIVE,
    Reservation,
    SessionHost,
    SessionMachineDecider,
    TransitionRejected,
)
from rookery.actors.messages import (
    BeginPeerCall,
    HandlerEnded,
    PeerCallAcknowledged,
    WithdrawPeerCall,
)
from rookery.actors.peers.admission import (
    NotAttended,
    arrival_of,
    check_request,
    ingress_facts,
    response_of,
    unanswered_request,
    unmatched,
    verify_arrival,
)
from rookery.actors.peers.agents.agent_rules import (
    AgentHasTask,
    AgentResponded,
    AgentRules,
    CallAgent,
    agent_reply,
    with_agent_tasks,
)
from rookery.actors.peers.bindings import BINDINGS
from rookery.actors.peers.effects import (
    EFFECT_TYPES,
    DeliveryReported,
    EnvelopeDelivered,
    EnvelopeFailed,
    peer_effects,
    pending_peer_effects,
)
from rookery.actors.peers.envelopes.envelope_rules import (
    EnvelopeChecks,
    EnvelopeSender,
    SignedEnvelope,
    decode_envelope,
)
from rookery.actors.peers.evolve import OWN_FACTS, evolve, kept_over_generations
from rookery.actors.peers.items.item_queue import (
    assignments,
    event_id,
    is_full,
    is_queued,
    queue_event,
)
from rookery.actors.peers.items.program_calls import begin_call, end_due, is_begun, withdraw_call
from rookery.actors.peers.items.responder_rules import (
    end_handler,
    end_with_session,
    responder_view,
    set_responder,
)
from rookery.actors.peers.items.streams import (
    attach_program,
    context_advances,
    follow_stream,
    push_target,
    stream_ends,
    stream_view,
)
from rookery.actors.peers.outbox import (
    OutboxRules,
    SendContext,
    delivered,
    end_delivery,
    list_exchanges,
)
from rookery.actors.peers.roster.roster_rules import RosterAccess, change_roster, expire_peer
from rookery.actors.peers.state import DeclineRate, SessionPeers
from rookery.actors.peers.trust.peer_keys import peer_id_of
from rookery.bus.ports import Delivery
from rookery.schemas.codec import FactCodec
from rookery.schemas.commands import COMMANDS, SIGNED_VERBS, HandleInput
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.facts import peer as facts
from rookery.schemas.machines.peer import PeerTerminalDisposition, ResponseStatus
from rookery.schemas.machines.peer_admission import classification_params
from rookery.schemas.peers.envelope import Envelope, EnvelopeKind
from rookery.schemas.peers.exchanges import (
    EnvelopeReceipt,
    ExchangesQuery,
    FollowExchange,
    PeerDue,
    SendEnvelope,
)
from rookery.schemas.peers.gateways import ChangePushTarget, PushReceipt
from rookery.schemas.peers.items import DropReason, PublishEvent, SetResponder
from rookery.schemas.peers.roster import REALM_NAME, ROSTER_KEY, NamePeer, RosterReceipt

__all__ = ["PeerSettings", "PeersDecider", "SessionPeers"]

OnRefused = Callable[[CodedError, str], None]
_AT_ONCE: Final = (facts.MessageSent, facts.ProgressSent, facts.ResponseReplied)
"""What ends the call of a program that sends it."""
_WAITING: Final = (
    facts.ReceiverWaiting,
    facts.EnvelopeClassified,
    facts.PlainEventClassified,
    facts.ItemHandled,
    facts.ResponderSet,
)
"""What may lead to an assignment where nothing was queued."""
_VERBS: Final = (
    *("peers", "roster", "send", "exchange", "respond", "event", "peer_due", "exchanges"),
    "push",
)
_RESERVED: Final = (ROSTER_KEY, REALM_NAME)
"""The roster is an entity of this family; the realm itself answers pings, and has no facts."""
DELIVERED_HOLD_S: Final = 1.0
_ACKNOWLEDGEMENTS: Final[Mapping[type, msgspec.Struct]] = {
    **dict.fromkeys((EnvelopeDelivered, EnvelopeFailed, PeerDue, HandlerEnded), DeliveryReported()),
    **dict.fromkeys((BeginPeerCall, WithdrawPeerCall), PeerCallAcknowledged()),
}
"""The replies to commands of executors and timers."""


_VIEWS: Final[Mapping[type, Callable[[SessionPeers, Any], msgspec.Struct]]] = {
    ExchangesQuery: lambda state, _: list_exchanges(state),
    FollowExchange: stream_view,
    SetResponder: lambda state, _: responder_view(state),
    ChangePushTarget: lambda _, change: PushReceipt(
        request_id=change.request_id, target_id=change.target_id
    ),
}
"""What clients get to see."""


class PeerSettings(NamedTuple):
    """What a node with peers knows beside the facts."""

    roster: RosterAccess
    checks: EnvelopeChecks
    sending: SendContext
    on_refused: OnRefused
    """Gets the code of each refused envelope, the envelope if it was verified, and the name of the
    credential that sent it."""


class PeersDecider(SessionMachineDecider):
    """Decides the commands of the family ``peer``."""

    family = "peer"
    schema = 6
    verbs: Mapping[str, type[msgspec.Struct]] = {
        **{verb: COMMANDS[verb] for verb in _VERBS},
        "envelope": SignedEnvelope,
    }
    signed_verbs = SIGNED_VERBS
    codec: FactCodec[facts.PeerFact] = FactCodec(facts.PEER_FACTS)
    bindings = BINDINGS
    initial_state = SessionPeers()

    def __init__(self, *, executes_runs: bool = False, peers: PeerSettings | None = None) -> None:
        """``peers``: ``None`` on a node that executes no runs, which has none."""
        super().__init__(executes_runs=executes_runs)
        self._peers = peers
        self.effect_types = frozenset() if peers is None else EFFECT_TYPES

    @property
    def _settings(self) -> PeerSettings:
        if self._peers is None:
            raise Refused("UNSUPPORTED_FEATURE", "a node without runs has no peers")
        return self._peers

    def reservation(self, state: SessionPeers, command: Command[HandleInput]) -> Reservation | None:
        """Of every exchange of a node with peers: only what it has verified moves one."""
        if self._peers is None:
            return super().reservation(state, command)
        return Reservation(
            "the node moves exchanges by envelopes that it has verified", "use the verb send"
        )

    def check_key(self, key: str) -> None:
        if key not in _RESERVED:
            super().check_key(key)

    def decide(self, state: SessionPeers, command: Command[Any], *, now_ms: int) -> Sequence[Fact]:
        left: Sequence[Fact] = ()
        match command.body:
            case NamePeer() | PeerDue(alias=str()) as change:
                return self._decide_roster(state, command, change, now_ms)
            case SignedEnvelope() as signed if command.key != ROSTER_KEY:
                left = self._admit(state, command, signed, command.arrived_ms or now_ms)
            case _ if command.key in _RESERVED:
                raise Refused("INVALID_SESSION_ID", f"{command.key} is no session")
            case SendEnvelope() as sending:
                left = self._send(state, command, sending, now_ms)
            case EnvelopeDelivered(item_id=item_id):
                return delivered(state, item_id)
            case EnvelopeFailed() as failed:
                left = end_delivery(self, state, command.key, failed)
            case ExchangesQuery():
                """A read."""
            case PublishEvent() as event:
                left = queue_event(self, state, command, event)
            case PeerDue() as due:
                _require_timer(command)
                left = end_due(self, state, command.key, due, now_ms)
            case SetResponder() as change:
                self._check_live(state, command.key)
                left = set_responder(self, state, command.key, change)
            case HandleInput():
                left = super().decide(state, command, now_ms=now_ms)
            case _:
                left = self._decide_program(state, command, now_ms)
        return self._with_consequences(state, command.key, left, now_ms) if left else ()

    def _decide_program(
        self, state: SessionPeers, command: Command[Any], now_ms: int
    ) -> Sequence[Fact]:
        """The facts of a program's call, of a reader or a gateway, or of the end of a responder's
        run."""
        session = command.key
        left: Sequence[Fact] = ()
        match command.body:
            case BeginPeerCall() as begin:
                left = self._begin_call(state, command, begin, now_ms)
            case WithdrawPeerCall(operation_id=operation_id):
                left = withdraw_call(self, state, session, operation_id)
            case CallAgent() | AgentHasTask() | AgentResponded() as report:
                roster = self._settings.sending.roster()
                left = AgentRules(self, state, session, roster, now_ms).record(report)
            case ChangePushTarget() as change:
                self._check_live(state, session)
                left = (push_target(change),)
            case FollowExchange() as following:
                left = follow_stream(self, state, session, following, now_ms)
            case HandlerEnded() as ended:
                rules = self._rules(state, command, now_ms, f"{ended.item_id}/{ended.run_id}")
                left = end_handler(self, state, session, ended, rules)
        return left

    def _with_consequences(
        self, state: SessionPeers, session: str, left: Sequence[Fact], now_ms: int
    ) -> Sequence[Fact]:
        """The facts, the ends of streams that follow, the assignments of queued items, and
        whether the context has moved on."""
        builder = FactBuilder[SessionPeers, Any](state, self.evolve)
        builder.facts.extend(with_agent_tasks(state, left))
        has_peers = self._peers is not None
        if has_peers:
            builder.facts.extend(list(stream_ends(self, builder.state, session, left)))
        is_idle = not (state.receivers or state.queue)
        if not is_idle or any(isinstance(fact, _WAITING) for fact in left):
            builder.facts.extend(end_with_session(self, builder.state, session))
            builder.facts.extend(assignments(builder.state))
        if has_peers:
            advances = context_advances(self, builder.state, session, builder.facts, now_ms)
            builder.facts.extend(list(advances))
        return builder.facts

    # --- envelopes that arrive --------------------------------------------------------------------

    def decode_signed(self, delivery: Delivery) -> tuple[str, msgspec.Struct]:
        return decode_envelope(delivery)

    def on_refused(self, delivery: Delivery, error: CodedError) -> None:
        if self._peers is not None:
            self._peers.on_refused(error, delivery.by)

    def _admit(
        self,
        state: SessionPeers,
        command: Command[Any],
        signed: SignedEnvelope,
        arrived_ms: int,
    ) -> Sequence[Fact]:
        """Classify an envelope once it is verified, and begin or end its exchange."""
        if self._peers is None:
            raise Refused("ENVELOPE_UNKNOWN_KEY", "a node without runs has no peers")
        session, envelope = command.key, signed.envelope
        sender = verify_arrival(self._peers.checks, state, session, signed, arrived_ms)
        if session == REALM_NAME:
            raise NotAttended(session, envelope, sender)
        if envelope.id not in state.unanswered and is_queued(state, envelope.id):
            raise Refused("ENVELOPE_REPLAYED", "another item that waits has this id")
        params = classification_params(ingress_facts(envelope, sender))
        try:
            (fact,) = self.decide_input(state, session, "classify_external_envelope", params)
        except TransitionRejected:
            raise NotAttended(session, envelope, sender) from None
        classified = replace(fact, arrival=arrival_of(signed, sender, arrived_ms))
        if envelope.kind is EnvelopeKind.MESSAGE and is_full(state):
            return (
                classified,
                facts.ItemDropped(item_id=envelope.id, why=DropReason.QUEUE_FULL),
            )
        if envelope.kind is EnvelopeKind.REQUEST:
            return (classified, self._request(state, command, envelope, sender, arrived_ms))
        if envelope.kind is EnvelopeKind.RESPONSE:
            return (classified, self.response_fact(state, session, envelope, sender))
        return (classified,)

    def _request(
        self,
        state: SessionPeers,
        command: Command[Any],
        envelope: Envelope,
        sender: EnvelopeSender,
        arrived_ms: int,
    ) -> Fact:
        """The request is received, or declined."""
        session, request = command.key, unanswered_request(envelope, sender)
        own_id = peer_id_of(self._settings.sending.roster().realm_key, session)
        try:
            check_request(state, envelope, sender, own_id)
        except Refused as refusal:
            if state.declines.get(envelope.from_key, DeclineRate()).is_exceeded(arrived_ms):
                raise
            rules = self._rules(state, command, arrived_ms)
            sent = rules.decline(envelope.id, request, refusal.code, refusal.message)
            return facts.RequestDeclined(
                corr_id=envelope.id,
                code=refusal.code,
                from_key=envelope.from_key,
                declined_at_ms=arrived_ms,
                sent=sent,
            )
        params = {"corr_id": envelope.id}
        (fact,) = self.decide_input(state, session, "request_received", params)
        return replace(fact, request=request)

    def response_fact(
        self, state: SessionPeers, session: str, envelope: Envelope, sender: EnvelopeSender
    ) -> Fact:
        """The response moves its request, or is on record as late, double, unknown or foreign."""
        corr_id, response = str(envelope.in_reply_to), response_of(envelope)
        if (why := unmatched(state, envelope, sender)) is not None:
            return facts.ResponseUnmatched(in_reply_to=corr_id, why=why)
        if response.status is ResponseStatus.ACCEPTED:
            on, params = "response_progress", {"corr_id": corr_id}
        else:
            has_failed = response.status is ResponseStatus.FAILED
            disposition = PeerTerminalDisposition("Failed" if has_failed else "Completed")
            on, params = "response_terminal", {"corr_id": corr_id, "disposition": disposition}
        (fact,) = self.decide_input(state, session, on, params)
        return replace(fact, response=response)

    # --- envelopes that leave ---------------------------------------------------------------------

    def _rules(
        self, state: SessionPeers, command: Command[Any], now_ms: int, cause: str = ""
    ) -> OutboxRules:
        """``cause``: what the id of an envelope follows from, if not from that of the command."""
        command_id = cause or command.id
        return OutboxRules(self._settings.sending, state, command.key, command_id, now_ms)

    def _send(
        self, state: SessionPeers, command: Command[Any], sending: SendEnvelope, now_ms: int
    ) -> Sequence[Fact]:
        self._check_live(state, command.key)
        builder = FactBuilder[SessionPeers, Any](state, self.evolve)
        fact: Any
        (fact,) = self._rules(state, command, now_ms).send(sending)
        builder.add(self.moved(state, command.key, fact))
        if sending.stream:
            params = {"corr_id": fact.corr_id}
            builder.facts += self.decide_input(builder.state, command.key, "reserved", params)
        return builder.facts

    def _check_live(self, state: SessionPeers, session: str) -> None:
        if state.host.phase not in LIVE:
            raise Refused(
                "SESSION_NOT_FOUND",
                f"no session {session} is open",
                hint=f"rookery sessions create {session}",
            )

    def moved(self, state: SessionPeers, session: str, fact: Any) -> Any:
        """The fact of an envelope with the row of the machine whose exchange it moves."""
        moved: Any
        match fact:
            case facts.RequestSent(corr_id=corr_id, dest=dest):
                params = {"corr_id": corr_id, "dest": dest}
                (moved,) = self.decide_input(state, session, "request_sent", params)
            case facts.ResponseReplied(corr_id=corr_id):
                (moved,) = self.decide_input(
                    state, session, "response_replied", {"corr_id": corr_id}
                )
            case _:
                return fact
        return replace(fact, row=moved.row)

    def _begin_call(
        self, state: SessionPeers, command: Command[Any], begin: BeginPeerCall, now_ms: int
    ) -> Sequence[Fact]:
        if is_begun(state, begin.operation_id):
            return ()
        sending, operation_id = self._settings.sending, begin.operation_id
        rules = OutboxRules(
            sending, state, command.key, command.id, now_ms, envelope_id=operation_id
        )
        left = [*attach_program(self, state, command.key, begin, now_ms)]
        left += (
            self.moved(state, command.key, fact) for fact in begin_call(state, begin, rules, now_ms)
        )
        if begin.arguments.get("stream"):
            params = {"corr_id": operation_id}
            (reserved,) = self.decide_input(state, command.key, "reserved", params)
            left.append(replace(reserved, operation_id=operation_id))
        return [
            replace(fact, operation_id=operation_id) if isinstance(fact, _AT_ONCE) else fact
            for fact in left
        ]

    def _decide_roster(
        self, state: SessionPeers, command: Command[Any], change: NamePeer | PeerDue, now_ms: int
    ) -> Sequence[Fact]:
        roster = self._settings.roster.fold(state.roster)
        if isinstance(change, NamePeer):
            return change_roster(roster, command.key, change)
        _require_timer(command)
        return expire_peer(roster, state.expired, str(change.alias), now_ms)

    # --- state, replies, effects ------------------------------------------------------------------

    def evolve(self, state: SessionPeers, fact: Any) -> SessionPeers:
        if not isinstance(fact, OWN_FACTS):
            state = super().evolve(state, fact)
        return evolve(state, fact)

    def begin_generation(self, state: SessionPeers, generation: int) -> SessionPeers:
        begun: SessionPeers = super().begin_generation(state, generation)
        return replace(begun, **kept_over_generations(state))

    def reply(
        self, state: SessionPeers, command: Command[Any], facts: Sequence[Fact]
    ) -> msgspec.Struct | CodedError:
        match command.body:
            case NamePeer(signature=signature):
                count = self._settings.roster.fold(state.roster).count
                return RosterReceipt(change=count, signed=bool(signature))
            case SendEnvelope() | PublishEvent():
                return self._receipt(state, command)
            case CallAgent() | AgentHasTask() | AgentResponded() as report:
                return agent_reply(state, report, facts)
        if (view := _VIEWS.get(type(command.body))) is not None:
            return view(state, command.body)
        if (acknowledgement := _ACKNOWLEDGEMENTS.get(type(command.body))) is not None:
            return acknowledgement
        return super().reply(state, command, facts)

    def _receipt(self, state: SessionPeers, command: Command[Any]) -> EnvelopeReceipt:
        """Of what is on record, also for a repeated command."""
        if isinstance(command.body, SendEnvelope):
            return self._rules(state, command, 0).receipt(command.body)
        item_id = event_id(command)
        return EnvelopeReceipt(id=item_id, thread=item_id, to=command.key)

    def hold_s(self, state: SessionPeers, facts_left: Sequence[Fact]) -> float:
        """A delivery is repeated without effect, so its fact may wait for the entity's next one."""
        del state
        is_held = all(isinstance(fact, facts.EnvelopesDelivered) for fact in facts_left)
        return DELIVERED_HOLD_S if is_held else 0.0

    def effects(self, state: SessionPeers, fact: Fact) -> Sequence[Effect]:
        return peer_effects(state, fact)

    def pending_effects(self, state: SessionPeers, key: str) -> Sequence[Effect]:
        return () if self._peers is None else pending_peer_effects(state, key)

    def evolve_host(self, host: SessionHost, fact: Any) -> SessionHost:
        return evolve_host(host, fact)


def _require_timer(command: Command[Any]) -> None:
    if not command.id.startswith("timer/"):
        raise Refused("GUARD_REJECTED", "only a timer may end this")
