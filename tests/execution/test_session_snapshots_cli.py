"""An operator and a client snapshot, restore, destroy and fork sessions."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGKILL
from typing import Any

import msgspec
import pytest

from rookery.actors.sandbox.sessions.snapshot import open_snapshot, seal
from rookery.bus.client.client import Client
from rookery.bus.client.sync import SyncClient
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.ops.keys import ConfiguredKeys
from rookery.ops.keys.sealing_keys import SNAPSHOTS, open_secrets
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Refused
from tests.execution.programs import Programs, ended, play_programs
from tests.execution.realm_fixture import Serving
from tests.nodes import NodeProcess, Said, access_to, node_on, rookery_here, sealing_key_of

HERE = str(Path(__file__).parents[2])
Fields = dict[str, Any]


@contextmanager
def client_of(serving: Serving) -> Iterator[SyncClient]:
    client = SyncClient(Client(serving.url_for(Role.OPERATOR), realm=serving.realm))
    try:
        yield client
    finally:
        client.close()


@pytest.fixture
def client(driving: Serving) -> Iterator[SyncClient]:
    with client_of(driving) as opened:
        yield opened


def refused(said: Said, code: str) -> Fields:
    """Exit code and error of a refused command."""
    error = said.json["error"]  # type: ignore[index]
    assert (said.code, error["code"]) == (4 if code.endswith("_NOT_FOUND") else 3, code), said
    return dict(error)


def fields(said: Said) -> Fields:
    assert said.code == 0, said
    return dict(said.json)  # type: ignore[call-overload]


def of_session(serving: Serving, session: str) -> list[Fields]:
    """Every fact of a session, with its sequence."""

    async def read() -> list[Fields]:
        bus = JetStreamBus(serving.url_for(Role.NODE), realm=serving.realm)
        await bus.start()
        try:
            found = []
            for family in ("session", "turn", "tool", "sandbox"):
                for stored in await bus.journal.read(EntityId(family, session)):
                    found += [{"seq": stored.sequence} | f for f in json.loads(stored.body)]
            return sorted(found, key=lambda fact: fact["seq"])
        finally:
            await bus.stop()

    return asyncio.run(read())


# --- snapshot and restore -------------------------------------------------------------------------


def test_a_session_continues_under_another_id(driving: Serving, client: SyncClient):
    client.run("kept", "x = echo(40)\ndef more(n): return x + n")
    kept = fields(driving.rookery("sessions", "snapshot", "kept", "--out", "kept.snap"))
    assert (driving.folder / "kept.snap").stat().st_size == kept["size_bytes"]
    client.run("kept", "x = 'changed since'")
    for number, source in enumerate(("kept.snap", kept["snapshot_id"])):
        session = f"kept-{number}"
        fields(driving.rookery("sessions", "restore", source, "--session", session))
        shown = fields(driving.rookery("sessions", "show", session))
        assert (shown["phase"], shown["generation"]) == ("Attached", 1)
        assert client.run(session, "more(2)").result == 42
        assert client.run(session, "x = x + 1\nmore(2)").result == 43


def test_a_snapshot_of_the_same_state_is_the_same(driving: Serving, client: SyncClient):
    client.run("same", "x = 1")
    first = client.snapshot("same")
    before = len(of_session(driving, "same"))
    assert client.snapshot("same") == first
    assert len(of_session(driving, "same")) == before
    client.run("same", "x += 1")
    assert client.snapshot("same")["snapshot_id"] != first["snapshot_id"]


def test_a_session_is_replaced_only_on_request(driving: Serving, client: SyncClient):
    client.run("once", "x = 1")
    kept = client.snapshot("once")["snapshot_id"]
    client.run("once", "x = 2")
    restore = ("sessions", "restore", kept, "--session", "once")
    refused(driving.rookery(*restore), "SESSION_IDENTITY_IN_USE")
    assert client.run("once", "x").result == 2
    assert fields(driving.rookery(*restore, "--replace"))["generation"] == 2
    assert client.run("once", "x").result == 1
    assert client.session("once")["generation"] == 2


def test_a_duplicate_restore_replaces_nothing(driving: Serving, client: SyncClient):
    client.run("again", "x = 1")
    body = {"snapshot_id": client.snapshot("again")["snapshot_id"], "replace": True}
    first = client.ask("restore", "again", body, message_id="again-1")
    client.run("again", "x = 2")
    assert client.ask("restore", "again", body, message_id="again-1") == first
    assert client.run("again", "x").result == 2


def test_a_typescript_session_is_restored_too(driving: Serving, client: SyncClient):
    client.run("ts", "let n = 41;", language="typescript")
    client.restore("ts-2", client.snapshot("ts")["snapshot_id"])
    assert client.session("ts-2")["meta"]["language"] == "typescript"
    assert client.run("ts-2", "n + 1", language="typescript").result == 42


def test_a_session_without_memory_has_no_snapshot(driving: Serving, client: SyncClient):
    refused(driving.rookery("sessions", "snapshot", "nobody"), "SESSION_NOT_FOUND")
    client.run("gone", "x = 1")
    client.destroy("gone")
    refused(driving.rookery("sessions", "snapshot", "gone"), "SESSION_NOT_FOUND")


def test_a_session_with_a_run_in_progress_is_neither_stored_nor_destroyed(driving: Serving):
    async def scenario(programs: Programs) -> None:
        await programs.run("x = 1")
        running = programs.begin("await pause(60)", timeout_ms=60_000)
        (started,) = (await programs.seen("turn.started", 2))[1:]
        await programs.seen("tool.intent_recorded")
        for command in ("snapshot", "destroy"):
            said = await asyncio.to_thread(driving.rookery, "sessions", command, "busy")
            error = refused(said, "GUARD_REJECTED")
            assert f"rookery runs cancel {started['run']}" in error["hint"]
        await programs.cancel(started["run"], now=True)
        await running
        said = await asyncio.to_thread(driving.rookery, "sessions", "snapshot", "busy")
        assert said.code == 0

    play_programs(driving, "busy", scenario)


def test_a_memory_is_restored_only_before_the_first_run(driving: Serving, client: SyncClient):
    """A restore and the session's first input exclude each other in either order."""
    client.run("given", "x = 1")
    kept = client.snapshot("given")["snapshot_id"]

    def restored(session: str) -> bool:
        with suppress(Refused):
            return bool(client.restore(session, kept))
        return False

    with ThreadPoolExecutor() as threads:
        for number in range(20):
            session = f"given-{number}"
            first = threads.submit(client.run, session, "'x' in globals()")
            assert restored(session) is first.result().result
            assert client.session(session)["generation"] == 1


