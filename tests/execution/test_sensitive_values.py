"""Sensitive values reach programs and tools, and nothing that is stored or shown.

Each test uses a canary of its own: a file that a tool reads, so that no program's text has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from time import sleep
from typing import Any

import pytest

from rookery.bus import connect_sync
from rookery.bus.client.sync import SyncClient
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.protection.rights import Rights, ToolRight
from tests.execution.canary_search import expect_hidden, shown, stored
from tests.execution.realm_fixture import Serving
from tests.nodes import ROOKERY, NotReady, access_to, node_on
from tests.tools.worker_processes import WorkerProcess

HERE = str(Path(__file__).parents[2])
REALM = "sensitive"
TRY = """
def attempt(call):
    try:
        return call()
    except Exception as error:
        return [error.code, str(error)]
"""


@pytest.fixture(scope="module")
def serving(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.getbasetemp() / "sensitive"  # The realm outlives this fixture.
    folder.mkdir(exist_ok=True)
    with node_of(server, folder) as node:
        yield Serving(server, node, REALM, folder)


def node_of(server: EmbeddedServer, folder: Path, realm: str = REALM, **variables: str) -> Any:
    flags = ("--driver", "sandbox", "--tools", "tests.execution.sensitive_tools:registry")
    return node_on(
        server,
        realm,
        folder,
        *flags,
        "--metrics-port",
        "0",
        PYTHONPATH=HERE,
        CANARIES=str(folder),
        ROOKERY_NODE_SEALING_KEY=str(folder / "sealing-key"),
        **variables,
    )


@pytest.fixture
def client(serving: Serving) -> Iterator[SyncClient]:
    with connect_sync(serving.url_for(Role.OPERATOR), realm=REALM) as opened:
        yield opened


@pytest.fixture
def canary(serving: Serving, request: pytest.FixtureRequest) -> str:
    text = f"canary-{token_hex(12)}"
    (serving.folder / session_of(request)).write_text(text)
    return text


@pytest.fixture
def session(request: pytest.FixtureRequest) -> str:
    return session_of(request)


def session_of(request: pytest.FixtureRequest) -> str:
    return request.node.name.removeprefix("test_").partition("[")[0][:40]


def value(client: SyncClient, session: str, code: str, **options: Any) -> Any:
    answer = client.run(session, TRY + code, **options)
    assert answer.error is None, answer
    return answer.result


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def result_of(client: SyncClient, session: str, run_id: str) -> Any:
    """The result of a run, once it has one."""
    for fact in client.events(key=session, run=run_id):
        if fact["type"] == "turn.completed.v1":
            return fact["result"]["result"]
    raise AssertionError("the feed has no end")


# --- canaries -------------------------------------------------------------------------------------


def test_the_search_finds_what_is_not_hidden(serving: Serving, client: SyncClient, session: str):
    """The honest control: the same search finds arguments and results without marks."""
    text = f"canary-{token_hex(12)}"
    value(client, session, f"attempt(lambda: refuse('{text}'))")
    with pytest.raises(AssertionError):
        expect_hidden(stored(serving), text)
    with pytest.raises(AssertionError):
        expect_hidden(shown(serving), text)


def test_no_store_list_log_or_export_has_a_canary(
    serving: Serving, client: SyncClient, session: str, canary: str
):
    code = f"""
