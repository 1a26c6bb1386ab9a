"""Kill the node at every place where a conversation between two sessions could lose something.

Both sessions belong to one realm, so one death hits the sender, the receiver and both replies.
Another node takes the place of the killed one; the journals of both sessions are then compared with
those of an undisturbed conversation, times, keys and positions aside.

    python -m tests.chaos.peer_kills [times each] [--minutes M] [--cells WORD ...]
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, closing, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from rookery.actors.kernel.executors.failpoints import PEER_FAILPOINTS
from rookery.bus.client import Client
from rookery.bus.ports import Filter
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.machines.peer import PeerResponseProgressProjectionPhase
from rookery.schemas.peers.envelope import PeerFailure
from rookery.schemas.peers.items import Responder
from tests.chaos.cells import Campaign, Verdict, options, places, run_campaign
from tests.nodes import NotReady, has_died, replace_node
from tests.peers.peer_realms import PeerRealm

__all__ = [
    "Conversation",
    "converse_by_programs",
    "kill_at",
    "undisturbed",
]

STEPS: Final = ("append_sent", "appended", "acked", "evolved", "replied", "effect_started")
ENVELOPES: Final = dict.fromkeys(PEER_FAILPOINTS, 4)
PASSES: Final = {"pulled": 12, "decided": 40, **dict.fromkeys(STEPS, 12), **ENVELOPES}
PASSES_OF_PROGRAMS: Final = {
    "pulled": 6,
    "decided": 70,
    "item_handled": 2,
    "facts_held": 8,
    **dict.fromkeys(STEPS, 22),
    **ENVELOPES,
}
"""How often a conversation passes each failpoint at least, however its commits meet."""
_CHANGING: Final = frozenset(
    [
        *("item", "run", "responder"),
        *("at_ms", "cause", "cause_digest", "source", "by", "traceparent", "generation"),
        *("arrived_ms", "due_at_ms", "expires_at_ms", "roster_change"),
        *("from_key", "to_realm_key", "signature", "vouch", "peer_id"),
    ]
)
"""What differs from realm to realm, or with the time."""
_realms = count(1)


class Conversation(NamedTuple):
    """What two sessions have on record, and what the caller got."""

    results: list[Any]
    facts: Mapping[str, list[Any]]


Story = Callable[[PeerRealm], Awaitable[Conversation]]


async def undisturbed(
    server: EmbeddedServer, folder: Path, story: Story | None = None
) -> Conversation:
    """The conversation as it goes when no node dies."""
    realm = await _prepared(server, folder, "calm")
    with realm.node("--peers"):
        return await (story or converse)(realm)


async def kill_at(
    server: EmbeddedServer, folder: Path, failpoint: str, story: Story | None = None
) -> Conversation:
    """The conversation on a node that dies at ``failpoint`` (``name@pass``), and its successor."""
    realm = await _prepared(server, folder, "kill")
    mortal = realm.node("--peers", ROOKERY_FAILPOINT=failpoint)
    successor = realm.node("--peers")
    with closing(mortal), closing(successor):
        with suppress(NotReady):  # It may come to its point while it starts.
            await asyncio.to_thread(mortal.start)
        replacing = asyncio.create_task(replace_node(mortal, successor))
        conversation = await (story or converse)(realm)
        assert await has_died(mortal), f"no node was killed at {failpoint}"
        await replacing
        return conversation


async def _prepared(server: EmbeddedServer, folder: Path, kind: str) -> PeerRealm:
    """A realm that is enrolled and has both sessions, and no node."""
    name = f"{kind}{next(_realms)}"
    realm = PeerRealm(server, name, folder / name)
    with realm.node() as node:
        await asyncio.to_thread(realm.card)
        async with realm.client() as client:
            for session in ("planner", "coder"):
                await client.run(session, "1")
        node.stop()
    return realm


async def converse_by_programs(realm: PeerRealm) -> Conversation:
    """A program asks twice and is parked meanwhile; a responder, whose runs wait a little, answers.
    The journal says how often its program ran."""
    async with realm.client() as client:
        responder = Responder(
            code="await sleep(0.05)\n[item['params'], item['from'].partition('@')[0]]"
        )
        await _patiently(lambda: client.serve_peers("coder", responder, message_id="responder"))
        code = "ask = lambda n: send_request('coder', 'review', n)\n[await ask(1), await ask(2)]"
        handle = await _patiently(lambda: client.submit("planner", code, message_id="asking"))
        async with aclosing(client.events("turn", "planner", run=await handle.accepted())) as found:
            async for fact in found:
                if fact["type"] == "turn.completed.v1":
                    results = fact["result"]["result"]
                    break
        await _settled(client)
        facts = {session: await _facts(client, session) for session in ("planner", "coder")}
        runs = await client.ask("runs", "all", {"session": "coder"})
        results.append(len([run for run in runs["runs"] if run["calls"]]))
    return Conversation(results, facts)


async def converse(realm: PeerRealm) -> Conversation:
    """A result after a report of progress, a failure, and a message; each waits for the one before,
    so that the order of the facts is one."""
    async with realm.client() as client:
        results = [await _ask(client, "review", {"file": "x.py"}, result=[1, None])]
        error = PeerFailure(code="NO_TESTS", message="write some")
        results.append(await _ask(client, "test", None, error=error))
        sent = await _patiently(
            lambda: client.send_message("planner", "coder", "thanks", message_id="thanks")
        )
        await _seen(client, "coder", "peer.envelope_classified.v1", "item_id", sent.id)
        await _settled(client)
        facts = {session: await _facts(client, session) for session in ("planner", "coder")}
    return Conversation(results, facts)


async def _ask(client: Client, intent: str, params: Any, **response: Any) -> Any:
    sent = await _patiently(
        lambda: client.send_request("planner", "coder", intent, params, message_id=intent)
    )
    await _seen(client, "coder", "peer.request_received.v1", "corr_id", sent.id)
    phase = PeerResponseProgressProjectionPhase.IN_PROGRESS
    await _patiently(
        lambda: client.send_response("coder", sent.id, phase=phase, message_id=f"{intent}-progress")
    )
    await _seen(client, "planner", "peer.response_progressed.v1", "corr_id", sent.id)
    await _patiently(
        lambda: client.send_response("coder", sent.id, message_id=f"{intent}-end", **response)
    )
    try:
        return await client.wait_for_response("planner", sent.id)
    except Refused as refusal:
        return refusal.message


async def _patiently(send: Any) -> Any:
    """A request that is repeated under its id while a node is missing."""
    while True:
        try:
            return await send()
        except CodedError as error:
            if isinstance(error, Refused):
                raise
        await asyncio.sleep(0.1)


async def _seen(client: Client, session: str, kind: str, field: str, value: str) -> None:
    async with aclosing(client.events("peer", session)) as found:
        async for fact in found:
            if fact["type"] == kind and fact.get(field) == value:
                return


async def _settled(client: Client) -> None:
    """Wait until every envelope is known to be delivered."""
    for session in ("planner", "coder"):
        while (await _patiently(lambda s=session: client.exchanges(s))).undelivered:
            await asyncio.sleep(0.05)


async def _facts(client: Client, session: str) -> list[Any]:
    """The facts of a session, without what may differ; ids by the order of their appearance.
    Deliveries join other commits, so only their ids count."""
    names: dict[str, int] = {}
    found: list[Any] = []
    delivered: list[str] = []
    async for page in client.journal.scan(Filter("peer", session)):
        for stored in page:
            for fact in msgspec.json.decode(stored.body):
                if fact["type"] == "peer.delivered.v1":
                    delivered += fact["ids"]
                elif fact["type"] != "peer.context_advanced.v1":  # One a millisecond at most.
                    found.append(_normal(fact, names))
    return [*found, sorted(names[one] for one in delivered)]


def _normal(value: Any, names: dict[str, int], field: str = "") -> Any:
    if isinstance(value, dict):
        number = {"id"} if "type" in value else set()  # Deliveries have facts of their own.
        kept = {name: one for name, one in value.items() if name not in _CHANGING | number}
        return {name: _normal(one, names, name) for name, one in sorted(kept.items())}
    if isinstance(value, list):
        return [_normal(one, names) for one in value]
    if field == "text":
        return _normal(msgspec.json.decode(value), names)
    if isinstance(value, str) and len(value) == 36 and value.count("-") == 4:
        return names.setdefault(value, len(names))
    if field in ("dest", "sender", "from_peer", "alias"):
        return value.partition("@")[0] if "@" in value else ""
    return value


async def campaign(asked: Campaign) -> None:
    stories = {
        "exchange": (converse, PASSES),
        "programs": (converse_by_programs, PASSES_OF_PROGRAMS),
    }
    with EmbeddedServer(asked.folder / "store", admin=True) as server:
        calm = {
            name: await undisturbed(server, asked.folder, story)
            for name, (story, _) in stories.items()
        }

        async def verdict(cell: str, folder: Path) -> Verdict:
            name, failpoint = cell.split()
            found = await kill_at(server, folder, failpoint, stories[name][0])
            return Verdict([] if found == calm[name] else ["the journals differ"])

        cells = [
            f"{name} {place}"
            for name, (_, passes) in stories.items()
            for place in places(passes, asked.options.times)
        ]
        await asked.judge(cells, verdict)


if __name__ == "__main__":
    sys.exit(run_campaign(options("tests.chaos.peer_kills", times=4), campaign))
