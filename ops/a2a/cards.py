"""Agent cards: what a session says of itself to agents elsewhere, signed by the realm's key."""

from __future__ import annotations

import importlib.metadata
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentCardSignature,
    AgentExtension,
    AgentInterface,
    AgentSkill,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)
from google.protobuf.json_format import MessageToDict

from rookery.actors.keys.json_signatures import without_empty
from rookery.bus.clock import monotonic_s
from rookery.ops.a2a.messages import CURSOR_EXTENSION
from rookery.ops.a2a.task_book import TaskBook
from rookery.ops.gateways import RealmLink
from rookery.schemas.digest import digest_json
from rookery.schemas.peers.gateways import REPEATS_EXTENSION, CardSignature, SignCard
from rookery.schemas.peers.items import Responder
from rookery.schemas.peers.roster import REALM_NAME

__all__ = ["INTENT", "KEYS_PATH", "MODES", "SessionCards"]

INTENT: Final = "a2a.message"
"""Of a message that names no skill."""
KEYS_PATH: Final = "/.well-known/jwks.json"
MODES: Final = ("text/plain", "application/json", "application/octet-stream")
"""What messages and artifacts may be; a program reads and returns any part."""
SIGNED_S: Final = 60.0
"""A card is signed again then: the realm may have its next key."""
_SCHEME: Final = "bearer"
_TAG: Final = "rookery"


class SessionCards:
    """The cards of the sessions that a gateway serves."""

    def __init__(self, link: RealmLink, books: Mapping[str, TaskBook], url: str) -> None:
        """``url``: by which clients reach this gateway."""
        self._link, self._books, self._url = link, books, url.rstrip("/")
        self._signed: dict[str, tuple[str, float, AgentCard]] = {}
        """Of each session: the digest of what is signed, since when, and the card."""
        self._keys: dict[str, str] = {}
        """The realm's public keys that have signed, by their ids."""

    def unsigned(self, session: str) -> AgentCard:
        """The card as far as it is known now."""
        return _unsigned(session, self._books[session].responder, f"{self._url}/{session}")

    async def read(self, session: str) -> AgentCard:
        """The present card of a session, signed."""
        await self._books[session].catch_up()
        card = self.unsigned(session)
        fields = without_empty(MessageToDict(card))
        digest, now_s = digest_json(fields), monotonic_s()
        known, since_s, signed = self._signed.get(session, ("", 0.0, card))
        if known == digest and now_s - since_s < SIGNED_S:
            return signed
        signature = await self._sign(fields)
        card.signatures.append(
            AgentCardSignature(protected=signature.protected, signature=signature.signature)
        )
        self._signed[session] = digest, now_s, card
        return card

    async def keys(self) -> dict[str, Any]:
        """The JSON Web Keys that signatures name."""
        if not self._keys:
            await self.read(next(iter(self._books)))
        return {
            "keys": [
                {"kty": "OKP", "crv": "Ed25519", "kid": key_id, "x": x, "alg": "EdDSA"}
                for key_id, x in self._keys.items()
            ]
        }

    async def _sign(self, fields: dict[str, Any]) -> CardSignature:
        client = await self._link.client()
        query = SignCard(card=fields, keys_url=f"{self._url}{KEYS_PATH}")
        signature = msgspec.convert(await client.ask("sign_card", REALM_NAME, query), CardSignature)
        encoded = urlsafe_b64encode(bytes.fromhex(signature.key)).rstrip(b"=").decode()
        self._keys[signature.key_id] = encoded
        return signature


def _unsigned(session: str, responder: Responder | None, url: str) -> AgentCard:
    description = "" if responder is None else responder.description
    return AgentCard(
        name=session,
        description=description or f"Session {session} of a Rookery realm.",
        version=importlib.metadata.version("rookery"),
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding=binding, protocol_version="1.0")
            for binding in ("JSONRPC", "HTTP+JSON")
        ],
        capabilities=AgentCapabilities(
            streaming=True,
            push_notifications=True,
            extended_agent_card=True,
            extensions=[
                AgentExtension(
                    uri=CURSOR_EXTENSION,
                    description="Events have a cursor; Last-Event-ID resumes a stream behind it.",
                ),
                AgentExtension(
                    uri=REPEATS_EXTENSION,
                    description="A message that is sent again under its id is the same task.",
                ),
            ],
        ),
        security_schemes={
            _SCHEME: SecurityScheme(
                http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="Bearer")
            )
        },
        security_requirements=[SecurityRequirement(schemes={_SCHEME: StringList()})],
        default_input_modes=MODES,
        default_output_modes=MODES,
        skills=list(_skills(responder)),
    )


def _skills(responder: Responder | None) -> list[AgentSkill]:
    """A skill for each intent; a pattern is no skill that a client could name."""
    intents: Mapping[str, Any] = {}
    if responder is not None and isinstance(responder.intents, dict):
        intents = responder.intents
    skills = [
        AgentSkill(
            id=name,
            name=name,
            description=terms.description or f"Requests of the intent {name}.",
            tags=[_TAG],
        )
        for name, terms in intents.items()
        if not any(letter in name for letter in "*?") and not terms.silent
    ]
    if any(skill.id == INTENT for skill in skills):
        return skills
    if responder is not None and responder.terms_of(INTENT) is None:
        return skills
    message = AgentSkill(
        id=INTENT, name="message", description="Messages that name no skill.", tags=[_TAG]
    )
    return [message, *skills]