key = secret('{session}')
large = secret('{session}', 4_000)
again = (await secret_soon('{session}'))['canary']
made = check(key, 'a') + check(key=again, text='b')
failed = attempt(lambda: crash(key))
wrong = attempt(lambda: small(key))
[len(large), made, failed[0], wrong[0]]
"""
    run = client.run(session, TRY + code)
    expected = digest(canary + "a") + digest(canary + "b")
    assert run.result == [4_000 * len(canary), expected, "TOOL_ERROR", "TYPE_ERROR"]
    client.snapshot(session)
    expect_hidden(stored(serving), canary)
    expect_hidden(shown(serving, run.run_id), canary)


def test_a_worker_gets_the_values_and_no_store_list_or_log_has_them(
    server: EmbeddedServer, tmp_path: Path
):
    """Its results, its arguments, and the exception of one of its tools."""
    realm, canary = "sensitive-workers", f"canary-{token_hex(12)}"
    (tmp_path / "a").write_text(canary)
    served = ("tests.execution.sensitive_tools:registry", "--surface", "safe", "--json")
    worker = WorkerProcess(
        tmp_path, ROOKERY, "tools", "serve", *served, *access_to(server, realm)
    ).launch()
    flags = ("--driver", "sandbox", "--workers", "safe", "--metrics-port", "0")
    code = "key = safe_secret('a')\n[safe_check(key, 'x'), attempt(lambda: safe_crash(key))[0]]"
    try:
        with (
            node_on(server, realm, tmp_path, *flags) as node,
            connect_sync(server.url_for(Role.OPERATOR, realm=realm), realm=realm) as client,
        ):
            worker.ready()
            run = client.run("s", TRY + code)
            assert run.result == [digest(canary + "x"), "TOOL_ERROR"]
            assert client.replay("s", run.run_id)["state"] == "equal"
            serving = Serving(server, node, realm, tmp_path)
            expect_hidden(stored(serving), canary)
            expect_hidden(shown(serving, run.run_id), canary)
            assert worker.stop() == 0
        assert "ValueError" in worker.log.read_text()
    finally:
        worker.close()


def test_facts_hold_digests_and_sealed_values(client: SyncClient, session: str, canary: str):
    value(client, session, f"key = secret('{session}')\ncheck(key, text='seen')")
    found: dict[str, dict[str, Any]] = {}
    for fact in client.events(key=session):
        found[f"{fact['type']} {fact.get('name', '')}"] = fact
        if fact["type"] == "turn.completed.v1":
            break
    arguments = found["tool.requested.v1 check"]["arguments"]
    assert arguments["kwargs"] == {"text": "seen"}, "only what is marked is hidden"
    sealed = arguments["args"][0]["sealed"]
    assert sealed["algorithm"] == "AES-256-GCM"
    assert len(sealed["digest"]) == 64


@pytest.mark.parametrize("way", ["replay", "fork", "restore"])
def test_a_replay_a_fork_and_a_rebuilt_session_get_the_values(
    serving: Serving, client: SyncClient, session: str, canary: str, way: str
):
    run = client.run(f"{session}-{way}", f"key = secret('{session}')\ncheck(key, 'a')")
    end = next(
        fact
        for fact in client.events(key=f"{session}-{way}", run=run.run_id)
        if fact["type"] == "tool.completed.v1"
    )
    into = f"{session}-{way}-into"
    if way == "replay":
        assert client.replay(f"{session}-{way}", run.run_id)["state"] == "equal"
    elif way == "fork":
        forked = client.fork(f"{session}-{way}", run.run_id, f"{end['seq']}", into)
        assert result_of(client, into, forked["run_id"]) == digest(canary + "a")
        twice = client.fork(into, forked["run_id"], 10**9, f"{into}-2")
        assert twice["run_id"] is None
        assert value(client, f"{into}-2", "check(key, 'a')") == digest(canary + "a")
    else:
        client.restore(into, client.snapshot(f"{session}-{way}")["snapshot_id"])
        assert value(client, into, "check(key, 'a')") == digest(canary + "a")
    expect_hidden(stored(serving), canary)


def test_an_approver_sees_that_a_value_is_hidden_and_its_digest(
    serving: Serving, client: SyncClient, session: str, canary: str
):
    waiting = client.begin(session, f"pay(secret('{session}'), 5)", through_parks=True)
    for fact in client.events(family="approval", key=session):
        if fact["type"] == "approval.requested.v1":
            break
    (asked,) = client.approvals(session)
    assert "hidden" in asked.summary
    assert "amount: number" in asked.summary
    detail: Any = serving.rookery("approvals", "show", asked.approval_id, "--arguments")
    assert detail.code == 0, detail
    assert '"hidden"' in detail.out
    expect_hidden(stored(serving) + detail.out.encode(), canary)
    client.decide(asked, "approved", actor="ann")
    assert waiting.result().result == digest(f"{canary}5")


def test_a_right_with_a_condition_reads_no_sensitive_argument(
    client: SyncClient, session: str, canary: str
):
    def tried(condition: str) -> Any:
        allowed = ToolRight(tool="check", when=condition)
        rights = Rights(tools=(allowed, ToolRight(tool="secret")))
        return value(
            client, session, f"attempt(lambda: check(secret('{session}'), 'a'))", rights=rights
        )

    assert tried('args.text == "a"') == digest(canary + "a")
    code, why = tried('args.key != "x"')
    assert (code, "key is sensitive, and no condition can read it" in why) == (
        "RIGHT_MISSING",
        True,
    )


# --- exceptions -----------------------------------------------------------------------------------


def test_only_the_text_of_a_tool_error_reaches_the_program(client: SyncClient, session: str):
    refused, crashed = (
        value(client, session, f"attempt(lambda: {name}('told'))")
        for name in ("refuse", "crash_openly")
    )
    assert refused[0] == "NO_ACCOUNT"
    assert "told" in refused[1]
    assert crashed[0] == "TOOL_ERROR"
    assert "told" not in crashed[1]


def test_the_log_has_the_traceback_under_the_id_that_runs_show_prints(
    serving: Serving, client: SyncClient, session: str
):
    run = client.run(session, "crash_openly('the reason')")
    assert run.error is not None
    failed = next(
        fact
        for fact in client.events(key=session, run=run.run_id)
        if fact["type"] == "tool.failed.v1"
    )
    assert failed["operation_id"] in run.error.message
    logs = "".join(path.read_text() for path in serving.folder.glob("*.log"))
    assert failed["operation_id"] in logs
    assert "ValueError: the reason" in logs
    assert failed["operation_id"] in serving.rookery("runs", "show", run.run_id).out


# --- keys -----------------------------------------------------------------------------------------


def test_the_key_file_is_readable_by_its_owner_only(serving: Serving):
    path = serving.folder / "sealing-key"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_run_waits_for_a_node_with_the_key_and_a_node_without_it_does_not_start(
    server: EmbeddedServer, tmp_path: Path
):
    realm, canary = "moved-keys", f"canary-{token_hex(12)}"
    (tmp_path / "a").write_text(canary)
    key, hidden = tmp_path / "sealing-key", tmp_path / "hidden-key"
    with (
        node_of(server, tmp_path, realm) as node,
        connect_sync(server.url_for(Role.OPERATOR, realm=realm), realm=realm) as client,
    ):
        waiting = client.begin("s", "k = secret('a')\npay(k, 5)", through_parks=True)
        for fact in client.events(family="approval", key="s"):
            if fact["type"] == "approval.requested.v1":
                break
        assert node.probes()[1]["secrets"]["ok"]
        key.rename(hidden)
        while (probe := node.probes())[1]["secrets"]["ok"]:
            sleep(0.1)
        assert probe[0] == 503
        assert "SEALING_KEY_MISSING" in str(probe[1]["secrets"]["detail"])
        node.stop()
        with pytest.raises(NotReady, match="SEALING_KEY_MISSING"), node_of(server, tmp_path, realm):
            pass
        assert not key.exists(), "no new key over the secrets of the realm"
        key.write_text(f"{'00' * 32}\n")
        key.chmod(0o600)
        with pytest.raises(NotReady, match="SEALING_KEY_MISSING"), node_of(server, tmp_path, realm):
            pass
        hidden.rename(key)
        with node_of(server, tmp_path, realm):
            (asked,) = client.approvals("s")
            client.decide(asked, "approved", actor="ann")
            assert waiting.result().result == digest(f"{canary}5")
