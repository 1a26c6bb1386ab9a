"""Hooks on a real node: what is executed is what is on record, and a replay invokes none.

``hook_tools`` writes each execution and each invocation to a file, from outside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rookery.bus import connect_sync
from rookery.bus.client.sync import SyncClient
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.digest import digest_json
from rookery.schemas.run import RunStatus
from tests.bus.deadlines import wait_until
from tests.nodes import node_on

HERE = str(Path(__file__).parents[2])
NUMBERS = count(1)
TRY = """
def attempt(call):
    try:
        return call()
    except Exception as error:
        return f"{error.code}: {error}"
"""
CHANGE = ["hook.response_decided", "hook.mutation_intended", "hook.mutation_resulted"]


class HookedRealm:
    """A realm whose node has tools, hooks and a book of what they did."""

    def __init__(self, client: SyncClient, book: Path) -> None:
        self.client, self._book, self._read = client, book, 0
        self.session = ""

    def book(self) -> list[str]:
        """The lines since the last reading."""
        lines = self._book.read_text(encoding="utf-8").splitlines() if self._book.exists() else []
        new, self._read = lines[self._read :], len(lines)
        return new

    def tried(self, call: str) -> Any:
        """The value of the call, or its error."""
        self.session = f"hooks-{next(NUMBERS)}"
        self.book()
        answer = self.client.run(self.session, f"{TRY}attempt(lambda: {call})")
        assert answer.error is None, answer
        return answer.result

    def facts(self) -> list[dict[str, Any]]:
        """The session's facts of turns, hooks and calls."""
        last, found = self.client.run(self.session, "0").run_id, list[dict[str, Any]]()
        for fact in self.client.events(key=self.session):
            if fact.get("run") == last:
                return found
            found.append(fact)
        raise AssertionError("the feed has no end")

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [fact for fact in self.facts() if fact["type"] == f"{kind}.v1"]


@contextmanager
def hooked_realm(
    server: EmbeddedServer, folder: Path, registry: str, realm: str
) -> Iterator[HookedRealm]:
    book = folder / "book.txt"
    flags = ("--driver", "sandbox", "--tools", f"tests.hooks.hook_tools:{registry}")
    with (
        node_on(server, realm, folder, *flags, PYTHONPATH=HERE, HOOKS_BOOK=str(book)),
        connect_sync(server.url_for(Role.OPERATOR, realm=realm), realm=realm) as client,
    ):
        yield HookedRealm(client, book)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("hooks") / "store", admin=True) as running:
        yield running


@pytest.fixture(scope="module")
def realm(
    server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HookedRealm]:
    with hooked_realm(server, tmp_path_factory.mktemp("node"), "registry", "hooked") as opened:
        yield opened


# --- what responses do ----------------------------------------------------------------------------


def test_a_changed_call_is_executed_as_it_is_on_record(realm: HookedRealm):
    assert realm.tried("pay('bob', 500)") == "paid 100 to bob"
    assert realm.book() == ["cap 500", "judge 100", "paid 100 bob"]
    facts = realm.facts()
    kinds = [fact["type"].removesuffix(".v1") for fact in facts]
    assert kinds[kinds.index(CHANGE[0]) :][:3] == CHANGE
    (requested,) = realm.of_kind("tool.requested")
    assert requested["arguments"] == {"args": [], "kwargs": {"to": "bob", "amount": 100}}
    program = {"args": ["bob", 500], "kwargs": {}}
    assert requested["request_digest"] == digest_json(program)
    assert requested["executed_digest"] == digest_json(requested["arguments"])
    assert requested["changed_by"] == "changed by hook cap-payments: amount capped at 100"
    (batch,) = realm.of_kind("turn.tool_calls_returned")
    assert batch["calls"][0]["arguments"] == program


def test_the_three_facts_are_in_the_message_that_requests_the_call(realm: HookedRealm):
    realm.tried("pay('bob', 500)")
    facts = realm.facts()
    message = {fact["seq"] for fact in facts if fact["type"] == "tool.requested.v1"}
    assert {fact["seq"] for fact in facts if fact["type"].startswith("hook.")} == message
    assert {fact["seq"] for fact in facts if fact["type"] == "tool.intent_recorded.v1"} == message