# --- what is refused -----------------------------------------------------------------------------


async def snapshot_key(serving: Serving) -> bytes:
    """The key of the realm's session images, opened with the file of its nodes."""
    bus = JetStreamBus(serving.url_for(Role.NODE), realm=serving.realm)
    await bus.start()
    try:
        (path,) = sealing_key_of(serving.server, serving.realm).values()
        keys = ConfiguredKeys(path, Path(path), {})
        key = await (await open_secrets(bus.secrets, serving.realm, keys)).get(SNAPSHOTS)
        assert key is not None
        return key
    finally:
        await bus.stop()


def of_a_newer_version(serving: Serving, data: bytes) -> bytes:
    """A snapshot sealed as by a later version of Rookery."""

    key = asyncio.run(snapshot_key(serving))
    header, saved = open_snapshot(key, data, lambda *_: None, None)
    return seal(key, msgspec.structs.replace(header, version=header.version + 1), saved).data


def test_an_invalid_snapshot_is_refused_and_changes_nothing(driving: Serving, client: SyncClient):
    client.run("good", "x = 1")
    data = client.snapshot_bytes(client.snapshot("good")["snapshot_id"])
    files = {
        "cut": (data[:-1], "SNAPSHOT_CORRUPT"),
        "empty": (b"", "SNAPSHOT_CORRUPT"),
        "tampered": (data[:5000] + bytes([data[5000] ^ 1]) + data[5001:], "SNAPSHOT_CORRUPT"),
        "text": (b"not a snapshot at all, but long enough to have a seal", "SNAPSHOT_CORRUPT"),
        "newer": (of_a_newer_version(driving, data), "SNAPSHOT_VERSION_MISMATCH"),
    }
    for name, (content, code) in files.items():
        with pytest.raises(Refused, match=code):
            client.restore("good", content, replace=True)
        (driving.folder / name).write_bytes(content)
    where = ("--session", "good", "--replace")
    hint = refused(driving.rookery("sessions", "restore", "cut", *where), "SNAPSHOT_CORRUPT")
    assert "realm" in hint["hint"]
    refused(
        driving.rookery("sessions", "restore", f"snap_{'0' * 64}", "--session", "new"),
        "BLOB_NOT_FOUND",
    )
    assert driving.rookery("sessions", "restore", "no such file", "--session", "new").code == 2
    assert driving.rookery("sessions", "restore", "snap_x", "--session", "new").code == 2
    refused(driving.rookery("sessions", "show", "new"), "SESSION_NOT_FOUND")
    assert (client.session("good")["generation"], client.run("good", "x").result) == (1, 1)


