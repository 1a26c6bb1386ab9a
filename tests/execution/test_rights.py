"""Rights of runs: every way to widen them is refused, with the call that is allowed beside it.

The facts say which calls a run requested, was refused, and made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rookery.bus import connect_sync
from rookery.bus.client.sync import SyncClient
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.errors import Refused
from rookery.schemas.protection.rights import Rights, ToolRight
from rookery.schemas.run import SideEffect
from tests.execution.programs import ended
from tests.execution.realm_fixture import Serving
from tests.nodes import node_on

HERE = str(Path(__file__).parents[2])
NUMBERS = count(1)
ECHO = Rights(tools=(ToolRight(tool="echo"),))
NOT_ECHO = Rights(without=(ToolRight(tool="echo"),))
TRY = """
def attempt(call):
    try:
        return call()
    except Exception as error:
        return error.code
"""


@pytest.fixture(scope="module")
def driving(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A realm whose node executes programs and asks approvers."""
    folder, realm = tmp_path_factory.mktemp("rights"), "rights"
    flags = ("--driver", "sandbox", "--tools", "tests.execution.tools:registry")
    with node_on(server, realm, folder, *flags, PYTHONPATH=HERE) as node:
        yield Serving(server, node, realm, folder)


@pytest.fixture
def client(driving: Serving) -> Iterator[SyncClient]:
    with connect_sync(driving.url_for(Role.OPERATOR), realm=driving.realm) as opened:
        yield opened


@pytest.fixture
def session() -> str:
    return f"rights-{next(NUMBERS)}"


def tried(client: SyncClient, session: str, call: str = "echo(1)", **options: Any) -> Any:
    """The value of the call, or the code of its error."""
    answer = client.run(session, f"{TRY}attempt(lambda: {call})", **options)
    assert answer.error is None, answer
    return answer.result


def facts(client: SyncClient, session: str) -> list[dict[str, Any]]:
    """The session's facts of turns and calls up to the end of its last run."""
    last, found = client.run(session, "0").run_id, list[dict[str, Any]]()
    for fact in client.events(key=session):
        if fact.get("run") == last:
            return found
        found.append(fact)
    raise AssertionError("the feed has no end")


def kinds_of_calls(client: SyncClient, session: str) -> list[str]:
    return [fact["type"] for fact in facts(client, session) if fact["type"].startswith("tool.")]


# --- what a request and a session may say ---------------------------------------------------------


@pytest.mark.parametrize(
    ("rights", "refused", "allowed"),
    [
        (ECHO, "blob(2)", "echo(1)"),
        (Rights(tools=()), "echo(1)", ""),
        (NOT_ECHO, "echo(1)", "blob(2)"),
        (Rights(tools=(ToolRight(surface="other"),)), "echo(1)", ""),
        (Rights(tools=(ToolRight(surface="local"),), calls=0), "echo(1)", ""),
        (Rights(tools=(ToolRight(tool="echo", when="args.value <= 50"),)), "echo(51)", "echo(1)"),
        (Rights(tools=(ToolRight(tool="echo", when="args.value <= 50"),)), "echo('x')", "echo(1)"),
        (Rights(without=(ToolRight(tool="echo", when="args.value > 50"),)), "echo('x')", "echo(1)"),
        (Rights(side_effect=SideEffect.READ), "deliver_now(0)", "echo(1)"),
        (Rights(until_ms=1), "echo(1)", ""),
    ],
    ids=str,
)
def test_a_run_may_call_what_its_request_covers_and_nothing_else(
    client: SyncClient, session: str, rights: Rights, refused: str, allowed: str
):
    assert tried(client, session, refused, rights=rights) == "RIGHT_MISSING"
    assert kinds_of_calls(client, session) == ["tool.refused.v1"]
    assert tried(client, session, refused) != "RIGHT_MISSING"
    if allowed:
        assert tried(client, session, allowed, rights=rights) != "RIGHT_MISSING"


def test_the_fact_of_a_refused_call_names_the_right_and_the_tool(client: SyncClient, session: str):
    tried(client, session, "blob(2)", rights=ECHO)
    (refused,) = [one for one in facts(client, session) if one["type"] == "tool.refused.v1"]
    assert refused["error"]["code"] == "RIGHT_MISSING"
    assert "no right covers this call of blob" in refused["error"]["message"]


def test_a_budget_counts_the_calls_of_each_run(client: SyncClient, session: str):
    client.create(session, rights=Rights(calls=2))
    calls = "[attempt(lambda: echo(n)) for n in range(3)]"
    for _ in range(2):
        assert client.run(session, TRY + calls).result == [0, 1, "RIGHT_MISSING"]


