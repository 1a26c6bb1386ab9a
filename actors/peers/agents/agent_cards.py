"""The cards of agents elsewhere: fetched, checked, accepted, and checked again before each use.

A card that its agent has signed is pinned by that key, and may change as the agent signs it; any
other is pinned by its digest, and counts no more once it has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from rookery.actors.keys.json_signatures import (
    json_key_of,
    verify_json_signature,
    without_empty,
)
from rookery.actors.peers.agents.agent_client import (
    PROTOCOL,
    AgentClient,
    AgentRefusal,
    AgentUnreachable,
    request_to,
)
from rookery.actors.peers.terminal import PeerResponseTerminalSource
from rookery.schemas.digest import canonical_json, decode_base64url, digest_bytes, digest_json
from rookery.schemas.errors import Refused
from rookery.schemas.peers.gateways import REPEATS_EXTENSION
from rookery.schemas.peers.roster import Pairing, RemoteAgent

__all__ = [
    "AcceptedCard",
    "AgentCards",
    "RemoteCard",
    "accept_card",
    "agent_key",
]

CARD_PATH: Final = "/.well-known/agent-card.json"
CARD_BYTES_MAX: Final = 256 << 10
CHECK_S: Final = 300.0
"""How old what is known of a card may be when a message leaves."""
_BINDING: Final = "JSONRPC"
_KEY_DOMAIN: Final = "rookery.peer.agent.v1"
_SIGNATURES: Final = "signatures"


class RemoteCard(NamedTuple):
    """A card as it is now."""

    fields: Mapping[str, Any]
    url: str
    """Where the agent takes messages by JSON-RPC."""
    name: str
    digest: str
    signed: bytes
    """What its signatures are over."""

    @property
    def is_repeatable(self) -> bool:
        """Whether a message may be sent again."""
        capabilities = self.fields.get("capabilities", {})
        found = capabilities.get("extensions", []) if isinstance(capabilities, dict) else []
        return any(isinstance(one, dict) and one.get("uri") == REPEATS_EXTENSION for one in found)

    @property
    def key_header(self) -> str:
        """The header in which the agent expects an API key; empty if it wants a token."""
        schemes = self.fields.get("securitySchemes", {})
        for scheme in schemes.values() if isinstance(schemes, dict) else ():
            found = scheme.get("apiKeySecurityScheme") if isinstance(scheme, dict) else None
            if isinstance(found, dict) and found.get("location") == "header":
                return str(found.get("name", ""))
        return ""

    def is_signed_by(self, key: str) -> bool:
        return any(
            verify_json_signature(self.signed, one["protected"], one["signature"], key)
            for one in self.signatures
        )

    @property
    def signatures(self) -> Sequence[Mapping[str, Any]]:
        found = self.fields.get(_SIGNATURES, ())
        return [
            one
            for one in (found if isinstance(found, list) else ())
            if isinstance(one, dict)
            and isinstance(one.get("protected"), str)
            and isinstance(one.get("signature"), str)
        ]


class AcceptedCard(NamedTuple):
    """What a card pins, and what the operator has to know of it."""

    agent: RemoteAgent
    key: str
    """Of the pairing."""
    warning: str = ""


def card_url_of(url: str) -> str:
    """The address of the card of an agent that was named by its own address, or by its card's."""
    return url if url.endswith(".json") else url.rstrip("/") + CARD_PATH


def agent_key(card_url: str) -> str:
    """What identifies the agent in place of a key of its own."""
    return digest_bytes(f"{_KEY_DOMAIN}\n{card_url}".encode())


def read_card(found: Any, address: str) -> RemoteCard:
    """The card of decoded JSON; ``Refused`` unless it is one of A2A 1.0 that can be used here.
    ``address``: the agent's, as this realm spells it."""
    if not isinstance(found, dict):
        raise _unusable("it is no object")
    name = found.get("name")
    PeerResponseTerminalSource.parse(None, address, name if isinstance(name, str) else None)
    interfaces = found.get("supportedInterfaces", ())
    for one in interfaces if isinstance(interfaces, list) else ():
        if not isinstance(one, dict) or one.get("protocolBinding") != _BINDING:
            continue
        if one.get("protocolVersion") == PROTOCOL and isinstance(one.get("url"), str):
            plain = without_empty({k: v for k, v in found.items() if k != _SIGNATURES})
            request_to("GET", one["url"], {})
            return RemoteCard(
                fields=found,
                url=one["url"],
                name=str(name),
                digest=digest_json(plain),
                signed=canonical_json(plain),
            )
    raise _unusable(f"it has no interface of {_BINDING} {PROTOCOL}")