# --- destroy --------------------------------------------------------------------------------------


def test_a_destroyed_session_begins_its_next_generation(driving: Serving, client: SyncClient):
    first = client.run("twice", "x = 1").run_id
    assert fields(driving.rookery("sessions", "destroy", "twice"))["phase"] == "Destroyed"
    assert fields(driving.rookery("sessions", "destroy", "twice"))["generation"] == 1
    assert client.run("twice", "'x' in globals()").result is False
    assert client.session("twice")["generation"] == 2
    assert client.replay("twice", first)["state"] == "equal"
    refused(driving.rookery("sessions", "destroy", "never"), "SESSION_NOT_FOUND")


def test_an_operator_retires_recycles_and_resets_a_session(driving: Serving, client: SyncClient):
    client.run("tired", "x = 1")
    assert fields(driving.rookery("sessions", "retire", "tired"))["phase"] == "Retired"
    with pytest.raises(Refused, match="from phase Retired"):
        client.run("tired", "x")
    assert fields(driving.rookery("sessions", "recycle", "tired"))["phase"] in ("Idle", "Attached")
    assert client.run("tired", "x").result == 1
    assert fields(driving.rookery("sessions", "reset", "tired"))["phase"] == "Idle"
    assert client.run("tired", "x").result == 1
    running = client.submit("tired", "await pause(50)", timeout_ms=60_000)
    running.accepted(90)
    for command in ("retire", "recycle", "reset"):
        refused(driving.rookery("sessions", command, "tired"), "GUARD_REJECTED")
    running.cancel()
    assert running.result(90).status == "cancelled"
    assert client.run("tired", "x").result == 1


# --- forks ----------------------------------------------------------------------------------------

FORKED = """
import time
began = time.time()
a = await echo_soon(x)
b = echo(a + 1)
c = echo(b + 1)
x = c
[a, b, c, began]
"""


def forked_run(
    client: SyncClient, session: str, *, keep: bool = False
) -> tuple[str, Any, list[Fields]]:
    """A run between two others, perhaps with snapshots between them."""
    client.run(session, "x = 1")
    if keep:
        client.snapshot(session)
    answer = client.run(session, FORKED)
    client.run(session, "x = 'later'")
    if keep:
        client.snapshot(session)
    found = []
    for fact in client.events(key=session, run=answer.run_id):
        found.append(fact)
        if fact["type"] == "turn.completed.v1":
            return answer.run_id, answer.result, found
    raise AssertionError("the feed has no end")


def at(facts: list[Fields], kind: str, number: int) -> str:
    """The position of a fact of this kind."""
    return [fact["position"] for fact in facts if fact["type"] == f"{kind}.v1"][number]


def before(facts: list[Fields], kind: str, number: int) -> str:
    """The position of the run's fact before it."""
    place = at(facts, kind, number)
    return facts[[fact["position"] for fact in facts].index(place) - 1]["position"]


def test_a_fork_gets_the_recorded_results_and_then_makes_its_own_calls(
    driving: Serving, client: SyncClient
):
    run_id, result, facts = forked_run(client, "old")
    places = {
        "fork-0": (at(facts, "turn.started", 0), 0),
        "fork-1": (at(facts, "tool.completed", 0), 1),
        "fork-2": (before(facts, "tool.completed", 2), 2),
    }
    for session, (place, calls) in places.items():
        said = driving.rookery("runs", "fork", run_id, "--at", place, "--session", session)
        receipt = fields(said)
        assert (receipt["calls"], receipt["session_id"]) == (calls, session)
        record = ended(client, session, receipt["run_id"])
        (began,) = [fact for fact in record if fact["type"] == "sandbox.snapshot_restored.v1"]
        assert began["forked_from"] == {
            "session": "old",
            "generation": 1,
            "run_id": run_id,
            "calls": calls,
            "at_sequence": receipt["at_sequence"],
            "at_fact": receipt["at_fact"],
        }
        acted = [fact for fact in record if fact["type"] == "tool.intent_recorded.v1"]
        assert len(acted) == 3 - calls
        (done,) = [fact for fact in record if fact["type"] == "turn.completed.v1"]
        assert done["result"]["result"] == result, "also the time it began, by its own clock"
        assert client.run(session, "x").result == 3
        assert client.replay(session, receipt["run_id"])["state"] == "equal"
    assert client.run("old", "x").result == "later"


