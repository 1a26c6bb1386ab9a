"""Default limits of a session: every entry point sets them, its runs have them, and snapshots keep
them.

The first fact of a run has the limits in force; the view of the session has its own limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rookery.bus import connect, connect_sync
from rookery.bus.client.sync import SyncClient
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.errors import Refused
from rookery.schemas.run import SessionLimits
from tests.execution.programs import ended
from tests.execution.realm_fixture import Serving
from tests.nodes import access_to, node_on, rookery_here
from tests.stock_client import Fields, stock, until

HERE = str(Path(__file__).parents[2])
DEFAULTS = {name: getattr(SessionLimits(), name) for name in SessionLimits.__struct_fields__}
CALLS = "[echo(n) for n in range(count)]"


@pytest.fixture
def client(driving: Serving) -> Iterator[SyncClient]:
    with connect_sync(driving.url_for(Role.OPERATOR), realm=driving.realm) as opened:
        yield opened


def given(client: SyncClient, session: str) -> dict[str, int]:
    """The session's limits that differ from the defaults."""
    limits: dict[str, int] = client.session(session)["meta"]["limits"]
    return {name: value for name, value in limits.items() if value != DEFAULTS[name]}


def offered(client: SyncClient, session: str, code: str = "1", **request: Any) -> dict[str, int]:
    """The limits in force for a new run that differ from the defaults."""
    run = client.run(session, code, **request)
    for fact in client.events(family="turn", key=session, run=run.run_id):
        if fact["type"] == "turn.started.v1":
            limits = fact["offer"]["limits"]
            return {name: value for name, value in limits.items() if value != DEFAULTS[name]}
    raise AssertionError("the feed has no end")


def facts(client: SyncClient, session: str) -> list[str]:
    """The kinds of a session's facts after another run."""
    last, found = client.run(session, "1").run_id, list[str]()
    for fact in client.events(family="session", key=session):
        if fact["type"] == "session.input_accepted.v1" and fact["run"] == last:
            return found
        found.append(fact["type"])
    raise AssertionError("the feed has no end")


# --- every door -----------------------------------------------------------------------------------

Door = Callable[[Serving, str, Fields, Fields], Fields]
DOORS: dict[str, Door] = {}


def door(ask: Door) -> Door:
    DOORS[ask.__name__] = ask
    return ask


@door
def a_stock_client_by_the_inbox(driving: Serving, session: str, new: Fields, then: Fields):
    async def ask() -> Fields:
        async with stock(driving.server, driving.realm) as client:
            for verb, body in {"create": {"limits": new}, "limits": then}.items():
                await client.submit(verb, session, body, Rookery_Reply=client.reply(verb))
                await until(lambda verb=verb: client.answers[verb])  # type: ignore[misc]
            return client.answers["limits"][0].body

    return asyncio.run(ask())


@door
def a_stock_client_by_request(driving: Serving, session: str, new: Fields, then: Fields):
    async def ask() -> Fields:
        async with stock(driving.server, driving.realm) as client:
            await client.ask("create", session, {"limits": new})
            return (await client.ask("limits", session, then)).body

    return asyncio.run(ask())


@door
def our_client(driving: Serving, session: str, new: Fields, then: Fields):
    async def ask() -> Fields:
        async with connect(driving.url, realm=driving.realm) as client:
            await client.create(session, limits=new)
            return await client.set_limits(session, **then)

    return asyncio.run(ask())


@door
def our_client_without_a_loop(driving: Serving, session: str, new: Fields, then: Fields):
    with connect_sync(driving.url, realm=driving.realm) as client:
        client.create(session, limits=SessionLimits(**new))
        return client.set_limits(session, **then)


@door
def the_shell(driving: Serving, session: str, new: Fields, then: Fields):
    words = [f"--limit={name}={value}" for name, value in new.items()]
    assert driving.rookery("sessions", "create", session, *words).code == 0
    changes = [f"{name}={value}" for name, value in then.items()]
    said = driving.rookery("sessions", "limits", session, *changes)
    assert said.code == 0, said
    return said.json  # type: ignore[return-value]


