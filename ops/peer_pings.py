"""The doctor's pings: where an envelope to each paired realm ends, and how far its clock is off;
whether the agents of A2A still have the cards that were accepted, and which peers expire.

A ping is signed by this realm and answered by a node of the other one, whose answer is verified. It
leaves no fact on either side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import UNSET

from rookery.actors.approvals.state import APPROVERS_KEY
from rookery.actors.peers.agents import AgentCards, AgentClient
from rookery.actors.peers.envelopes import EnvelopeChecks, ping_envelope, sign_envelope
from rookery.actors.peers.roster import Roster, RosterPeer
from rookery.actors.peers.trust import RealmKeys
from rookery.actors.projections.reports import ApproverReport, RosterReport
from rookery.bus.clock import entropy, monotonic_s
from rookery.bus.commands import command_headers
from rookery.bus.jetstream_api import AckVerdict, decode_ack
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.nats import Message, Outgoing, header_value
from rookery.bus.ports import Delivery, EnvelopeProof, Journal
from rookery.bus.sealed_secrets import SealedSecrets
from rookery.bus.subjects import Subjects
from rookery.ops.checks import CheckVerdict, Finding, failed
from rookery.ops.config import Config
from rookery.ops.keys import ConfiguredKeys, TrustRoots
from rookery.ops.peers import open_realm_keys
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import CodedError, Failed, Refused
from rookery.schemas.peers.envelope import CLOCK_ERROR_MS, Envelope, OutboxEnvelope
from rookery.schemas.peers.roster import REALM_NAME, ROSTER_KEY, PeerKind

__all__ = ["check_peers", "expiry_findings"]

ANSWER_S: Final = 3.0
EXPIRES_SOON_MS: Final = 7 * 86_400_000
CLOCK_WARN_MS: Final = CLOCK_ERROR_MS // 5


async def check_peers(
    bus: JetStreamBus, config: Config, now_ms: Callable[[], int]
) -> Sequence[Finding]:
    """A finding for each realm and each agent of A2A that is trusted now, or one that there is
    none."""
    try:
        roster = await _read_roster(bus.journal, config)
        paired = list(_trusted(roster, PeerKind.REALM, now_ms()))
        agents = list(_trusted(roster, PeerKind.AGENT, now_ms()))
        ends = list(expiry_findings(roster, now_ms()))
        if not (paired or agents or ends):
            return [Finding(check="peers", detail="no realm is paired")]
        cards = AgentCards(AgentClient(config.peers.networks), monotonic_s)
        checks = [_check_agent(cards, agent) for agent in agents]
        if paired:
            keys = await open_realm_keys(_sealed(bus, config), config.realm)
            pings = _Pings(bus, roster, keys, now_ms)
            await pings.open()
            checks += map(pings.check, paired)
        return [*ends, *await asyncio.gather(*checks)]
    except CodedError as error:
        return [failed("peers", error)]


def _sealed(bus: JetStreamBus, config: Config) -> SealedSecrets:
    return SealedSecrets(bus.secrets, config.realm, ConfiguredKeys.of(config), entropy)


async def _read_roster(journal: Journal, config: Config) -> Roster:
    root_key = TrustRoots.root_key_of(config.approvals)
    approvers = await journal.read(EntityId("approval", APPROVERS_KEY))
    signers = ApproverReport.read(approvers, config.realm, root_key).signers
    messages = await journal.read(EntityId("peer", ROSTER_KEY))
    return RosterReport.read(messages, config.realm, signers).roster


def _trusted(roster: Roster, kind: PeerKind, now_ms: int) -> Iterable[RosterPeer]:
    for _, peer in sorted(roster.peers.items()):
        pairing = peer.pairing
        name = REALM_NAME if kind is PeerKind.REALM else pairing.names[0]
        if pairing.kind is kind and not peer.is_revoked(name, pairing.key, now_ms):
            yield peer


def expiry_findings(roster: Roster, now_ms: int) -> Iterable[Finding]:
    """A warning for each entry that has expired, or will within a week."""
    for alias, peer in sorted(roster.peers.items()):
        ends_ms = peer.pairing.expires_at_ms
        if peer.revoked or ends_ms is UNSET or ends_ms - now_ms > EXPIRES_SOON_MS:
            continue
        hours = abs(ends_ms - now_ms) / 3_600_000
        is_over = now_ms >= ends_ms
        yield Finding(
            check=f"peer {alias}",
            verdict=CheckVerdict.WARN,
            detail=f"it expired {hours:.0f} h ago, and is not trusted"
            if is_over
            else f"it expires in {hours:.0f} h",
            hint=f"rookery peers accept ... --as {alias} --expires 90d, or: peers revoke {alias}",
            code="PEER_EXPIRED" if is_over else "",
        )


async def _check_agent(cards: AgentCards, peer: RosterPeer) -> Finding:
    """Whether the card of an agent elsewhere is the one that was accepted."""
    name = f"peer {peer.pairing.alias}"
    try:
        card = await cards.read(peer.pairing)
    except CodedError as error:
        return Finding(
            check=name,
            verdict=CheckVerdict.WARN,
            detail=error.message,
            hint=error.hint,
            code=error.code,
        )
    return Finding(check=name, detail=f"the agent {card.name} has the card that was accepted")


class _Pings:
    def __init__(
        self, bus: JetStreamBus, roster: Roster, keys: RealmKeys, now_ms: Callable[[], int]
    ) -> None:
        self._bus, self._roster, self._now_ms = bus, roster, now_ms
        self._key = keys.realm_key(roster.generation)
        self._checks = EnvelopeChecks(bus.realm, lambda: roster, lambda *_: None)
        self._answers: dict[str, asyncio.Future[Envelope]] = {}

    async def open(self) -> None:
        """Listen for answers, beside the realm's inbox."""
        subject = Subjects(self._bus.realm).command("envelope", REALM_NAME)
        await self._bus.connection.subscribe(subject, self._on_messages)

    def _on_messages(self, messages: Sequence[Message]) -> None:
        for message in messages:
            try:
                answer = self._checks.read_pong(_delivery(message), self._now_ms())
            except Refused:  # A client that may publish envelopes may publish anything.
                continue
            waiting = self._answers.get(str(answer.in_reply_to))
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)

    async def check(self, peer: RosterPeer) -> Finding:
        """Where an envelope to the realm ends."""
        alias, key, now_ms = peer.pairing.alias, self._key.public_key, self._now_ms()
        name = f"peer {alias}"
        ping = ping_envelope(alias, peer.pairing.key, key, number=now_ms, now_ms=now_ms)
        answered = self._answers[ping.id] = asyncio.get_running_loop().create_future()
        began_s = monotonic_s()
        try:
            await self._publish(ping)
        except Failed as error:
            return _not_delivered(name, alias, error)
        try:
            answer = await asyncio.wait_for(answered, ANSWER_S)
        except TimeoutError:
            return _not_answered(name, alias)
        took_ms = round(1_000 * (monotonic_s() - began_s))
        return _answered(name, took_ms, answer.at_ms - now_ms)

    async def _publish(self, ping: OutboxEnvelope) -> None:
        """Once: the doctor says how it is now."""
        body = ping.text.encode()
        proof = EnvelopeProof(sign_envelope(self._key, body))
        subject = Subjects(ping.alias).command("envelope", ping.to)
        message = Outgoing(subject, body, headers=command_headers(ping.id, proof=proof))
        ack = decode_ack(await self._bus.connection.request(message, timeout_s=ANSWER_S))
        if ack.verdict is not AckVerdict.STORED:
            raise Failed("STREAM_MISMATCH", ack.description)


