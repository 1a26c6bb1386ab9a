"""Requests between peers: from a program's request to its result, the check of an envelope, many
peers that wait, and runs that use no peer."""

from __future__ import annotations

import asyncio
from time import perf_counter, process_time
from typing import Any, Final
from uuid import UUID

import msgspec
from Crypto.Signature import eddsa

from rookery.actors.peers.envelopes import RecordedEnvelopes, sign_envelope
from rookery.actors.peers.roster import Roster, RosterSigners
from rookery.actors.peers.trust import RealmKeys, peer_id_of
from rookery.actors.projections.reports import RosterReport
from rookery.bus.client import Client
from rookery.bus.nats import Connection, Outgoing
from rookery.bus.ports import Filter, StoredMessage
from rookery.ops.bench.harness.load import LoadResult, Task, timed
from rookery.ops.bench.harness.result_rows import percentile
from rookery.ops.bench.loads.run_load import PLAIN, timed_run
from rookery.schemas.calls import ApprovalMode
from rookery.schemas.codec import fact_tag
from rookery.schemas.digest import canonical_json
from rookery.schemas.errors import Failed
from rookery.schemas.facts import peer, session, tool
from rookery.schemas.peers.envelope import ENVELOPE_DOMAIN, EnvelopeArrival
from rookery.schemas.peers.items import Responder
from rookery.schemas.peers.roster import ROSTER_KEY, NamePeer, Pairing
from rookery.schemas.run import RunRequest

__all__ = ["check_envelopes", "exchanges", "open_requests", "runs_beside"]

# --- exchanges ------------------------------------------------------------------------------------

ASKER, ANSWERER = "asker", "answerer"
_ADDS = Responder(code="item['params'] + 1")
_WARM: Final = 3
_READY_S: Final = 30.0
_BESIDE: Final = {
    fact_tag(peer.EnvelopesDelivered),
    fact_tag(peer.ContextAdvanced),
    fact_tag(session.RunCommitted),
}
"""Facts that no answer waits for."""
_BEGIN, _END = fact_tag(tool.Awaited), fact_tag(tool.Completed)


async def exchanges(connection: Connection, task: Task) -> LoadResult:
    """The time of a program with one request less that of a program without, in turn within the
    realm (``within``) and to the other site (``over``); and the ``appends`` of a request."""
    del connection
    taken: dict[str, list[float]] = {"within": [], "over": []}
    async with Client(task.client_url) as here, Client(task.other_url) as there:
        await _pair(here, there)
        for client, name in ((here, ASKER), (here, ANSWERER), (there, ANSWERER)):
            await client.run(name, "1")
        for client in (here, there):
            await client.serve_peers(ANSWERER, _ADDS)
        start_s = perf_counter()
        for number in range(task.count + _WARM):
            plain_s = await _timed(here, PLAIN)
            for where, address in (("within", ANSWERER), ("over", f"{ANSWERER}@east")):
                asked = RunRequest(code=f"await send_request('{address}', 'add', 1)")
                longer_s = await _timed(here, asked) - plain_s
                if number >= _WARM:
                    taken[where].append(longer_s)
        outcome = timed(taken["within"], perf_counter() - start_s)
        appends = await _count_appends(here)
    figures = {name: 1e6 * percentile(found, 0.5) for name, found in taken.items()}
    return msgspec.structs.replace(outcome, figures=figures | {"appends": float(appends)})


async def _timed(client: Client, request: RunRequest) -> float:
    sent_s = perf_counter()
    answer = await client.run(ASKER, request)
    if answer.result != 2:
        raise Failed("NODE_FAILED", f"the run ended as {answer}")
    return perf_counter() - sent_s


async def _pair(here: Client, there: Client) -> None:
    """Let both realms trust each other, as people do by cards."""
    for client, other, alias in ((here, there, "east"), (there, here, "west")):
        pairing = Pairing(alias=alias, key=await _realm_key(other), approval=ApprovalMode.NONE)
        await client.ask("roster", ROSTER_KEY, NamePeer(pair=pairing))


