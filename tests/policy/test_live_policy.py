"""A node with a policy: what programs may call, what approvers are asked, and what they may say."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rookery.bus import connect_sync
from rookery.bus.client.sync import SyncClient
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.ids import decode_typed_text
from rookery.schemas.run import Language
from rookery.schemas.seed.lifecycle import EffectResult, RunLifecycleRecord
from rookery.schemas.seed.records import JournalRecord, JournalRecordKind
from tests.execution.realm_fixture import Serving
from tests.nodes import NodeProcess, access_to, node_on, rookery_here

HERE = str(Path(__file__).parents[2])
NUMBERS = count(1)
TRY = """
def attempt(call):
    try:
        return call()
    except Exception as error:
        return f"{error.code}: {error}"
"""
OF_A_PROGRAM = (
    JournalRecordKind.MESSAGE,
    JournalRecordKind.RUN,
    JournalRecordKind.TURN,
    JournalRecordKind.EFFECT_INTENT,
    JournalRecordKind.EFFECT_RESULT,
    JournalRecordKind.APPROVAL,
)
POLICY = """
[policy]
default = "deny"
[[policy.rules]]
permission = "Contacts"
decision = "allow"
[[policy.rules]]
permission = "Network"
decision = "allow"
[[policy.rules]]
source = "local/remember"
permission = "MemoryWrite"
decision = "ask"
[policy.execution]
"local/wipe" = "deny"
[policy.network]
local = ["api.example.com"]
"""


@pytest.fixture(scope="module")
def serving(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder, realm = tmp_path_factory.mktemp("policy"), "policy"
    (folder / "policy.toml").write_text(POLICY)
    flags = ("--driver", "sandbox", "--tools", "tests.policy.policy_tools:registry")
    config = ("--config", str(folder / "policy.toml"))
    with node_on(server, realm, folder, *flags, *config, PYTHONPATH=HERE) as node:
        yield Serving(server, node, realm, folder)


@pytest.fixture
def client(serving: Serving) -> Iterator[SyncClient]:
    with connect_sync(serving.url_for(Role.OPERATOR), realm=serving.realm) as opened:
        yield opened


@pytest.fixture
def session() -> str:
    return f"policy-{next(NUMBERS)}"


def tried(client: SyncClient, session: str, call: str) -> Any:
    answer = client.run(session, f"{TRY}attempt(lambda: {call})")
    assert answer.error is None, answer
    return answer.result


def facts(client: SyncClient, session: str, kind: str) -> list[dict[str, Any]]:
    """The session's facts of a type, up to the end of its last run."""
    last, found = client.run(session, "0").run_id, list[dict[str, Any]]()
    for fact in client.events(key=session):
        if fact.get("run") == last:
            return found
        if fact["type"] == kind:
            found.append(fact)
    raise AssertionError("the feed has no end")


def approval(client: SyncClient, session: str) -> Any:
    """The pending approval, as soon as there is one."""
    for fact in client.events(family="approval", key=session):
        if fact["type"] == "approval.requested.v1":
            return client.approvals(session)[0]
    raise AssertionError("the feed has no end")


def test_each_call_is_allowed_or_denied_by_what_its_tool_declares(client: SyncClient, session: str):
    assert tried(client, session, "look_up('ann')") == "ann@example.com"
    assert tried(client, session, "add(1, 2)") == 3
    denied = tried(client, session, "wipe()")
    assert denied.startswith("PERMISSION_DENIED"), denied
    assert "sandbox.host_denied" in denied
    assert tried(client, session, "post('https://api.example.com/v1', 'x')").startswith("1 to")
    assert "network.host_denied" in tried(client, session, "post('https://evil.net', 'x')")
    (of_wipe, of_post) = facts(client, session, "tool.refused.v1")
    assert of_wipe["status"] == "denied"
    assert of_wipe["policy"]["decision"]["Deny"]["reason"]["code"] == "sandbox.host_denied"
    assert of_post["policy"]["stage"] == "PreTool"


def test_a_question_of_the_policy_is_an_approval_of_exactly_this_call(
    client: SyncClient, session: str
):
    run = client.submit(session, f"{TRY}attempt(lambda: remember('x'))")
    asked = approval(client, session)
    assert asked.tool == "remember"
    client.decide(asked, "approved", actor="ann")
    assert run.result(timeout_s=90).result == "x"
    (requested,) = facts(client, session, "tool.requested.v1")
    assert requested["approval"] == "manual"
    assert "Ask" in requested["policy"]["decision"]


def test_a_hook_of_approvals_judges_what_the_policy_asks_about(client: SyncClient, session: str):
    denied = tried(client, session, "remember('forbidden')")
    assert "hook.forbidden" in denied, denied
    assert not facts(client, session, "approval.requested.v1")


