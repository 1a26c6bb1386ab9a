"""The peers of a node: the secret that their keys follow from, the roster, and the enrolment."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

from rookery.actors.kernel import Effect
from rookery.actors.kernel.executors import AskActor, EffectHandler, Failpoints, QueryHandler
from rookery.actors.leases import NodeLeases
from rookery.actors.metrics import KernelMetrics
from rookery.actors.peers import NotAttended, PeerExecutor, PeersDecider, PeerSettings, SendContext
from rookery.actors.peers.agents import (
    AgentCards,
    AgentClient,
    AgentExecutor,
)
from rookery.actors.peers.envelopes import EnvelopeChecks, realm_response, sign_envelope
from rookery.actors.peers.roster import Roster, RosterAccess
from rookery.actors.peers.trust import RealmKeys, peer_id_of
from rookery.actors.projections import Approvers, RosterFollower
from rookery.actors.tools.builtin import peer_tools, peers_registry
from rookery.actors.tools.catalogue import CatalogueTool
from rookery.actors.tools.functions import LocalToolHost
from rookery.bus.clock import SystemClock, entropy
from rookery.bus.ports import Bus, Delivery, EnvelopeProof, TaskSet
from rookery.bus.sealed_secrets import SealedSecrets
from rookery.ops.config import PeersConfig
from rookery.schemas.calls import ApprovalMode
from rookery.schemas.codec import decode_command, encode_json
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.peers.envelope import EnvelopeKind, OutboxEnvelope
from rookery.schemas.peers.gateways import CardSignature, SignCard
from rookery.schemas.peers.roster import (
    REALM_NAME,
    ROSTER_KEY,
    Enrolment,
    NamePeer,
    Pairing,
    PeerKind,
)
from rookery.schemas.surfaces import PEERS

__all__ = [
    "PeerServices",
    "PeerTools",
    "delete_former_secrets",
    "next_enrolment",
    "open_realm_keys",
]

log = logging.getLogger(__name__)

STORED_AS: Final = "peer"
"""The name of the secret that all keys of the realm's sessions follow from."""
SECRET_BYTES: Final = 32
CHECK_S: Final = 2.0
LOG_S: Final = 60.0
CLOSE_S: Final = 1.0
ANSWERS_PAUSE_S: Final = 0.01
ANSWERS_MAX: Final = 1_000
"""Of one peer's requests that no session takes, so many wait for their answer; a hundred a second
get one. To others their senders wait until these are due."""
LOGGED_MAX: Final = 1_000
"""Different refusals that are remembered within a minute."""


class PeerTools:
    """The surface ``peers`` of a node that offers it, and what reaches agents elsewhere. Both are
    known before the roster is."""

    def __init__(self, opened: ExitStack, config: PeersConfig) -> None:
        self.agents = AgentClient(config.networks)
        self._services: PeerServices | None = None
        self.tools: Sequence[CatalogueTool] = ()
        self.hosts: Sequence[LocalToolHost] = ()
        if config.tools:
            registry = peers_registry(self)
            host = LocalToolHost(registry, PEERS)
            opened.callback(host.close, CLOSE_S)
            self.tools, self.hosts = peer_tools(registry), (host,)

    def connect(self, services: PeerServices) -> None:
        self._services = services

    def addresses(self, session: str) -> list[dict[str, Any]]:
        """What the tool ``peers`` shows; other sessions of this realm need no entry."""
        del session
        assert self._services is not None
        return self._services.addresses()