async def _realm_key(client: Client) -> str:
    """As soon as its node has enrolled the realm."""
    async with asyncio.timeout(_READY_S):
        while True:
            messages = await _messages(client, Filter("peer", ROSTER_KEY))
            roster = RosterReport.read(messages, client.realm, RosterSigners()).roster
            if roster.realm_key:
                return roster.realm_key
            await asyncio.sleep(0.05)


async def _messages(client: Client, where: Filter) -> list[StoredMessage]:
    return [stored async for page in client.journal.scan(where) for stored in page]


async def _count_appends(client: Client) -> int:
    """Of one more request within the realm: the messages from that in which the call is awaited to
    that which has its result, without those that nothing waits for, and with the two envelopes in
    the inboxes, which the journal does not have. A result in the message of the next step has none
    of its own."""
    await client.run(ASKER, f"await send_request('{ANSWERER}', 'add', 1)")
    kinds = [
        {fact["type"] for fact in msgspec.json.decode(stored.body)}
        for stored in await _messages(client, Filter())
    ]
    first = max(number for number, found in enumerate(kinds) if _BEGIN in found)
    last = max(number for number, found in enumerate(kinds) if _END in found)
    path = [found for found in kinds[first : last + 1] if found - _BESIDE]
    envelopes = sum(fact_tag(peer.EnvelopeClassified) in found for found in path)
    return len(path) + envelopes - (len(path[-1]) > 1)


# --- envelopes ------------------------------------------------------------------------------------

_NOW_MS: Final = 1_790_000_000_000
_HOUR_MS: Final = 3_600_000
_ROUNDS: Final = 5
_NEW: Final = 60
"""Senders of whom no envelope was checked before, in a round."""


async def check_envelopes(connection: Connection, task: Task) -> LoadResult:
    """The processor time of all checks of an envelope, from its bytes to its number, and of what
    the library does for its signature: the lowest of interleaved rounds. ``new``: of the first one
    of a sender, whose vouch is verified, too."""
    del connection
    keys = RealmKeys("default", {1: b"b" * 32})
    roster = Roster("default", RosterSigners(), [peer.Enrolled(change=1, enrolment=keys.enrol(1))])
    checks = RecordedEnvelopes("default")
    arrivals = [_arrival(keys, number) for number in range(1, task.count * _ROUNDS + 2)]
    others = [_arrival(keys, number, f"asker{number}") for number in range(1, _NEW * _ROUNDS + 1)]
    first = arrivals.pop(0)
    checks.verify(ANSWERER, _id(first.n), first, roster)  # The vouch is verified once.
    used: dict[str, list[float]] = {"library": [], "check": [], "new": []}
    start_s = perf_counter()
    for number in range(_ROUNDS):
        part = arrivals[number * task.count : (number + 1) * task.count]
        began_s = process_time()
        for one in part:
            key = eddsa.import_public_key(bytes.fromhex(one.from_key))
            signed = ENVELOPE_DOMAIN + one.text.encode()
            eddsa.new(key, "rfc8032").verify(signed, bytes.fromhex(one.signature))
        middle_s = process_time()
        for one in part:
            checks.verify(ANSWERER, _id(one.n), one, roster)
        end_s = process_time()
        for one in others[number * _NEW : (number + 1) * _NEW]:
            checks.verify(ANSWERER, _id(one.n), one, roster)
        used["library"].append((middle_s - began_s) / task.count)
        used["check"].append((end_s - middle_s) / task.count)
        used["new"].append((process_time() - end_s) / _NEW)
    figures = {name: 1e6 * min(found) for name, found in used.items()}
    outcome = timed(used["check"], perf_counter() - start_s)
    return msgspec.structs.replace(outcome, figures=figures)


def _id(number: int) -> str:
    return str(UUID(int=number))


