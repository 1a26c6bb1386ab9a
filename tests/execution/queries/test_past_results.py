"""The result of a past run is read from the journal: the clients, and the shell by the run's id,
return the reply that a waiting client got.
"""

from __future__ import annotations

import asyncio

import pytest

from rookery.bus import connect, connect_sync
from rookery.bus.client.sync import SyncClient
from rookery.schemas.errors import Refused
from rookery.schemas.replies import RunAnswer
from tests.execution.entry_points import PATIENCE_S
from tests.execution.realm_fixture import Serving
from tests.nodes import Said, access_to, rookery_here

PROGRAMS = {
    "plain": "print('said')\necho({'a': 1})",
    "large": "print('said')\n'é' * 700_000",
    "nothing": "x = 1",
    "wrong": "y = echo(2)\nx = 1 / 0",
    "no-program": "1 +",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_past_result_is_returned_as_it_was_when_its_run_ended(driving: Serving, name: str):
    session = f"past-{name}"
    with connect_sync(driving.url, realm=driving.realm) as client:
        told = client.run(session, PROGRAMS[name], snapshot=True)
        assert client.result(session, told.run_id) == told

    async def later() -> RunAnswer:
        async with connect(driving.url, realm=driving.realm) as again:
            return await again.result(session, told.run_id)

    assert asyncio.run(later()) == told


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("json", [False, True])
def test_the_shell_prints_a_past_run_as_it_printed_it(driving: Serving, name: str, json: bool):
    program = ("-e", PROGRAMS[name], "--session", f"printed-{name}", "--snapshot")
    said = shell(driving, json, "run", *program)
    (newest,) = runs_of(driving, f"printed-{name}")
    assert shell(driving, json, "runs", "result", newest) == said


def test_the_result_of_an_open_run_and_of_an_unstarted_run_is_an_error(driving: Serving):
    with connect_sync(driving.url, realm=driving.realm) as client:
        first = client.submit("past-waits", "await pause(60)", timeout_ms=60_000)
        assert any(fact["type"] == "tool.intent_recorded.v1" for fact in first.events())
        queued = client.submit("past-waits", "1")
        refuse(client, first.run_id, "it waits for pause")
        refuse(client, queued.accepted(PATIENCE_S), "it waits for the session to be free")
        said = shell(driving, False, "runs", "result", first.run_id)
        assert (said.code, said.out) == (3, "")
        assert "has no result yet: it waits for pause" in said.err
        client.cancel("past-waits", queued.run_id)
        told = queued.result(PATIENCE_S)
        assert client.result("past-waits", queued.run_id) == told
        first.cancel()
        told = first.result(PATIENCE_S)
        assert client.result("past-waits", first.run_id) == told
        with pytest.raises(Refused, match="RUN_NOT_FOUND"):
            client.result("past-waits", "nobody")
    assert shell(driving, False, "runs", "result", "nobody").code == 4


def test_show_prints_the_result_of_a_run(driving: Serving):
    with connect_sync(driving.url, realm=driving.realm) as client:
        large = client.run("past-shown", "'é' * 700_000", snapshot=True)
        wrong = client.run("past-shown", "import socket")
        odd = client.run("past-shown", "x = [len]\nx.append(x)\nx")
    notes = shell(driving, False, "runs", "show", odd.run_id).out
    assert "has no form in JSON and is given as text" in notes
    assert "the result is cut" in notes
    shown = shell(driving, False, "runs", "show", large.run_id).out.splitlines()
    (result,) = (n for n, line in enumerate(shown) if line.startswith("result   "))
    assert (shown[result].endswith("ééé..."), len(shown[result])) == (True, 80)
    assert shown[result + 1].split() == ["whole:", "rookery", "runs", "result", large.run_id]
    assert shown[result + 2].split() == ["snapshot", large.snapshot_id]
    assert wrong.error is not None
    said = shell(driving, False, "runs", "show", wrong.run_id).out
    assert f"error    {wrong.error.code}: {wrong.error.message}\n" in said
    assert wrong.error.hint is not None
    assert f"hint     {wrong.error.hint}\n" in said


def refuse(client: SyncClient, run_id: str, says: str) -> None:
    with pytest.raises(Refused, match=f"GUARD_REJECTED.*{says}"):
        client.result("past-waits", run_id)


def shell(driving: Serving, json: bool, *arguments: str) -> Said:
    where = access_to(driving.server, driving.realm)
    return rookery_here(driving.folder, *arguments, *where, *(("--json",) if json else ()))


def runs_of(driving: Serving, session: str) -> list[str]:
    runs = driving.rookery("runs", "list", "--session", session, "--limit", "1").json
    assert isinstance(runs, dict)
    return [run["run_id"] for run in runs["runs"]]