def test_list_tools_shows_what_is_left_and_hidden_tools_are_refused_by_code(
    client: SyncClient, session: str
):
    names = "[one['name'] for one in list_tools() if one['name'] in ('blob', 'echo')]"
    assert client.run(session, names, rights=ECHO).result == ["echo"]
    assert client.run(session, names).result == ["blob", "echo"]
    client.revoke_rights(session, NOT_ECHO)
    assert client.run(session, names).result == ["blob"]


def test_the_rights_of_a_session_and_of_a_request_are_both_needed(client: SyncClient, session: str):
    client.create(session, rights=Rights(tools=(ToolRight(tool="echo"), ToolRight(tool="blob"))))
    assert tried(client, session, "echo(1)", rights=NOT_ECHO) == "RIGHT_MISSING"
    assert tried(client, session, "blob(2)", rights=NOT_ECHO) == "xx"
    assert tried(
        client, session, "deliver_now(0)", rights=Rights(side_effect=SideEffect.WRITE)
    ) == ("RIGHT_MISSING")


def test_a_run_without_rights_leaves_the_facts_it_left_before(client: SyncClient, session: str):
    assert tried(client, session) == 1
    for fact in facts(client, session):
        assert "grants" not in fact
        assert "grants" not in fact.get("request", {})
        assert all("hidden" not in one for one in fact.get("offer", {}).get("tools", ()))


# --- rights only narrow ---------------------------------------------------------------------------


def fork_it(client: SyncClient, source: str, into: str) -> None:
    run_id = client.run(source, "kept = 1").run_id
    end = next(
        fact
        for fact in client.events(key=source, run=run_id)
        if fact["type"] == "turn.completed.v1"
    )
    client.fork(source, run_id, end["seq"], into)


def restore_it(client: SyncClient, source: str, into: str) -> None:
    client.run(source, "kept = 1")
    client.restore(into, client.snapshot(source)["snapshot_id"])


def restore_over_another(client: SyncClient, source: str, into: str) -> None:
    client.run(into, "other = 1")
    client.run(source, "kept = 1")
    client.restore(into, client.snapshot(source)["snapshot_id"], replace=True)


def begin_it_anew(client: SyncClient, source: str, into: str) -> None:
    """The same session, destroyed and created again: ``into`` is restored from the old memory."""
    client.run(source, "kept = 1")
    snapshot = client.snapshot(source)["snapshot_id"]
    client.destroy(source)
    client.run(source, "fresh = 1")
    client.restore(into, snapshot)


WAYS = [fork_it, restore_it, restore_over_another, begin_it_anew]


@pytest.mark.parametrize("derive", WAYS)
def test_a_session_with_the_memory_of_another_has_its_rights(
    client: SyncClient, session: str, derive: Callable[[SyncClient, str, str], None]
):
    client.create(session, rights=NOT_ECHO)
    derive(client, session, f"{session}-child")
    assert tried(client, f"{session}-child") == "RIGHT_MISSING"
    assert tried(client, f"{session}-child", "blob(kept)") == "x"


@pytest.mark.parametrize("derive", WAYS)
def test_a_revocation_reaches_every_descendant_those_before_and_those_after_it(
    client: SyncClient, session: str, derive: Callable[[SyncClient, str, str], None]
):
    child, grandchild, late = (f"{session}-{name}" for name in ("child", "grand", "late"))
    derive(client, session, child)
    restore_it(client, child, grandchild)
    assert [tried(client, one) for one in (session, child, grandchild)] == [1, 1, 1]
    client.revoke_rights(session, NOT_ECHO, reason="lost")
    derive(client, session, late)
    for one in (session, child, grandchild, late):
        assert tried(client, one) == "RIGHT_MISSING"
        assert tried(client, one, "blob(2)") == "xx"
    assert tried(client, f"{session}-stranger") == 1


def test_a_session_that_is_destroyed_and_begun_again_has_its_rights(
    client: SyncClient, session: str
):
    client.create(session, rights=NOT_ECHO)
    client.run(session, "1")
    client.destroy(session)
    assert tried(client, session) == "RIGHT_MISSING"
    assert tried(client, session, "blob(2)") == "xx"


THREE = f"{TRY}[attempt(lambda: echo(n)) for n in range(3)]"
TEN = Rights(session_calls=10)


def test_a_budget_of_a_session_counts_the_calls_of_all_its_runs(client: SyncClient, session: str):
    client.create(session, rights=Rights(session_calls=5))
    assert client.run(session, THREE).result == [0, 1, 2]
    assert client.run(session, THREE).result == [0, 1, "RIGHT_MISSING"]
    client.destroy(session)
    assert client.run(session, THREE).result == ["RIGHT_MISSING"] * 3
    client.narrow_rights(session, Rights(session_calls=50))
    assert tried(client, session) == "RIGHT_MISSING"