def test_a_fork_after_a_run_has_the_session_as_the_run_left_it(
    driving: Serving, client: SyncClient
):
    run_id, _, facts = forked_run(client, "ended", keep=True)
    place = at(facts, "turn.completed", 0)
    receipt = fields(driving.rookery("runs", "fork", run_id, "--at", place))
    assert receipt["run_id"] is None
    assert client.run(receipt["session_id"], "x").result == 3


def test_a_fork_of_a_fork(driving: Serving, client: SyncClient):
    run_id, result, facts = forked_run(client, "root")
    first = client.fork("root", run_id, at(facts, "tool.completed", 0), "branch")
    record = ended(client, "branch", first["run_id"])
    second = client.fork("branch", first["run_id"], at(record, "tool.completed", 0), "twig")
    assert second["calls"] == 2
    record = ended(client, "twig", second["run_id"])
    (done,) = [fact for fact in record if fact["type"] == "turn.completed.v1"]
    assert done["result"]["result"] == result


def test_a_large_program_is_forked_too(driving: Serving, client: SyncClient):
    padding = "#" * 70_000
    run_id = client.run("large", f"a = echo(1)\nb = echo(2)\n[a, b] {padding}").run_id
    facts = ended(client, "large", run_id)
    receipt = client.fork("large", run_id, at(facts, "tool.completed", 0), "large-fork")
    record = ended(client, "large-fork", receipt["run_id"])
    assert all(len(json.dumps(fact)) < 10_000 for fact in record)
    assert client.run("large-fork", "[a, b]").result == [1, 2]
    shown = driving.rookery("runs", "show", receipt["run_id"])
    assert (shown.code, shown.json["run"]["status"]) == (0, "ok")  # type: ignore[index]


def test_invalid_forks_are_refused(driving: Serving, client: SyncClient):
    run_id, _, facts = forked_run(client, "wrong")
    place = at(facts, "turn.started", 0)
    too_early = at(facts, "session.run_prepared", 0)
    fork = ("runs", "fork", run_id, "--at")
    for wrong in (too_early, "0", "1.0", "1.x", "one", ""):
        assert driving.rookery(*fork, wrong, "--session", "early").code == 2, wrong
    into = ("--session", "wrong")
    refused(driving.rookery(*fork, place, *into), "SESSION_IDENTITY_IN_USE")
    refused(driving.rookery("runs", "fork", "none", "--at", "1"), "RUN_NOT_FOUND")
    refused(driving.rookery("runs", "replay", "none"), "RUN_NOT_FOUND")
    refused(driving.rookery("sessions", "show", "early"), "SESSION_NOT_FOUND")


def test_replay_prints_its_findings(driving: Serving, client: SyncClient):
    run_id, _, _ = forked_run(client, "seen", keep=True)
    where = access_to(driving.server, driving.realm)
    said = rookery_here(driving.folder, "runs", "replay", run_id, *where)
    line = "equal: 3 calls, status, error, call records, result, stdout, stderr, fuel\n"
    assert (said.code, said.out, said.err) == (0, line, "")
    before = len(of_session(driving, "seen"))
    assert client.replay("seen", run_id)["state"] == "equal"
    assert len(of_session(driving, "seen")) == before


# --- crashes and other realms ---------------------------------------------------------------------

AWAY = "away"


def away(
    server: EmbeddedServer, folder: Path, tools: str = "tests.execution.tools", **variables: str
) -> NodeProcess:
    flags = ("--driver", "sandbox", "--tools", f"{tools}:registry")
    return node_on(server, AWAY, folder, *flags, PYTHONPATH=HERE, **variables)