@pytest.mark.parametrize("name", DOORS)
def test_every_entry_point_sets_and_changes_a_sessions_limits(
    driving: Serving, client: SyncClient, name: str
):
    session = f"limits-{name.replace('_', '-')}"
    new, then = {"max_external_calls": 2, "cpu_ms": 900}, {"max_external_calls": 1}
    view = DOORS[name](driving, session, new, then)
    assert view == client.session(session)
    assert (view["phase"], view["generation"]) == ("Attached", 1)
    assert given(client, session) == {"max_external_calls": 1, "cpu_ms": 900}
    assert client.run(session, CALLS, inputs={"count": 1}).status == "ok"
    over = client.run(session, CALLS, inputs={"count": 2})
    assert over.error is not None
    assert over.error.code == "EXTERNAL_CALLS_EXCEEDED"
    opened = ["initialized", "registered", "executor_ensured"]
    expected = [f"session.{kind}.v1" for kind in (*opened, "limits_set", "limits_set")]
    assert facts(client, session)[:5] == expected


# --- which limits ---------------------------------------------------------------------------------


def test_a_request_has_its_own_limits_for_that_run_only(client: SyncClient):
    client.create("own", limits={"cpu_ms": 900, "wall_ms": 9_000})
    assert offered(client, "own") == {"cpu_ms": 900, "wall_ms": 9_000}
    assert offered(client, "own", limits={"cpu_ms": 800}) == {"cpu_ms": 800}
    assert offered(client, "own", timeout_ms=8_000) == {"cpu_ms": 900, "wall_ms": 8_000}
    assert offered(client, "own") == {"cpu_ms": 900, "wall_ms": 9_000} == given(client, "own")


def test_a_limit_above_the_realms_maximum_is_capped_and_the_session_keeps_its_own(
    client: SyncClient,
):
    client.create("capped", limits={"memory_mb": 4_096})
    assert offered(client, "capped") == {"memory_mb": 512}
    assert offered(client, "capped", limits={"memory_mb": 8_192}) == {"memory_mb": 512}
    assert given(client, "capped") == {"memory_mb": 4_096}


def test_limits_are_in_force_from_the_next_run_and_a_run_in_progress_keeps_its_own(
    client: SyncClient, tmp_path: Path
):
    gate = tmp_path / "gate"
    client.create("changed", limits={"max_external_calls": 2})
    with ThreadPoolExecutor(1) as threads:
        code, inputs = "await until_there(gate)\necho(1)", {"gate": str(gate)}
        running = threads.submit(client.run, "changed", code, inputs=inputs, timeout_ms=60_000)
        for fact in client.events(key="changed"):
            if fact["type"] == "tool.intent_recorded.v1":
                break
        client.set_limits("changed", max_external_calls=1)
        gate.touch()
        assert running.result().status == "ok"
    assert offered(client, "changed") == {"max_external_calls": 1}
    before = facts(client, "changed").count("session.limits_set.v1")
    client.set_limits("changed", max_external_calls=1)
    assert facts(client, "changed").count("session.limits_set.v1") == before == 2


def test_a_session_is_created_once_and_a_second_create_changes_nothing(client: SyncClient):
    first = client.create("begun", language="typescript", limits={"cpu_ms": 900})
    assert first["meta"]["language"] == "typescript"
    assert client.create("begun", language="ts", limits={"cpu_ms": 900}) == first
    with pytest.raises(Refused, match="SESSION_IDENTITY_IN_USE"):
        client.create("begun", language="typescript", limits={"cpu_ms": 901})
    with pytest.raises(Refused, match="UNSUPPORTED_FEATURE"):
        client.run("begun", "1")
    assert client.run("begun", "1 + 1", language="typescript").result == 2
    assert client.create("begun", language="typescript", limits={"cpu_ms": 900})["generation"] == 1


def test_validation_uses_the_limits_of_the_run(client: SyncClient):
    client.create("judged", limits={"cpu_ms": 900})
    assert client.validate("judged", "1").status == "ok"
    with pytest.raises(Refused, match="judged executes python"):
        client.validate("judged", "1", language="typescript")
    client.destroy("judged")
    assert client.validate("judged", "1", language="typescript").status == "ok"


def test_one_message_begins_one_generation(client: SyncClient):
    def ask() -> Fields:
        return client.ask("create", "lives", {"limits": {"cpu_ms": 900}}, message_id="lives-1")

    def limit() -> Fields:
        return client.ask("limits", "lives", {"cpu_ms": 800}, message_id="lives-2")

    assert ask()["phase"] == limit()["phase"] == "Attached"
    assert client.destroy("lives")["phase"] == "Destroyed"
    for again in (ask(), limit()):
        assert (again["phase"], again["generation"]) == ("Destroyed", 1)


