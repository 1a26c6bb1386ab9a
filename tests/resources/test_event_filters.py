"""Readers of a running realm select facts by their index: clients, ``watch`` and exports."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from rookery.bus.client.client import Client
from rookery.bus.client.filtered_events import SelectedEvent
from rookery.bus.client.sync import SyncClient
from rookery.bus.roles import Role
from rookery.schemas.approvals.lists import ListedApproval
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.events import EventCursor, EventFilter
from rookery.schemas.seed.refs import PrivacyClass
from tests.resources.conftest import REALM, Realm

LAST = "turn_completed"


async def until_end(events: AsyncIterator[SelectedEvent]) -> list[SelectedEvent]:
    found: list[SelectedEvent] = []
    async for event in events:
        found.append(event)
        if event.fact["type"].startswith("turn.completed"):
            break
    return found


def types(events: list[SelectedEvent]) -> list[str]:
    return [event.fact["type"] for event in events]


def test_a_client_continues_behind_each_fact_without_loss_or_repetition(realm: Realm):
    async def scenario(client: Client) -> None:
        await client.run("cursors", "unlock('abc')")
        where = EventFilter.of(session_ids=["cursors"])
        async with aclosing(client.filtered_events(where)) as events:
            whole = await until_end(events)
        assert types(whole)[0].startswith("session.")
        for number, event in enumerate(whole[:-1], 1):
            async with aclosing(client.filtered_events(where, event.cursor)) as events:
                assert await until_end(events) == whole[number:]
        text = EventCursor.parse(whole[0].cursor.text)
        assert text == whole[0].cursor
        narrow = EventFilter.of(session_ids=["cursors"], terminal_only=True)
        with pytest.raises(Refused) as caught:
            await anext(client.filtered_events(narrow, whole[0].cursor))
        assert caught.value.code == "CURSOR_SCOPE_MISMATCH"

    realm.visit(scenario)


def test_sets_and_ends_select_what_they_say(realm: Realm):
    async def scenario(client: Client) -> None:
        await client.run("sets", "unlock('abc')")
        kinds = EventFilter.of(session_ids=["sets"], kinds=["tool_requested", LAST])
        async with aclosing(client.filtered_events(kinds)) as events:
            assert types(await until_end(events)) == ["tool.requested.v1", "turn.completed.v1"]
        ends = EventFilter.of(session_ids=["sets"], terminal_only=True)
        async with aclosing(client.filtered_events(ends)) as events:
            assert types(await until_end(events)) == ["tool.completed.v1", "turn.completed.v1"]
        envelopes = EventFilter.of(session_ids=["sets"], kinds=[LAST])
        bare = EventFilter(session_ids=envelopes.session_ids, kinds=envelopes.kinds)
        async with aclosing(client.filtered_events(bare)) as events:
            (event,) = await until_end(events)
        assert "result" not in event.fact
        assert event.key == "sets"

    realm.visit(scenario)


def test_facts_with_a_sensitive_value_are_of_their_class_and_others_say_none(realm: Realm):
    async def scenario(client: Client) -> None:
        await client.run("classed", "unlock('abc')")
        where = EventFilter.of(session_ids=["classed"])
        async with aclosing(client.filtered_events(where)) as events:
            found = [event.fact for event in await until_end(events)]
        claims = {fact["type"]: fact["privacy"] for fact in found if "privacy" in fact}
        assert claims == {"tool.requested.v1": "sensitive"}
        assert not any("retention" in fact for fact in found)

    realm.visit(scenario)


def test_every_fact_of_a_session_claims_its_class_and_so_does_what_is_read_of_it(realm: Realm):
    """Also in its next generation, and in a fork: the memory goes on there."""

    async def scenario(client: Client) -> None:
        with pytest.raises(CodedError, match="its facts are internal at least"):
            await client.create("raised", classes={"privacy": "public"})
        raised = {"privacy": "sensitive"}
        for _ in range(2):
            assert (await client.create("raised", classes=raised))["classes"] == raised
        with pytest.raises(CodedError, match="SESSION_IDENTITY_IN_USE"):
            await client.create("raised", classes={"privacy": "secret"})
        lower = {"privacy": "internal", "retention": "run_scoped"}
        changed = await client.ask("limits", "raised", {"classes": lower})
        assert changed["classes"] == {**raised, "retention": "run_scoped"}
        run = (await client.run("raised", "x = unlock('abc')\nx")).run_id
        end = (await _facts_of(client, "raised"))[-1]["seq"]
        await client.fork("raised", run, end, "raised-fork")
        for session, own in (("raised", True), ("raised-fork", False)):
            await client.destroy(session)
            running = asyncio.create_task(client.run(session, "unlock('ab') and spend(3)"))
            await client.decide(await _waiting(client, session), "approved", actor="ann")
            await running
            found = await _facts_of(client, session, 2 if own else 1)
            assert {fact.get("privacy") for fact in found} == {"sensitive"}, session
            assert {fact["generation"] for fact in found} == {1, 2}
            late = [fact for fact in found if fact["generation"] == 2]
            assert {fact.get("retention") for fact in late} == {"run_scoped"}
            assert "approval" in {fact["type"].partition(".")[0] for fact in late}
            assert own or found[0]["type"] == "sandbox.snapshot_restored.v1"
        result = await client.resolve_resource("raised", f"session://raised/runs/{run}/result")
        assert result.resolution.privacy is PrivacyClass.SENSITIVE
        with pytest.raises(CodedError, match="PERMISSION_DENIED: the content is sensitive"):
            await client.read_resource("raised", result)

    realm.visit(scenario, Role.OPERATOR)


async def _waiting(client: Client, session: str) -> ListedApproval:
    async with asyncio.timeout(60):
        while not (listed := await client.approvals(session)):
            await asyncio.sleep(0.01)
    return listed[0]


async def _facts_of(client: Client, session: str, runs: int = 1) -> list[dict[str, Any]]:
    """The facts of the session until so many runs are committed."""
    found: list[dict[str, Any]] = []
    async with aclosing(client.events(key=session)) as events:
        async for fact in events:
            found.append(fact)
            if sum(one["type"] == "session.run_committed.v1" for one in found) == runs:
                break
    return found


def test_the_blocking_client_has_the_same_facts(realm: Realm):
    with SyncClient(Client(realm.url_for(Role.CLIENT), realm=REALM)) as client:
        run = client.run("blocking-facts", "1").run_id
        where = EventFilter.of(run_ids=[run], kinds=[LAST])
        event = next(client.filtered_events(where))
        assert event.fact["run"] == run


def test_watch_selects_and_continues_by_its_cursor(realm: Realm):
    realm.visit(lambda client: _run(client, "watched"))
    selected = ("--session", "watched", "--kind", "tool.requested", "--kind", LAST)
    lines = _watched(realm, 2, *selected, "--from", "1")
    assert [line["fact"]["type"] for line in lines] == ["tool.requested.v1", "turn.completed.v1"]
    (again,) = _watched(realm, 1, *selected, "--cursor", lines[0]["cursor"])
    assert again == lines[1]
    foreign = realm.rookery("watch", "--terminal", "--cursor", lines[0]["cursor"])
    assert "CURSOR_SCOPE_MISMATCH" in foreign.err
    unknown = realm.rookery("watch", "--kind", "tool.complete")
    assert "tool.completed" in unknown.err


async def _run(client: Client, session: str) -> None:
    await client.run(session, "unlock('abc')")


def _watched(realm: Realm, count: int, *arguments: str) -> list[dict[str, Any]]:
    """The first lines that ``watch`` prints, as JSON."""

    async def watched() -> list[dict[str, Any]]:
        process = await realm.started("watch", *arguments, "--json")
        try:
            assert process.stdout is not None
            async with asyncio.timeout(60):
                return [json.loads(await process.stdout.readline()) for _ in range(count)]
        finally:
            process.kill()
            await process.communicate()

    return asyncio.run(watched())


def test_an_export_leaves_out_what_is_above_its_class_and_verifies(realm: Realm):
    realm.visit(lambda client: _run(client, "exported"))
    whole = realm.rookery("journal", "export", "whole.jsonl", "--session", "exported")
    assert whole.code == 0, whole.err
    arguments = ("--session", "exported", "--privacy-max", "internal")
    assert realm.rookery("journal", "export", "cut.jsonl", *arguments).code == 0
    texts = {name: (realm.folder / f"{name}.jsonl").read_text() for name in ("whole", "cut")}
    assert "tool.requested.v1" in texts["whole"]
    assert "tool.requested.v1" not in texts["cut"]
    assert "session.input_accepted.v1" in texts["cut"]
    for name in texts:
        verified = realm.rookery("journal", "verify", f"{name}.jsonl")
        assert verified.code == 0, verified