def test_a_snapshot_works_in_another_realm_and_after_a_crash(
    driving: Serving, client: SyncClient, tmp_path: Path
):
    assert client.run("moved", "x = echo(40)").status == "ok"
    kept = client.snapshot("moved")["snapshot_id"]
    (tmp_path / "moved.snap").write_bytes(client.snapshot_bytes(kept))
    server, ours = driving.server, ("--from-realm", driving.realm)

    def restore(source: str, session: str, *more: str) -> Said:
        where = (*access_to(server, AWAY), "--json", "--session", session)
        return rookery_here(tmp_path, "sessions", "restore", source, *where, *more)

    with away(server, tmp_path) as node:
        there = Serving(server, node, AWAY, tmp_path)
        refused(restore("moved.snap", "file"), "SNAPSHOT_CORRUPT")
        fields(restore("moved.snap", "file", *ours))
        fields(restore(kept, "id", *ours))
        with client_of(there) as theirs:
            assert theirs.run("file", "x += 1\nx").result == 41
        node.kill()
    with away(server, tmp_path) as node, client_of(there) as theirs:
        assert theirs.run("file", "x += 1\nx").result == 42
        assert theirs.run("id", "x").result == 40
        run_id = theirs.run("file", "[echo(n) for n in range(3)]").run_id
        facts = ended(theirs, "file", run_id)
        node.kill()
    with away(server, tmp_path, "tests.chaos.ledger_tools"), client_of(there) as theirs:
        refused(restore(kept, "other", *ours), "SNAPSHOT_CAPABILITY_MISMATCH")
        with pytest.raises(Refused, match="SNAPSHOT_CAPABILITY_MISMATCH"):
            theirs.fork("file", run_id, at(facts, "tool.completed", 0), "other")
        assert theirs.replay("file", run_id)["state"] == "equal", "it needs no tool"
        with pytest.raises(Refused, match="SESSION_NOT_FOUND"):
            theirs.session("other")


def story_of_a_fork(
    node: Callable[..., NodeProcess], there: Serving, place: str, run_id: str, failpoint: str
) -> list[Fields]:
    """The facts of a session whose fork was interrupted by its node's death."""
    session = failpoint.replace("@", "-")
    sequence, number = place.split(".")
    fork = {"run_id": run_id, "session": "root"}
    fork |= {"at_sequence": int(sequence), "at_fact": int(number)}
    with client_of(there) as client, ThreadPoolExecutor() as threads:
        with node(ROOKERY_FAILPOINT=failpoint) as mortal:
            answered = threads.submit(client.ask, "fork", session, fork, message_id="fork-1")
            assert mortal.ended() == -SIGKILL
        with node():
            receipt = answered.result()
            facts = ended(client, session, receipt["run_id"])
            assert client.run(session, "x").result == 3
    return facts


def test_a_fork_is_whole_whenever_its_node_dies(server: EmbeddedServer, tmp_path: Path):
    """The node is killed when the memory is stored, and when the run has begun."""

    def node(**variables: str) -> NodeProcess:
        return away(server, tmp_path, **variables)

    with node() as first:
        there = Serving(server, first, AWAY, tmp_path)
        with client_of(there) as client:
            run_id, result, facts = forked_run(client, "root")
    place = at(facts, "tool.completed", 0)
    for failpoint in ("acked@2", "acked@4"):
        record = story_of_a_fork(node, there, place, run_id, failpoint)
        kinds = Counter(fact["type"] for fact in record)
        assert kinds["sandbox.snapshot_restored.v1"] == kinds["session.input_accepted.v1"] == 1
        assert kinds["turn.started.v1"] == kinds["turn.completed.v1"] == 1
        assert kinds["tool.completed.v1"] == 2
        (done,) = [fact for fact in record if fact["type"] == "turn.completed.v1"]
        assert done["result"]["result"] == result


def test_a_replacement_is_whole_if_its_node_dies_half_way(server: EmbeddedServer, tmp_path: Path):
    """The node is killed between the old generation's end and the new one's begin."""
    with away(server, tmp_path) as first:
        there = Serving(server, first, AWAY, tmp_path)
        with client_of(there) as client:
            client.run("replaced", "x = 1")
            kept = client.snapshot("replaced")["snapshot_id"]
    asked = {"snapshot_id": kept, "replace": True}
    with client_of(there) as client, ThreadPoolExecutor() as threads:
        with away(server, tmp_path, ROOKERY_FAILPOINT="acked@2") as mortal:
            restored = threads.submit(client.ask, "restore", "replaced", asked)
            assert mortal.ended() == -SIGKILL
        with away(server, tmp_path):
            assert restored.result()["generation"] == 2
            assert client.run("replaced", "x += 1\nx").result == 2
            assert client.session("replaced")["generation"] == 2