class PeerServices:
    """One per node that executes runs."""

    def __init__(
        self,
        bus: Bus,
        sealed: SealedSecrets,
        keys: RealmKeys,
        roster: RosterFollower,
        *,
        metrics: KernelMetrics,
        agents: AgentClient,
    ) -> None:
        self._bus, self._sealed, self._agents = bus, sealed, agents
        self.keys, self.roster = keys, roster
        self.access = RosterAccess(bus.realm, roster.signers, lambda: self.keys.public_keys)
        """What the decider knows beside the facts."""
        roster.own_keys = self.access.own_keys
        self._refusals = EnvelopeRefusals(metrics, SystemClock().uptime_s)
        self._now_ms = SystemClock().now_ms
        self._answers = RealmAnswers(self._publish_answer)
        self._number = 0
        settings = PeerSettings(
            roster=self.access,
            checks=EnvelopeChecks(bus.realm, lambda: roster.current, self._session_keys),
            sending=SendContext(bus.realm, lambda: roster.current, self._public_key),
            on_refused=self._on_refused,
        )
        self.decider = PeersDecider(executes_runs=True, peers=settings)

    @classmethod
    async def open(
        cls,
        bus: Bus,
        sealed: SealedSecrets,
        approvers: Approvers,
        metrics: KernelMetrics,
        tools: PeerTools,
    ) -> PeerServices:
        """Read the secret and the roster; the first node of a realm makes the secret. ``tools``
        get the roster."""
        if await sealed.newest(STORED_AS) is None:
            await sealed.get_or_create(STORED_AS, entropy(SECRET_BYTES))
        keys = await open_realm_keys(sealed, bus.realm)
        roster = RosterFollower(bus, approvers)
        services = cls(bus, sealed, keys, roster, metrics=metrics, agents=tools.agents)
        await services.roster.open()
        tools.connect(services)
        return services

    def addresses(self) -> list[dict[str, Any]]:
        """The peers of the roster that are trusted now."""
        now_ms = self._now_ms()
        return [
            {
                "address": f"{'*' if one.pairing.kind is PeerKind.REALM else alias}@{alias}",
                "kind": one.pairing.kind.value,
                "approval": self.needs_approval(f"*@{alias}"),
                "peer_id": peer_id_of(one.pairing.key, _key_name(one.pairing)),
            }
            for alias, one in sorted(self.roster.current.peers.items())
            if not one.is_revoked(_key_name(one.pairing), one.pairing.key, now_ms)
        ]

    def needs_approval(self, address: str) -> bool:
        """Whether a program needs an approval to send to an address. Sessions of this realm are
        asked freely; nothing can be sent to a peer that is not known."""
        try:
            roster = self.roster.current
        except CodedError:
            return address.partition("@")[2] != self._bus.realm
        _, _, alias = roster.full_address(address).partition("@")
        if alias in ("", self._bus.realm):
            return False
        peer = roster.peers.get(alias)
        return peer is not None and peer.pairing.approval is not ApprovalMode.NONE

    def _session_keys(self, roster: Roster, name: str, now_ms: int) -> Iterable[str] | None:
        """The keys of a session whose key was rotated; ``None`` for any other."""
        if (rotated := roster.numbers.get(name)) is None:
            return None
        numbers = [rotated.number]
        if now_ms < rotated.former_until_ms:
            numbers.append(rotated.number - 1)
        keys = self.keys
        return [keys.key_of(name, g, n).public_key for g in keys.generations for n in numbers]

    def handlers(
        self, ask: AskActor, failpoints: Failpoints, leases: NodeLeases
    ) -> Mapping[type[Effect], EffectHandler]:
        """The handler of each effect of the sessions that this node owns. ``leases``: for the
        credentials that agents elsewhere get."""
        agents = AgentExecutor(
            ask=ask,
            client=self._agents,
            cards=AgentCards(self._agents, SystemClock().uptime_s),
            pairing=self._agent_of,
            credentials=leases.credentials,
            lease_gate=leases.states.gate,
            timers=self._bus.timers,
            now_ms=self._now_ms,
            failpoints=failpoints,
        )
        executor = PeerExecutor(
            ask=ask,
            timers=self._bus.timers,
            blobs=self._bus.blobs,
            publisher=self._bus.inbox,
            prove=self._prove,
            deliver_to_agent=agents.deliver,
            now_ms=self._now_ms,
            failpoints=failpoints,
        )
        return {**executor.handlers, **agents.handlers}

    def _agent_of(self, alias: str) -> Pairing:
        """The agent elsewhere with this alias, if it is trusted now."""
        peer = self.roster.current.peer_of(alias)
        if peer.is_revoked(alias, peer.pairing.key, self._now_ms()):
            raise Refused("PEER_REVOKED", f"{alias} is not trusted any more")
        return peer.pairing

    def _public_key(self, roster: Roster, name: str) -> str:
        """The present key of a session, or of the realm itself."""
        return self.keys.key_of(name, roster.generation, roster.number_of(name)).public_key

    async def _prove(self, session: str, sent: OutboxEnvelope) -> EnvelopeProof:
        """Sign an envelope with the key that it names, which a rotation may have replaced."""
        last = self.roster.current.number_of(session)
        for generation in sorted(self.keys.generations, reverse=True):
            for number in range(last, 0, -1):
                key = self.keys.key_of(session, generation, number)
                if key.public_key == sent.from_key:
                    signature = sign_envelope(key, sent.text.encode())
                    vouch = self.keys.vouch(session, generation, number, self._now_ms())
                    return EnvelopeProof(signature, vouch)
        raise Refused("VAULT_KEY_MISSING", f"the key of {session} that signs {sent.id} is gone")

    def _on_refused(self, error: CodedError, credential: str) -> None:
        if not isinstance(error, NotAttended):
            self._refusals.report(error.code, credential)
            return
        if error.envelope.to != REALM_NAME:
            self._refusals.report(error.code, credential)
        is_request = error.envelope.kind is EnvelopeKind.REQUEST
        if is_request and not self._answers.add(error.sender.realm_key, error):
            self._refusals.report("PEER_RATE_EXCEEDED", credential)

    async def _publish_answer(self, error: NotAttended) -> None:
        """Respond to a request once, in the name of the realm: no fact may say so, because a
        stranger shall create no entity."""
        generation, now_ms = self.roster.current.generation, self._now_ms()
        try:
            key = self.keys.realm_key(generation)
            # No fact counts these envelopes: their numbers follow the clock.
            self._number = max(self._number + 1, now_ms)
            roster, public_key = self.roster.current, key.public_key
            sent = realm_response(error, roster, public_key, number=self._number, now_ms=now_ms)
            proof = EnvelopeProof(sign_envelope(key, sent.text.encode()))
            await PeerExecutor.publish_once(self._bus.inbox, sent, proof)
        except CodedError as failure:
            log.info("request not answered", extra={"code": failure.code})

    @property
    def queries(self) -> Mapping[str, QueryHandler]:
        return {"sign_card": self._sign_card}

    async def _sign_card(self, delivery: Delivery) -> CardSignature:
        query = decode_command(delivery.body, SignCard, content_type=delivery.content_type)
        return self.keys.sign_card(query, self.roster.current.generation)

    async def watch(self) -> None:
        """Enrol the realm once, and get the secret of each new generation, until cancelled."""
        reported = ""
        while True:
            try:
                await self.check()
                reported = ""
            except CodedError as error:
                if (reason := str(error)) != reported:
                    text = "the realm's own key is not checked: %s"
                    log.warning(text, error.message, extra={"code": error.code})
                reported = reason
            await asyncio.sleep(CHECK_S)

    async def check(self) -> None:
        """Enrol the realm if it is not, and read the secret of its generation."""
        if self.roster.unavailable_reason:
            return
        roster = self.roster.current
        if not roster.enrolments:
            await self._enrol(self.keys.enrol(max(self.keys.generations)))
        elif roster.generation not in self.keys.generations:
            self.keys = await open_realm_keys(self._sealed, self._bus.realm)

    async def _enrol(self, enrolment: Enrolment) -> None:
        """Several nodes may do this at once: the same command under the same id."""
        body = encode_json(NamePeer(enrol=enrolment))
        message_id = f"enrol.{enrolment.key}"
        await self._bus.inbox.submit("roster", ROSTER_KEY, body, message_id=message_id)


