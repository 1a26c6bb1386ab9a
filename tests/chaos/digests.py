"""What must not depend on who died when: the facts of a session and the state they make.

Times, names of nodes and everything that is derived from a time are replaced by the order in which
they appear; the rest has to be equal to the letter.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import msgspec

from rookery.actors.admission.evolve import evolve
from rookery.actors.admission.state import Admission, encode_state
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.journal_audit import ChainAudit
from rookery.bus.ports import DeadLetter, Filter, StoredMessage
from rookery.bus.roles import Role
from rookery.schemas.codec import FactCodec
from rookery.schemas.digest import digest_bytes
from rookery.schemas.facts.session import SESSION_FACTS
from rookery.schemas.run import SessionMeta
from tests.stock_client import Server

__all__ = ["Journaled", "journaled"]

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
PASSING = ("at_ms", "source", "cause_digest")
"""Of a commit, ``cause_digest`` covers ids that are derived from a time."""


class Journaled:
    """The journal of a realm, read back and verified."""

    def __init__(self, messages: list[StoredMessage], dead: list[DeadLetter]) -> None:
        self.dead = dead
        audit = ChainAudit()
        self.sessions: dict[str, list[list[dict[str, Any]]]] = defaultdict(list)
        """By session, its messages, each a list of facts."""
        self.calls: dict[str, str] = {}
        """The name of the tool of each call, by its operation."""
        for stored in messages:
            audit.add(stored)
            if stored.entity.family == "session":
                self.sessions[stored.entity.key].append(msgspec.json.decode(stored.body))
            elif stored.entity.family == "turn":
                facts = msgspec.json.decode(stored.body)
                requested = [one for one in facts if one["type"] == "tool.requested.v1"]
                self.calls |= {one["operation_id"]: one["name"] for one in requested}

    def facts(self, session: str) -> list[dict[str, Any]]:
        """As they follow each other, whatever messages hold them."""
        return [fact for message in self.sessions[session] for fact in message]

    def normal(self, session: str) -> bytes:
        """The session's facts without what passes."""
        seen: dict[str, str] = {}

        def numbered(found: re.Match[str]) -> str:
            return seen.setdefault(found[0], f"#{len(seen)}")

        lasting = [
            {name: value for name, value in fact.items() if name not in PASSING}
            | ({"reply_to": fact["reply_to"].rpartition(".")[2]} if "reply_to" in fact else {})
            for fact in self.facts(session)
        ]
        return UUID.sub(numbered, msgspec.json.encode(lasting).decode()).encode()

    def state_digest(self, session: str) -> str:
        """Of the state that the session's facts, without what passes, make."""
        codec: FactCodec[Any] = FactCodec(SESSION_FACTS)
        state = Admission(meta=SessionMeta(id=session))
        for fact in codec.decode(self.normal(session)):
            state = evolve(state, fact)
        return digest_bytes(encode_state(state))

    def doubles(self, session: str) -> list[str]:
        """Commands that caused facts in more than one message. Asking once more for an answer is
        a fact of its own."""
        messages: dict[str, int] = defaultdict(int)
        for message in self.sessions[session]:
            telling = [f for f in message if f["type"] != "session.reply_requested.v1"]
            for command in {fact["cause"][0] for fact in telling}:
                messages[command] += 1
        return [command for command, count in messages.items() if count > 1]


async def journaled(server: Server, realm: str) -> Journaled:
    """What a realm's journal holds."""
    bus = JetStreamBus(server.url_for(Role.NODE, realm=realm), realm=realm)
    await bus.start()
    try:
        messages = [one async for page in bus.journal.scan(Filter()) for one in page]
        return Journaled(messages, await bus.inbox.dead_letters())
    finally:
        await bus.stop()