def test_a_call_that_no_hook_changes_leaves_no_fact_of_it(realm: HookedRealm):
    assert realm.tried("look('plain')") == "plain"
    (requested,) = realm.of_kind("tool.requested")
    assert "executed_digest" not in requested
    assert not [fact for fact in realm.facts() if fact["type"].startswith("hook.")]


def test_a_denied_call_is_not_executed_and_the_program_can_catch_it(realm: HookedRealm):
    said = realm.tried("pay('eve', 5)")
    assert said.startswith("PERMISSION_DENIED: ")
    assert "eve gets nothing (hook.recipient, by hook judge-payments)" in said
    assert realm.book() == ["cap 5", "judge 5"]
    (refused,) = realm.of_kind("tool.refused")
    assert (refused["status"], refused["error"]["code"]) == ("denied", "PERMISSION_DENIED")
    (decided,) = realm.of_kind("hook.response_decided")
    assert decided["record"]["payload"]["payload"]["response_class"] == "deny"


def test_a_rule_denies_without_any_function(realm: HookedRealm):
    assert "(hook.secret, by hook no-secrets)" in realm.tried("look('secret plan')")
    assert realm.tried("look('plan')") == "plan"


def test_a_change_that_the_tool_does_not_take_refuses_the_call(realm: HookedRealm):
    said = realm.tried("pay('bob', 7)")
    assert said.startswith("PERMISSION_DENIED: ")
    assert "the response of hook cap-payments was refused" in said
    assert realm.book() == ["cap 7"]
    (rejected,) = realm.of_kind("hook.response_rejected")
    assert rejected["record"]["payload"]["payload"]["decision"] == "rejected_policy"


def test_an_audited_hook_notes_what_it_would_have_done(realm: HookedRealm):
    realm.tried("pay('bob', 5)")
    (noted,) = realm.of_kind("hook.noted")
    assert (noted["mode"], noted["would"]) == ("audit", "deny: would stop this payment")
    assert realm.book()[-1] == "paid 5 bob"


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("error", "the guard is broken"),
        ("timeout", "hook timed out before guarded lifecycle transition"),
        ("garbage", "the hook returned dict"),
        ("stop_run", "its answer request_approval is rejected mutation right"),
    ],
)
def test_a_hook_that_fails_refuses_the_call(realm: HookedRealm, kind: str, text: str):
    said = realm.tried(f"fragile('{kind}')")
    assert said.startswith("PERMISSION_DENIED: ")
    assert f"hook fragile-guard failed: {text}" in said.replace("HOOK_ANSWER_INVALID: ", "")
    (noted,) = realm.of_kind("hook.noted")
    assert (noted["status"], noted["refuses"]) == ("failed_closed", True)
    assert not realm.of_kind("tool.requested")


@pytest.mark.parametrize(
    ("value", "status", "text"),
    [
        ("open error", "failed_open", "the watcher is broken"),
        ("late", "timed_out_fail_open", "it took longer than its time limit"),
        ("open deny", "rejected_point_matrix", "its answer deny is rejected point matrix"),
    ],
)
def test_a_hook_that_may_fail_open_leaves_a_note_and_the_call_as_it_is(
    realm: HookedRealm, value: str, status: str, text: str
):
    assert realm.tried(f"look('{value}')") == value
    (noted,) = realm.of_kind("hook.noted")
    assert (noted["status"], noted["error"]) == (status, text)


def test_a_hook_whose_failure_fails_the_run_ends_it(realm: HookedRealm):
    realm.session = f"hooks-{next(NUMBERS)}"
    answer = realm.client.run(realm.session, f"{TRY}attempt(lambda: fragile('fatal'))")
    assert answer.status is RunStatus.RUNTIME_ERROR
    assert answer.error is not None
    assert answer.error.code == "HOOK_FAILED"
    assert "hook fatal-guard failed: the guard is broken for good" in answer.error.message
    assert realm.of_kind("hook.noted")
    assert not realm.of_kind("tool.requested")
    (failed,) = [one for one in realm.of_kind("turn.failed") if one["run"] == answer.run_id]
    assert failed["cause_kind"] == "hook_failure"
    assert realm.client.run(realm.session, "1 + 1").result == 2