def _key_name(pairing: Pairing) -> str:
    return REALM_NAME if pairing.kind is PeerKind.REALM else pairing.names[0]


class RealmAnswers:
    """What the realm itself answers to requests that no session takes: to each peer in turn, and
    not more than so many a second, because each costs a signature and a place in an inbox."""

    def __init__(self, publish: Callable[[NotAttended], Awaitable[None]]) -> None:
        self._publish, self._tasks = publish, TaskSet()
        self._waiting: dict[str, deque[NotAttended]] = {}

    def add(self, realm_key: str, refusal: NotAttended) -> bool:
        """Whether it will be answered: no more wait than a limit for the peer of this key."""
        if (waiting := self._waiting.get(realm_key)) is None:
            waiting = self._waiting[realm_key] = deque()
            self._tasks.start(self._answer(realm_key, waiting))
        if len(waiting) >= ANSWERS_MAX:
            return False
        waiting.append(refusal.without_content())
        return True

    async def _answer(self, realm_key: str, waiting: deque[NotAttended]) -> None:
        while waiting:
            await self._publish(waiting.popleft())
            await asyncio.sleep(ANSWERS_PAUSE_S)
        del self._waiting[realm_key]


class EnvelopeRefusals:
    """Counts refused envelopes, and logs each kind once a minute: a stranger can send many."""

    def __init__(self, metrics: KernelMetrics, uptime_s: Callable[[], float]) -> None:
        self._metrics, self._uptime_s = metrics, uptime_s
        self._since_s = uptime_s()
        self._in_minute: Counter[tuple[str, str]] = Counter()

    def report(self, code: str, credential: str) -> None:
        """``credential``: the name of the one that published it; the sender is not verified."""
        self._metrics.envelope_refused(code)
        now_s = self._uptime_s()
        if now_s - self._since_s >= LOG_S or len(self._in_minute) >= LOGGED_MAX:
            self._since_s = now_s
            self._in_minute.clear()
        self._in_minute[code, credential] += 1
        if self._in_minute[code, credential] == 1:
            log.warning("envelope refused", extra={"code": code, "credential": credential})


async def open_realm_keys(sealed: SealedSecrets, realm: str) -> RealmKeys:
    """The keys of the newest generation of the secret and of the one before."""
    newest = await sealed.newest(STORED_AS)
    if newest is None:
        return RealmKeys(realm, {})
    generation, secret = newest
    former = await sealed.get(STORED_AS, generation - 1) if generation > 1 else None
    secrets = {generation: secret} if former is None else {generation - 1: former} | dict([newest])
    return RealmKeys(realm, secrets)


async def next_enrolment(sealed: SealedSecrets, roster: Roster, realm: str) -> Enrolment:
    """Make the secret of the next generation, or find the one of an interrupted rotation."""
    newest = await sealed.newest(STORED_AS)
    if newest is None or not roster.enrolments:
        raise Refused("VAULT_KEY_MISSING", "the realm has no key yet", hint="rookery up")
    generation = max(newest[0], roster.generation + 1)
    if generation > newest[0]:
        await sealed.put(STORED_AS, generation, entropy(SECRET_BYTES))
    return (await open_realm_keys(sealed, realm)).enrol(generation)


async def delete_former_secrets(sealed: SealedSecrets, generation: int) -> None:
    """Delete the secrets before that of the generation before this one, which may still count."""
    for one in await sealed.list():
        if one.name == STORED_AS and 1 <= one.generation < generation - 1:
            await sealed.delete(STORED_AS, one.generation)
