"""Bad input is refused by code, and disturbs no other client.

A waiting client gets the error on its reply subject; input without a waiting client becomes a dead
letter.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import nats.errors
import pytest
from nats.aio.client import Client

from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.ports import Appended, AppendOutcome, AppendRequest
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.digest import chain
from rookery.schemas.envelope import EntityId
from tests.bus.journals import share_turns
from tests.execution.realm_fixture import PAYLOAD_BYTES_MAX, Serving
from tests.execution.session_client import Visit
from tests.nodes import node_on
from tests.stock_client import Answer, Stock, stock, until


class Bad(NamedTuple):
    """A command that no node can process."""

    code: str
    body: object = b'{"code":"1"}'
    verb: str = "run"
    session: str = "bad"
    headers: Mapping[str, str] = MappingProxyType({})


BAD = {
    "no JSON": Bad("INVALID_JSON", b"{code: 1}"),
    "JSON that breaks off": Bad("INVALID_JSON", b'{"code":"1"'),
    "a character that breaks off": Bad("INVALID_JSON", b'{"code":"\xe2\x82"}'),
    "not an object": Bad("INVALID_ARGUMENT", b"[1]"),
    "a wrong type": Bad("INVALID_ARGUMENT", {"code": 7}),
    "an unknown field": Bad("UNKNOWN_FIELD", {"code": "1", "cod": "2"}),
    "an unknown field inside": Bad("UNKNOWN_FIELD", {"limits": {"memory": 1}}),
    "another session": Bad("INVALID_ARGUMENT", {"session_id": "other"}),
    "an unknown verb": Bad("UNKNOWN_VERB", verb="rum"),
    "an unknown input": Bad("NO_MATCHING_TRANSITION", {"input": "Explode"}, "admission"),
    "an unknown parameter": Bad(
        "UNKNOWN_FIELD", {"input": "Retire", "params": {"why": 1}}, "admission"
    ),
    "an oversize body": Bad("PAYLOAD_TOO_LARGE", {"code": "1" * PAYLOAD_BYTES_MAX}),
    "a deeply nested body": Bad("INVALID_JSON", b'{"inputs":' + b"[" * 5000 + b"]" * 5000 + b"}"),
    "a slash": Bad("INVALID_SESSION_ID", session="a/b"),
    "an encoded dot": Bad("INVALID_SESSION_ID", session="a%2Eb"),
    "an encoded blank": Bad("INVALID_SESSION_ID", session="a%20b"),
    "a letter that is none": Bad("INVALID_SESSION_ID", session="säule"),
    "a long session id": Bad("INVALID_SESSION_ID", session="a" * 65),
    "an unknown content type": Bad(
        "UNSUPPORTED_CONTENT_TYPE", headers={"Content_Type": "application/xml"}
    ),
    "no MessagePack": Bad("INVALID_JSON", b"\xc1", headers={"Content_Type": "application/msgpack"}),
    "an unknown mode": Bad("INVALID_ARGUMENT", headers={"Rookery_Mode": "hurry"}),
    "a long message id": Bad("INVALID_ARGUMENT", headers={"Nats_Msg_Id": "x" * 129}),
    "a slash in the message id": Bad("INVALID_ARGUMENT", headers={"Nats_Msg_Id": "a/b"}),
    "a blank in the message id": Bad("INVALID_ARGUMENT", headers={"Nats_Msg_Id": "a b"}),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_by_code_at_both_entry_points(serving: Serving, what: str):
    async def scenario(client: Stock) -> None:
        for door in ("cmd", "api"):
            answer = await send_bad(client, door, BAD[what])
            assert answer.code == answer.error["code"] == BAD[what].code
            assert answer.error["message"]

    serving.visit(scenario, "admin")


async def send_bad(client: Stock, door: str, bad: Bad) -> Answer:
    reply = client.reply()
    name = reply.rpartition(".")[2]
    await client.publish(door, bad.verb, bad.session, bad.body, reply=reply, **bad.headers)
    return (await until(lambda: client.answers[name]))[0]


def test_bad_input_without_a_waiting_client_becomes_a_dead_letter(
    serving: Serving,
):
    async def scenario(client: Stock) -> None:
        beside = Visit(client, "beside")
        for number, bad in enumerate(BAD.values()):
            await client.publish("cmd", bad.verb, bad.session, bad.body, **bad.headers)
            await beside.run(f"beside-{number}")
            await beside.commit()
        assert beside.started() == [f"beside-{number}" for number in range(len(BAD))]

    before = len(letters(serving))
    serving.visit(scenario, "admin")
    found = letters(serving, before + len(BAD))[before:]
    assert sorted(letter["code"] for letter in found) == sorted(bad.code for bad in BAD.values())
    assert {letter["key"] for letter in found} >= {"a/b", "a.b", "a b", "säule", "a" * 65}
    assert all(letter["message"] for letter in found)


def test_a_dead_letter_is_retried_if_it_can_be_processed_and_dropped_if_not(
    serving: Serving,
):
    async def give_too_early(client: Stock) -> None:
        body = {"input": "Retire", "params": {}}
        await client.submit("admission", "later", body, Nats_Msg_Id="early")
        await client.submit("admission", "never", body, Nats_Msg_Id="early")

    async def retry(client: Stock) -> None:
        visit = Visit(client, "later")
        await visit.run("now")
        assert serving.rookery("inbox", "dead", "retry", str(numbers["later"])).code == 0
        await until(lambda: visit.of_type("retired"), "the letter is worked off")

    serving.visit(give_too_early)
    numbers = {letter["key"]: letter["number"] for letter in letters(serving, 2, id="early")}
    serving.visit(retry)
    assert [letter["key"] for letter in letters(serving, id="early")] == ["never"]
    assert serving.rookery("inbox", "dead", "drop", str(numbers["never"])).code == 0
    assert not letters(serving, id="early")
    assert serving.rookery("inbox", "dead", "drop", str(numbers["never"])).code == 4


def letters(serving: Serving, count_min: int = 0, **fields: str) -> list[dict[str, Any]]:
    """The dead letters with these fields, as soon as there are this many."""
    while True:
        said = serving.rookery("inbox", "dead", "list")
        assert said.code == 0, said
        listed: list[dict[str, Any]] = json.loads(said.out)
        found = [letter for letter in listed if fields.items() <= letter.items()]
        if len(found) >= count_min:
            return found


def test_a_subject_with_too_many_parts_gets_no_responders(serving: Serving):
    async def scenario(client: Stock) -> None:
        for door in ("cmd", "api"):
            subject = f"rookery.{serving.realm}.{door}.run.a.b"
            with pytest.raises(nats.errors.NoRespondersError):
                await client.nats.request(subject, b"{}", timeout=60)

    serving.visit(scenario, "admin")


def test_only_the_session_with_a_fact_of_the_future_is_refused(serving: Serving):
    async def scenario(client: Stock) -> None:
        old, beside = Visit(client, "future"), Visit(client, "present")
        await old.run("a")
        await old.commit()
        await append_from_the_future(serving.url_for(Role.NODE), serving.realm, old.session)
        await refused_beside(client, old, beside)
        await client.submit("run", old.session, {"code": "1"}, Nats_Msg_Id="unheard")

    serving.visit(scenario)
    (letter,) = letters(serving, 1, key="future")
    assert letter["code"] == "FACT_VERSION_UNSUPPORTED"


def test_a_fact_of_the_future_keeps_no_node_from_starting_or_stopping(
    server: EmbeddedServer, tmp_path: Path
):
    async def scenario() -> None:
        async with stock(server, "upgraded", Role.OPERATOR) as client:
            old, beside = Visit(client, "future"), Visit(client, "present")
            with node_on(server, "upgraded", tmp_path) as node:
                await client.follow()
                await old.run("a")
                await old.commit()
                await old.run("b")
                node.kill()
            await append_from_the_future(
                server.url_for(Role.NODE, realm="upgraded"), "upgraded", old.session
            )
            with node_on(server, "upgraded", tmp_path) as node:
                await refused_beside(client, old, beside)
                assert node.stop() == 0
                assert '"drained":true' in node.log.read_text()

    asyncio.run(scenario())


async def refused_beside(client: Stock, old: Visit, beside: Visit) -> None:
    """One session cannot be decoded; the session beside it is unaffected."""
    for door in ("cmd", "api"):
        await old.send("c", door=door, reply_name=door)
        assert (await old.answer(door)).code == "FACT_VERSION_UNSUPPORTED"
    await beside.run("a")
    await beside.commit()
    listed = (await client.ask("sessions", "all")).body["sessions"]
    phases = {session["meta"]["id"]: session["phase"] for session in listed}
    assert phases[beside.session] == "Attached"
    assert phases[old.session] == "Unreadable"


async def append_from_the_future(url: str, realm: str, session: str) -> None:
    """Append a fact as a newer version writes it, with a valid envelope."""
    bus, entity = JetStreamBus(url, realm=realm), EntityId("session", session)
    await bus.start()
    last = await bus.journal.last(entity)
    assert last is not None
    body = json.dumps([{"type": "session.run_prepared.v99", "session": session}]).encode()
    linked = chain(last.chain, body)
    settled: asyncio.Future[list[AppendOutcome]] = asyncio.get_running_loop().create_future()
    await share_turns(bus.journal)
    append = AppendRequest(entity, last.sequence, f"future-{session}", body, linked)
    bus.journal.append([append], settled.set_result)
    assert isinstance((await settled)[0], Appended)
    await bus.stop()


def test_without_a_credential_every_request_is_refused(serving: Serving):
    client_of_the_realm = serving.server.credential(Role.CLIENT, realm=serving.realm)

    async def scenario() -> None:
        wrong = serving.url.replace(client_of_the_realm.password, "wrong")
        for url in (wrong, serving.server.address):
            client = Client()
            with pytest.raises(nats.errors.Error, match=r"(?i)authorization"):
                await client.connect(url, allow_reconnect=False, max_reconnect_attempts=0)
            await client.close()

    asyncio.run(scenario())