# --- results --------------------------------------------------------------------------------------


def test_a_rewritten_result_is_what_the_program_gets_and_the_record_has_the_original(
    realm: HookedRealm,
):
    assert realm.tried("look('card 1234')") == "card ****"
    (completed,) = realm.of_kind("tool.completed")
    assert completed["value"] == "card 1234"
    (decided,) = realm.of_kind("hook.response_decided")
    assert (decided["point"], decided["change"]["payload"]["result"]) == (
        "after_tool_call",
        "card ****",
    )
    assert realm.tried("look('plain')") == "plain"


def test_a_hook_of_a_result_that_fails_refuses_it(realm: HookedRealm):
    said = realm.tried("look('card broken')")
    assert said.endswith("PERMISSION_DENIED: hook redact failed: the redactor is broken")
    (completed,) = realm.of_kind("tool.completed")
    assert completed["value"] == "card broken"


def test_a_replay_has_rewritten_results_and_invokes_no_hook(realm: HookedRealm):
    realm.session = f"hooks-{next(NUMBERS)}"
    values = "('card 1', 'plain', 'card broken')"
    answer = realm.client.run(realm.session, f"{TRY}[attempt(lambda: look(v)) for v in {values}]")
    assert answer.result[:2] == ["card ****", "plain"]
    realm.book()

    def replayed() -> Any:
        report = realm.client.replay(realm.session, answer.run_id)
        return report if report["state"] != "replaying" else None

    assert asyncio.run(wait_until(replayed))["state"] == "equal"
    assert realm.book() == []


# --- approvals ------------------------------------------------------------------------------------


def test_an_approval_is_bound_to_what_a_hook_made_of_the_call(realm: HookedRealm):
    realm.session, _ = f"hooks-{next(NUMBERS)}", realm.book()
    run = realm.client.begin(realm.session, "pay('ann', 500)")
    (waiting,) = asyncio.run(wait_until(lambda: realm.client.approvals(realm.session)))
    assert "changed by hook cap-payments: amount capped at 100" in waiting.summary
    executed = {"args": [], "kwargs": {"to": "ann", "amount": 100}}
    assert waiting.request_digest == digest_json(executed)
    realm.client.decide(waiting, "approved", actor="ann")
    assert run.result().result == "paid 100 to ann"
    assert realm.book() == ["cap 500", "judge 100", "paid 100 ann"], "no hook is invoked again"


# --- replay ---------------------------------------------------------------------------------------


def test_a_replay_is_equal_and_invokes_no_hook(realm: HookedRealm):
    realm.session, _ = f"hooks-{next(NUMBERS)}", realm.book()
    calls = "[attempt(lambda: pay(to, 500)) for to in ('bob', 'eve')]"
    answer = realm.client.run(realm.session, TRY + calls)
    assert len(realm.book()) == 5

    def replayed() -> Any:
        report = realm.client.replay(realm.session, answer.run_id)
        return report if report["state"] != "replaying" else None

    assert asyncio.run(wait_until(replayed))["state"] == "equal"
    assert realm.book() == []


def test_a_fork_invokes_the_hooks_of_calls_after_the_fork_only(realm: HookedRealm):
    realm.session = f"hooks-{next(NUMBERS)}"
    answer = realm.client.run(realm.session, "[pay('bob', n) for n in (500, 600)]")
    ends = [fact for fact in realm.of_kind("tool.completed") if fact["run"] == answer.run_id]
    realm.book()
    into = f"{realm.session}-fork"
    run_id = realm.client.fork(realm.session, answer.run_id, ends[0]["seq"], into)["run_id"]
    realm.client.run(into, "0")  # Waits for its turn behind the fork.
    assert realm.client.result(into, run_id).result == ["paid 100 to bob"] * 2
    assert realm.book() == ["cap 600", "judge 100", "paid 100 bob"]