def test_refused_calls_use_no_budget_and_a_later_budget_counts_the_calls_before_it(
    client: SyncClient, session: str
):
    assert client.run(session, THREE, rights=Rights(calls=2)).result == [0, 1, "RIGHT_MISSING"]
    client.narrow_rights(session, Rights(session_calls=4))
    assert client.run(session, THREE).result == [0, 1, "RIGHT_MISSING"]


@pytest.mark.parametrize("derive", WAYS)
def test_a_session_with_the_memory_of_another_begins_with_the_budget_that_has_left(
    client: SyncClient, session: str, derive: Callable[[SyncClient, str, str], None]
):
    client.create(session, rights=TEN)
    made = [client.run(session, THREE).result for _ in range(2)]
    assert made == [[0, 1, 2]] * 2
    derive(client, session, f"{session}-child")
    made = [client.run(f"{session}-child", THREE).result for _ in range(2)]
    assert made == [[0, 1, 2], [0, "RIGHT_MISSING", "RIGHT_MISSING"]]
    assert client.run(session, THREE).result == [0, 1, 2]


def test_a_session_restored_from_itself_has_the_budget_it_had(client: SyncClient, session: str):
    client.create(session, rights=TEN)
    assert client.run(session, THREE).result == [0, 1, 2]
    client.restore(session, client.snapshot(session)["snapshot_id"], replace=True)
    made = [client.run(session, THREE).result for _ in range(3)]
    assert made == [[0, 1, 2], [0, 1, 2], [0, "RIGHT_MISSING", "RIGHT_MISSING"]]


def test_a_fork_of_a_run_uses_no_budget_for_calls_that_are_answered_from_the_record(
    client: SyncClient, session: str
):
    client.create(session, rights=Rights(session_calls=4))
    source = client.run(session, f"{TRY}a = echo(1)\nb = attempt(lambda: echo(2))\n[a, b]")
    facts = ended(client, session, source.run_id)
    first = next(fact for fact in facts if fact["type"] == "tool.completed.v1")
    together = [fact for fact in facts if fact["seq"] == first["seq"]]
    position = f"{first['seq']}.{together.index(first) + 1}"
    client.fork(session, source.run_id, position, f"{session}-fork")
    assert client.run(f"{session}-fork", THREE).result == [0, "RIGHT_MISSING", "RIGHT_MISSING"]


def test_creating_a_session_again_cannot_change_its_rights(client: SyncClient, session: str):
    client.create(session, rights=NOT_ECHO)
    client.create(session, rights=NOT_ECHO)
    client.create(session)
    with pytest.raises(Refused, match="SESSION_IDENTITY_IN_USE"):
        client.create(session, rights=ECHO)
    client.narrow_rights(session, Rights(side_effect=SideEffect.READ))
    assert tried(client, session) == "RIGHT_MISSING"
    assert tried(client, session, "deliver_now(0)") == "RIGHT_MISSING"
    assert tried(client, session, "blob(2)") == "xx"


def test_a_fork_takes_the_rights_of_its_run_and_its_own(client: SyncClient, session: str):
    source = client.run(
        session, f"{TRY}a = echo(1)\nb = attempt(lambda: blob(2))\n[a, b]", rights=ECHO
    )
    assert source.result == [1, "RIGHT_MISSING"]
    began = next(
        fact
        for fact in client.events(key=session, run=source.run_id)
        if fact["type"] == "tool.completed.v1"
    )
    client.fork(session, source.run_id, began["seq"], f"{session}-same")
    client.fork(session, source.run_id, began["seq"], f"{session}-less", rights=Rights(tools=()))
    assert tried(client, f"{session}-same") == 1
    assert tried(client, f"{session}-same", "blob(2)") == "RIGHT_MISSING"
    assert tried(client, f"{session}-less") == "RIGHT_MISSING"


def test_a_replay_calls_nothing_and_repeats_the_refusals(client: SyncClient, session: str):
    run = client.run(
        session, f"{TRY}[attempt(lambda: echo(1)), attempt(lambda: blob(2))]", rights=ECHO
    )
    calls = kinds_of_calls(client, session)
    client.revoke_rights(session, Rights(tools=()))
    assert client.replay(session, run.run_id)["state"] == "equal"
    assert kinds_of_calls(client, session) == calls


# --- while a run is in progress -------------------------------------------------------------------


