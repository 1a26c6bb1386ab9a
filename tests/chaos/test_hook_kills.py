"""A node may die while hooks change a run. The long form: ``make chaos``."""

from __future__ import annotations

import asyncio
from itertools import takewhile
from pathlib import Path

import pytest

from rookery.bus import connect_sync
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.digest import digest_json
from tests.bus.deadlines import wait_until
from tests.chaos.hook_kills import faults, hooked_node, kill_at, replay_faults, resume_parked
from tests.hooks.failing_hooks import Book

CELLS = ("hook_invoked@8", "hook_staged@2")


@pytest.mark.parametrize("failpoint", CELLS)
def test_no_call_is_made_with_arguments_that_are_not_on_record_or_twice(
    server: EmbeddedServer, tmp_path: Path, failpoint: str
):
    kill = asyncio.run(kill_at(server, tmp_path, failpoint))
    assert faults(kill) == []
    assert kill.killed


def test_runs_that_hooks_have_changed_in_every_way_replay_equal_without_a_hook(
    server: EmbeddedServer, tmp_path: Path
):
    assert asyncio.run(replay_faults(server, tmp_path, 8)) == []


def test_a_changed_call_that_is_approved_on_another_node_is_made_once_with_what_was_approved(
    server: EmbeddedServer, tmp_path: Path
):
    realm, session = "approved-elsewhere", "change--approved"
    code = f"guarded_pay({session!r}, 560)"
    executed = {"args": [], "kwargs": {"session": session, "amount": 160}}
    with connect_sync(server.url_for(Role.OPERATOR, realm=realm), realm=realm) as client:
        with hooked_node(server, realm, tmp_path) as first:
            run = client.begin(session, code)
            (waiting,) = asyncio.run(wait_until(lambda: client.approvals(session)))
            assert "changed by hook cap: capped" in waiting.summary
            assert waiting.request_digest == digest_json(executed)
            assert waiting.summary.endswith("changed by hook hurry: within an hour")
            assert waiting.due_ms - waiting.requested_at_ms == 3_600_000
            before = client.events(key=session)
            facts = list(takewhile(lambda fact: fact["type"] != "approval.requested.v1", before))
            first.kill()
        with hooked_node(server, realm, tmp_path):
            client.decide(waiting, "approved", actor="ann")
            assert run.result().result == "PAID 160"
    (message,) = {fact["seq"] for fact in facts if fact["type"] == "tool.requested.v1"}
    hurried = {fact["seq"] for fact in facts if fact.get("hook_id") == "hurry"}
    assert hurried == {message}, "the terms are in the message that the request needs anyway"
    lines = Book(tmp_path).lines()
    assert [line for line in lines if line[0] == "pay"] == [["pay", session, "160"]]
    assert [line for line in lines if line[0] == "cap"] == [["cap", session, "560"]], "asked once"


def test_runs_that_a_dead_guard_has_parked_end_after_hooks_resume_and_pay_once(
    server: EmbeddedServer, tmp_path: Path
):
    resumed = asyncio.run(resume_parked(server, tmp_path, 20))
    assert (resumed.results, resumed.paid) == ({"paid 5": 20}, 20)