def test_an_approver_may_decide_only_what_the_tool_allows(client: SyncClient, session: str):
    run = client.submit(session, f"{TRY}attempt(lambda: pay(5))")
    asked = approval(client, session)
    receipt = client.decide(asked, "approved_for_session", actor="ann")
    assert receipt.reason_code == "approval.decision_not_allowed"
    assert "decision_not_allowed" in run.result(timeout_s=90).result
    (requested,) = facts(client, session, "approval.requested.v1")
    request = requested["record"]["payload"]["record"]["request"]
    assert request["risk_class"] == "Critical"
    assert request["allowed_decisions"] == ["Approved", "Denied"]
    started = facts(client, session, "turn.started.v1")[0]
    assert request["runtime_package_fingerprint"] == started["offer"]["package_fingerprint"]


@pytest.mark.parametrize("language", list(Language))
def test_a_program_can_read_what_holds_for_its_run(
    client: SyncClient, session: str, language: Language
):
    answer = client.run(
        session,
        "current_policy()['decisions']"
        if language is Language.PYTHON
        else "current_policy().decisions",
        language=language,
    )
    assert answer.result == {"remember": "ask", "wipe": "deny"}


def test_a_run_is_given_as_the_contracts_records_without_a_hole_and_without_a_value(
    serving: Serving, client: SyncClient, session: str
):
    """An approved call, a refused one, and one that reads."""
    code = f"{TRY}[look_up('canary-17'), attempt(wipe), attempt(lambda: pay(417))]"
    run = client.submit(session, code)
    client.decide(approval(client, session), "approved", actor="ann")
    done = run.result(timeout_s=90)
    where = access_to(serving.server, serving.realm)
    printed = rookery_here(serving.folder, "runs", "records", done.run_id, *where)
    records = [
        msgspec.json.decode(line, type=JournalRecord, dec_hook=decode_typed_text)
        for line in printed.out.splitlines()
    ]
    assert [one.journal_seq for one in records] == [*range(1, len(records) + 1)], printed
    assert {one.record_kind for one in records} == set(OF_A_PROGRAM)
    for one in records:
        keys = {entry.key.as_str(): entry.value.as_str() for entry in one.correlation_keys}
        assert keys["Rookery-Correlation"] == done.run_id
        assert one.event_index.correlation_keys == one.correlation_keys
    statuses = [
        one.payload.terminal_status for one in records if isinstance(one.payload, EffectResult)
    ]
    assert statuses.count("completed") == 2
    assert statuses.count("denied_before_execution") == 1
    assert isinstance(records[-1].payload, RunLifecycleRecord)
    assert records[-1].payload.status == "completed"
    assert not any(word in printed.out for word in ("canary-17", "417"))
    exported = rookery_here(
        serving.folder, "journal", "export", "--records", "--session", session, *where
    )
    assert exported.out == printed.out


def test_the_policy_is_shown_and_explained_by_the_command_line(serving: Serving):
    where = access_to(serving.server, serving.realm)
    shown = rookery_here(serving.folder, "policy", "show", *where)
    assert "any other permission" in shown.out, shown
    assert "local/remember" in shown.out
    evil = '{"url": "https://evil.net", "text": ""}'
    explained = rookery_here(serving.folder, "policy", "explain", "post", "--args", evil, *where)
    assert "network.host_denied" in explained.out, explained
    assert "post: deny" in explained.out
    unknown = rookery_here(serving.folder, "policy", "explain", "nothing", *where)
    assert "UNKNOWN_TOOL" in unknown.err, unknown


def test_a_run_keeps_the_policy_of_its_start_on_a_node_that_has_another(
    server: EmbeddedServer, tmp_path: Path
):
    """Between the two nodes, its call waits for an approval."""
    realm, key = "kept", "kept"
    flags = ("--driver", "sandbox", "--tools", "tests.policy.policy_tools:registry")
    config, where = tmp_path / "policy.toml", ("--config", str(tmp_path / "policy.toml"))
    code = f"{TRY}[remember('x'), look_up('ann'), attempt(wipe)]"

    def node() -> NodeProcess:
        return node_on(server, realm, tmp_path, *flags, *where, PYTHONPATH=HERE)

    with connect_sync(server.url_for(Role.OPERATOR, realm=realm), realm=realm) as client:
        config.write_text(POLICY)
        with node():
            run = client.submit(key, code)
            asked = approval(client, key)
        config.write_text(
            '[policy]\ndefault = "deny"\nundeclared = "deny"\n[[policy.rules]]\n'
            'permission = "MemoryWrite"\ndecision = "allow"\n'
        )
        with node():
            client.decide(asked, "approved", actor="ann")
            remembered, found, wiped = run.result(timeout_s=60).result
            assert (remembered, found) == ("x", "ann@example.com")
            assert "sandbox.host_denied" in wiped, "as the first policy says"
            assert "permission.undeclared" in tried(client, "new", "wipe()")
            assert "permission.default_deny" in tried(client, "new", "look_up('ann')")