def test_a_parked_run_that_is_approved_after_a_revocation_is_refused(
    client: SyncClient, session: str
):
    for name, revoked, expected in (("a", False, "made"), ("b", True, "RIGHT_MISSING")):
        key = f"{session}-{name}"
        waiting = client.begin(key, f"{TRY}attempt(lambda: risky('made'))", through_parks=True)
        asked = wait_for_approval(client, key)
        if revoked:
            client.revoke_rights(key, Rights(without=(ToolRight(tool="risky"),)))
        client.decide(asked, "approved_for_session", actor="ann")
        assert waiting.result().result == expected


def test_an_approval_for_the_session_gives_no_right(client: SyncClient, session: str):
    waiting = client.begin(session, "risky('made')", through_parks=True)
    client.decide(wait_for_approval(client, session), "approved_for_session", actor="ann")
    assert waiting.result().result == "made"
    assert tried(client, session, "risky('made')") == "made"
    assert tried(client, session, "risky('made')", rights=ECHO) == "RIGHT_MISSING"
    assert len(client.approvals(session, ended=True)) == 1, "no approver was asked"


def wait_for_approval(client: SyncClient, session: str) -> Any:
    for fact in client.events(family="approval", key=session):
        if fact["type"] == "approval.requested.v1":
            break
    (asked,) = client.approvals(session)
    return asked


# --- entry points ---------------------------------------------------------------------------------

BAD = [
    ({"grants": {"tools": [{}]}}, "INVALID_ARGUMENT"),
    ({"grants": {"tools": [{"tool": "echo", "when": "1 +"}]}}, "RULE_INVALID"),
    ({"grants": {"colour": 1}}, "UNKNOWN_FIELD"),
    ({"grants": {"side_effect": "huge"}}, "INVALID_ARGUMENT"),
    ({"grants": {"calls": -1}}, "INVALID_ARGUMENT"),
    ({"grants": {"without": [{"tool": "t"}] * 65}}, "INVALID_ARGUMENT"),
]


@pytest.mark.parametrize("verb", ["run", "create", "limits", "revoke"])
@pytest.mark.parametrize(("body", "code"), BAD, ids=str)
def test_every_entry_point_refuses_bad_rights_with_a_code(
    client: SyncClient, session: str, verb: str, body: dict[str, Any], code: str
):
    if verb == "limits":
        client.create(session)
    with pytest.raises(Refused) as caught:
        client.ask(verb, session, body)
    assert caught.value.code == code
    assert code != "RULE_INVALID" or "the condition '1 +' of a right" in caught.value.message


def test_a_client_may_narrow_but_only_an_operator_may_revoke(driving: Serving, session: str):
    with connect_sync(driving.url_for(Role.CLIENT), realm=driving.realm) as client:
        client.create(session, rights=NOT_ECHO)
        with pytest.raises(Refused, match="NOT_PERMITTED"):
            client.revoke_rights(session, NOT_ECHO)


def test_the_command_line_sets_shows_and_revokes_rights(driving: Serving, session: str):
    def said_by_run(name: str, code: str, *options: str) -> str:
        return driving.rookery("run", "--session", name, "-e", code, *options).out

    assert "RIGHT_MISSING" in said_by_run(session, "echo(7)", "--tool", "blob")
    narrow, options = f"{session}-b", ("--allow", "echo: args.value < 5", "--calls", "3")
    made = driving.rookery("sessions", "create", narrow, *options)
    assert made.code == 0, made
    assert "RIGHT_MISSING" not in said_by_run(narrow, "echo(4)")
    assert "RIGHT_MISSING" in said_by_run(narrow, "echo(5)")
    assert driving.rookery("sessions", "revoke", narrow).code != 0
    revoked = driving.rookery("sessions", "revoke", narrow, "--all", "--reason", "lost")
    assert revoked.code == 0, revoked
    listed: Any = driving.rookery("sessions", "rights", narrow).json
    assert [one["source"] for one in listed["rights"]] == ["session", narrow]
    spelled = driving.rookery("sessions", "limits", narrow, "--side-effects", "external-system")
    assert spelled.json["error"]["code"] == "INVALID_ARGUMENT"
    assert "external_system" in spelled.json["error"]["hint"]
    spelled = driving.rookery("sessions", "limits", narrow, "--side-effects", "external_system")
    assert spelled.code == 0
    for arguments in (("revoke", "mistyped", "--all"), ("rights", "mistyped")):
        unknown = driving.rookery("sessions", *arguments)
        assert (unknown.code, unknown.json["error"]["code"]) == (4, "SESSION_NOT_FOUND")
    assert "RIGHT_MISSING" in said_by_run(narrow, "echo(4)")