# --- kept with the session ------------------------------------------------------------------------


def test_a_snapshot_restores_the_limits(driving: Serving, client: SyncClient):
    client.create("source", limits={"cpu_ms": 900})
    kept_by_run = client.run("source", "x = 1", snapshot=True).snapshot_id
    kept = client.snapshot("source")["snapshot_id"]
    assert client.snapshot("source")["snapshot_id"] == kept
    client.set_limits("source", cpu_ms=800)
    changed = client.snapshot("source")["snapshot_id"]
    assert client.snapshot("source")["snapshot_id"] == changed != kept
    (driving.folder / "limits.snap").write_bytes(client.snapshot_bytes(changed))
    client.run("source", "x = 2", limits={"cpu_ms": 700})
    later = client.snapshot("source")["snapshot_id"]
    expected = {kept_by_run: 900, kept: 900, changed: 800, "limits.snap": 800, later: 800}
    for number, (source, cpu_ms) in enumerate(expected.items()):
        session = f"restored-{number}"
        said = driving.rookery("sessions", "restore", str(source), "--session", session)
        assert said.code == 0, said
        assert given(client, session) == offered(client, session) == {"cpu_ms": cpu_ms}
        assert client.run(session, "x").result == (2 if source == later else 1)


def test_a_replaced_session_has_the_limits_of_its_new_memory(client: SyncClient):
    client.run("plain", "x = 1")
    plain = client.snapshot("plain")["snapshot_id"]
    client.create("replaced-limits", limits={"cpu_ms": 900})
    client.run("replaced-limits", "x = 2")
    client.restore("replaced-limits", plain, replace=True)
    assert given(client, "replaced-limits") == offered(client, "replaced-limits") == {}


def test_a_fork_has_the_limits_its_session_had_then(client: SyncClient):
    client.create("forked-limits", limits={"cpu_ms": 900})
    run = client.run("forked-limits", "a = echo(1)\nb = echo(2)", limits={"cpu_ms": 700})
    client.set_limits("forked-limits", cpu_ms=800)
    for number, kind in enumerate(("tool.completed.v1", "turn.completed.v1")):
        (place, *_) = [
            fact["position"]
            for fact in ended(client, "forked-limits", run.run_id)
            if fact["type"] == kind
        ]
        session = f"fork-limits-{number}"
        client.fork("forked-limits", run.run_id, place, session)
        assert given(client, session) == offered(client, session) == {"cpu_ms": 900}


def test_the_next_generation_of_a_session_has_the_defaults(client: SyncClient):
    client.create("ended-limits", limits={"cpu_ms": 900})
    client.run("ended-limits", "1")
    client.destroy("ended-limits")
    assert offered(client, "ended-limits") == given(client, "ended-limits") == {}
    client.destroy("ended-limits")
    with pytest.raises(Refused, match="SESSION_NOT_FOUND"):
        client.set_limits("ended-limits", cpu_ms=900)
    assert client.create("ended-limits", limits={"cpu_ms": 800})["generation"] == 3
    assert offered(client, "ended-limits") == {"cpu_ms": 800}


def test_another_node_and_the_journal_have_the_limits(server: EmbeddedServer, tmp_path: Path):
    realm = "limits-elsewhere"
    flags = ("--driver", "sandbox", "--tools", "tests.execution.tools:registry")
    with connect_sync(server.url_for(Role.OPERATOR, realm=realm), realm=realm) as client:
        with node_on(server, realm, tmp_path, *flags, PYTHONPATH=HERE) as node:
            client.create("moved", limits={"cpu_ms": 900})
            client.run("moved", "x = 1")
            client.set_limits("moved", wall_ms=9_000)
            client.create("waiting", limits={"cpu_ms": 800})
            node.kill()
        where = access_to(server, realm)
        shown = rookery_here(tmp_path, "sessions", "show", "moved", *where)
        assert "memory_mb=64 cpu_ms=900 wall_ms=9000 " in shown.out
        with node_on(server, realm, tmp_path, *flags, PYTHONPATH=HERE):
            assert offered(client, "moved") == {"cpu_ms": 900, "wall_ms": 9_000}
            assert offered(client, "waiting") == {"cpu_ms": 800}
            assert client.run("moved", "x").result == 1
            listed = {s["meta"]["id"]: s["meta"]["limits"] for s in client.sessions()["sessions"]}
            assert listed["moved"] == DEFAULTS | {"cpu_ms": 900, "wall_ms": 9_000}