async def accept_card(
    client: AgentClient, url: str, alias: str, *, card_key: str = "", lease: str = ""
) -> AcceptedCard:
    """Fetch a card, check it, and say how it is to be pinned. ``card_key``: the key that must have
    signed it, as a JSON Web Key; empty: the one that it names at its own server, if it does.
    ``lease``: the binding whose credential the agent gets."""
    card_url = card_url_of(url)
    card = read_card(await client.get_json(card_url, CARD_BYTES_MAX), f"{alias}@{alias}")
    key, warning = card_key, ""
    if not card.signatures and not key:
        warning = "the card has no signature: it is pinned by its digest, and may not change"
    elif not key and not (key := await _named_key(client, card, card_url)):
        warning = (
            "its signature names no key at its own server: the card is pinned by its digest, "
            "or give the key: --card-key FILE"
        )
    if key and not card.is_signed_by(key):
        raise Refused("SIGNATURE_INVALID", "the key has not signed the card")
    if lease and not request_to("GET", card.url, {}).target.is_confidential:
        text = f"{card.url[:80]!r} is not encrypted, and would get a credential"
        raise Refused("INVALID_ARGUMENT", text, hint="use https, or an agent on loopback")
    agent = RemoteAgent(
        card_url=card_url,
        url=card.url,
        name=card.name,
        digest=card.digest,
        card_key=key,
        lease=lease,
    )
    return AcceptedCard(agent, agent_key(card_url), warning)


async def _named_key(client: AgentClient, card: RemoteCard, card_url: str) -> str:
    """The key that a signature names, if the card's own server has it."""
    for one in card.signatures:
        try:
            header = msgspec.json.decode(decode_base64url(one["protected"]))
            keys_url, key_id = str(header.get("jku", "")), header.get("kid")
            is_own = _origin(keys_url) == _origin(card_url)
        except (ValueError, AttributeError, msgspec.DecodeError, Refused):
            continue
        if not is_own:
            continue
        found = await client.get_json(keys_url, CARD_BYTES_MAX)
        keys = found.get("keys", ()) if isinstance(found, dict) else ()
        for key in keys if isinstance(keys, list) else ():
            known = json_key_of(key)
            if known and key.get("kid") == key_id:
                return known
    return ""


def _origin(url: str) -> tuple[str, str]:
    target = request_to("GET", url, {}).target
    return target.scheme, target.authority


def card_fault(card: RemoteCard, agent: RemoteAgent) -> str:
    """Why a card is not the one that was accepted; empty if it is."""
    if card.url != agent.url:
        return f"it names another address: {card.url[:200]}"
    if agent.card_key:
        return "" if card.is_signed_by(agent.card_key) else "the key has not signed it"
    return "" if card.digest == agent.digest else "it says something else, and no key signs it"


class AgentCards:
    """The cards of accepted agents, as they were a short time ago."""

    def __init__(self, client: AgentClient, uptime_s: Callable[[], float]) -> None:
        self._client, self._uptime_s = client, uptime_s
        self._known: dict[str, tuple[float, RemoteAgent, RemoteCard]] = {}
        """By alias: since when, for which agent."""

    async def read(self, pairing: Pairing) -> RemoteCard:
        """The card, if it is the one that was accepted; ``PEER_CARD_CHANGED``."""
        agent, alias, now_s = pairing.agent, pairing.alias, self._uptime_s()
        if agent is UNSET:
            raise Refused("PEER_UNKNOWN", f"{alias} is no agent of A2A")
        since_s, known, card = self._known.get(alias, (0.0, None, None))
        if card is not None and known == agent and now_s - since_s < CHECK_S:
            return card
        try:
            found = await self._client.get_json(agent.card_url, CARD_BYTES_MAX)
        except AgentRefusal as refusal:
            text = f"the card of {alias} cannot be read: {refusal.message}"
            raise AgentUnreachable(text, is_sent=False) from None
        card, fault = None, ""
        try:
            card = read_card(found, f"{alias}@{alias}")
            fault = card_fault(card, agent)
        except Refused as refusal:
            fault = refusal.message
        if card is None or fault:
            hint = f"look at it, and: rookery peers accept --a2a {agent.card_url} --as {alias}"
            raise Refused("PEER_CARD_CHANGED", f"the card of {alias}: {fault}", hint=hint)
        self._known[alias] = now_s, agent, card
        return card


def _unusable(why: str) -> Refused:
    return Refused("INVALID_ARGUMENT", f"the agent's card cannot be used: {why}")