def _arrival(keys: RealmKeys, number: int, asker: str = ASKER) -> EnvelopeArrival:
    """A request of the usual size, as a node has it."""
    key, realm_key = keys.key_of(asker, 1, 1), keys.realm_key(1).public_key
    members: dict[str, Any] = {
        "v": 1,
        "kind": "request",
        "id": _id(number),
        "from": asker,
        "from_key": key.public_key,
        "to": ANSWERER,
        "to_realm_key": realm_key,
        "n": number,
        "at_ms": _NOW_MS,
        "expires_at_ms": _NOW_MS + _HOUR_MS,
        "due_at_ms": _NOW_MS + _HOUR_MS,
        "intent": "review",
        "params": {"file": "x.py", "text": "x" * 300},
    }
    body = canonical_json(members)
    return EnvelopeArrival(
        text=body.decode(),
        signature=sign_envelope(key, body),
        vouch=keys.vouch(asker, 1, 1, _NOW_MS),
        sender=f"{asker}@default",
        peer_id=peer_id_of(realm_key, asker),
        from_key=key.public_key,
        n=number,
        roster_change=1,
        arrived_ms=_NOW_MS,
    )


# --- peers that wait ------------------------------------------------------------------------------

_CONNECTIONS: Final = "$SYS.REQ.ACCOUNT.PING.CONNZ"
_BENCH: Final = "rookery-bench"
_AT_ONCE: Final = 32


async def open_requests(connection: Connection, task: Task) -> LoadResult:
    """Open sessions each of which asks the next one, and look how many subscriptions their node has
    ``before`` and ``after``, and how many ``bytes`` the streams have for each session."""
    del connection
    places = asyncio.Semaphore(_AT_ONCE)
    async with Client(task.client_url) as client:

        async def open_one(name: str) -> None:
            async with places:
                await client.create(name)

        async def ask(asker: str, answerer: str) -> None:
            async with places:
                await client.send_request(asker, answerer, "wait")

        before, stored = await _counts(task)
        start_s = perf_counter()
        names = [f"peer{number}" for number in range(task.count)]
        await asyncio.gather(*map(open_one, names))
        await asyncio.gather(*map(ask, names, names[1:] + names[:1]))
        for name in names:
            await _received(client, name)
        seconds = perf_counter() - start_s
        after, stored_then = await _counts(task)
    each = (stored_then - stored) / task.count
    figures = {"before": float(before), "after": float(after), "bytes": each}
    return LoadResult(len(names), seconds, figures=figures)


async def _received(client: Client, session_id: str) -> None:
    async with asyncio.timeout(_READY_S):
        while True:
            if (await client.exchanges(session_id)).unanswered:
                return
            await asyncio.sleep(0.05)


async def _counts(task: Task) -> tuple[int, int]:
    """The subscriptions of all connections but this one and clients', and the bytes of all streams
    before the server compresses them."""
    connection = Connection(task.admin_url, name=_BENCH)
    await connection.open()
    try:
        answer = await connection.request(Outgoing(_CONNECTIONS, b""))
        streams = (await connection.api("STREAM.NAMES"))["streams"]
        infos = [await connection.api(f"STREAM.INFO.{name}") for name in streams]
    finally:
        await connection.close()
    found = msgspec.json.decode(answer.body)["data"]["connections"]
    names = (_BENCH, "rookery-client")
    subscriptions = sum(one["subscriptions"] for one in found if one.get("name") not in names)
    return subscriptions, sum(info["state"]["bytes"] for info in infos)


# --- runs without peers ---------------------------------------------------------------------------


async def runs_beside(connection: Connection, task: Task) -> LoadResult:
    """Runs of ``1 + 1`` in turn on a node with peers (``with``) and on one without."""
    del connection
    taken: dict[str, list[float]] = {"with": [], "without": []}
    async with Client(task.client_url) as here, Client(task.other_url, realm="plain") as plain:
        start_s = perf_counter()
        for number in range(task.count + _WARM):
            for name, client in (("with", here), ("without", plain)):
                taken_s = await timed_run(client, task, number, PLAIN)
                if number >= _WARM:
                    taken[name].append(taken_s)
        outcome = timed(taken["with"], perf_counter() - start_s)
    figures = {name: 1e6 * percentile(found, 0.5) for name, found in taken.items()}
    return msgspec.structs.replace(outcome, figures=figures)
