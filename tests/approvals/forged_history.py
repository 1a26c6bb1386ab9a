"""A history of a real node, and what a forger who has no key makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec.structs import replace

from rookery.actors.approvals.state import APPROVERS_KEY
from rookery.bus.journal import JetStreamJournal
from rookery.bus.nats.connection import Connection
from rookery.bus.ports import Filter, StoredMessage
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.bus.subjects import Subjects
from rookery.ops.journal import JournalCheck
from rookery.ops.journal.anchor import Anchor
from rookery.schemas.codec import FactCodec, encode_facts
from rookery.schemas.digest import ZERO_CHAIN, chain
from rookery.schemas.envelope import EntityId, Fact
from rookery.schemas.facts.approval import APPROVAL_FACTS
from rookery.schemas.facts.node import NODE_FACTS
from tests.approvals.approval_world import ApprovalWorld

__all__ = [
    "APPROVERS",
    "REALM",
    "Messages",
    "Recorded",
    "chained",
    "checked",
    "facts_of",
    "inserted",
    "recorded",
    "with_fact",
]

REALM = "forgers"
APPROVERS = EntityId("approval", APPROVERS_KEY)
APPROVALS: FactCodec[Any] = FactCodec(APPROVAL_FACTS)
NODES: FactCodec[Any] = FactCodec(NODE_FACTS)
Messages = list[StoredMessage]


class Recorded(NamedTuple):
    """What a node wrote in two lives, with approved calls, and one that still waits."""

    messages: Messages
    anchor: Anchor
    waiting: str
    """The id of the approval without an answer."""


@pytest.fixture(scope="session")
def recorded(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("forgers")

    async def live(*sessions: str, first: bool = False) -> str:
        async with ApprovalWorld(server, REALM, folder) as world:
            if first:
                await world.name_approvers()
            for session in sessions:
                parked = await world.parked(session)
                await world.accepted(parked, world.signed(parked.answer()))
            return (await world.parked("waits")).approval.approval_id if first else ""

    async def read() -> Messages:
        connection = Connection(server.url_for(Role.NODE, realm=REALM))
        await connection.open()
        try:
            pages = JetStreamJournal(connection, Subjects(REALM)).scan(Filter())
            return [stored async for page in pages for stored in page]
        finally:
            await connection.close()

    with ApprovalWorld(server, REALM, folder).node(ROOKERY_NODE_NAME="n1") as node:
        waiting = asyncio.run(live("a", "b", first=True))
        node.stop()
    with ApprovalWorld(server, REALM, folder).node(ROOKERY_NODE_NAME="n1") as node:
        asyncio.run(live("c"))
        node.stop()
    messages = asyncio.run(read())
    return Recorded(messages, checked(messages).anchor(REALM, 1), waiting)


def checked(
    messages: Sequence[StoredMessage], anchor: Anchor | None = None, *, is_long: bool = False
) -> JournalCheck:
    with JournalCheck(realm=REALM, anchor=anchor, is_long=is_long) as check:
        for stored in messages:
            check.add(stored)
        check.finish()
    return check


def chained(messages: Sequence[StoredMessage]) -> Messages:
    """The messages with new sequences and digests, which need no key."""
    ends: dict[EntityId, str] = {}
    forged = []
    for sequence, stored in enumerate(messages, 1):
        digest = chain(ends.get(stored.entity, ZERO_CHAIN), stored.body)
        ends[stored.entity] = digest
        forged.append(replace(stored, sequence=sequence, chain=digest))
    return forged


def inserted(messages: Messages, at: int, entity: EntityId, *facts: Fact) -> Messages:
    said = [msgspec.structs.replace(fact, source=f"{entity.family}@n1") for fact in facts]
    message = StoredMessage(0, entity, "forged", "", encode_facts(said), 1)
    return chained([*messages[:at], message, *messages[at:]])


def facts_of(messages: Messages, kind: type[Any]) -> list[tuple[int, Any]]:
    """The facts of a type, each with the place of its message."""
    codecs = {"approval": APPROVALS, "node": NODES}
    return [
        (place, fact)
        for place, stored in enumerate(messages)
        for fact in (
            codecs[stored.entity.family].decode(stored.body)
            if stored.entity.family in codecs
            else ()
        )
        if type(fact) is kind
    ]


def with_fact(messages: Messages, place: int, old: Fact, new: Fact) -> Messages:
    """The history with one fact in another's place."""
    codec = NODES if messages[place].entity.family == "node" else APPROVALS
    facts = [new if fact == old else fact for fact in codec.decode(messages[place].body)]
    changed = replace(messages[place], body=encode_facts(facts))
    return chained([*messages[:place], changed, *messages[place + 1 :]])