def _delivery(message: Message) -> Delivery:
    header = message.header
    signature, vouch = (
        header_value(header, name) for name in (b"Rookery-Signature", b"Rookery-Vouch")
    )
    return Delivery(
        verb="envelope",
        key=REALM_NAME,
        id=header_value(header, b"Nats-Msg-Id"),
        body=message.body,
        proof=EnvelopeProof(signature, vouch),
    )


def _not_delivered(name: str, alias: str, error: Failed) -> Finding:
    return Finding(
        check=name,
        verdict=CheckVerdict.WARN,
        detail=f"no inbox takes envelopes for {alias}: {error.message}",
        hint=f"the link to {alias} is down, or this server has none: ops/deploy/mesh/README.md",
        code=error.code,
    )


def _not_answered(name: str, alias: str) -> Finding:
    return Finding(
        check=name,
        verdict=CheckVerdict.WARN,
        detail=f"the inbox of {alias} has the envelope, and no node answers: none runs there, or "
        "it refuses what this realm sends",
        hint="there: rookery peers list, and the metric rookery_envelope_refused_total",
        code="NO_ANSWER",
    )


def _answered(name: str, took_ms: int, ahead_ms: int) -> Finding:
    """The clock of the other side was read within the time that the answer took."""
    off_ms = max(abs(ahead_ms) - took_ms, 0)
    is_off = off_ms > CLOCK_WARN_MS
    clock = f"; its clock is {off_ms / 1_000:.0f} s off" if is_off else ""
    return Finding(
        check=name,
        verdict=CheckVerdict.WARN if is_off else CheckVerdict.OK,
        detail=f"answered in {took_ms} ms{clock}",
        hint=f"envelopes are refused from {CLOCK_ERROR_MS // 1_000} s: set the clocks"
        if is_off
        else "",
        code="ENVELOPE_FROM_FUTURE" if is_off else "",
    )
