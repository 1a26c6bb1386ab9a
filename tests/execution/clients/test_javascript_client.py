"""The official JavaScript client of NATS, from the npm registry, can run programs.

The test fetches it once, into the user's cache. Without Node.js or the registry, the same exchange
by a bare socket (``entry_points``) replaces it.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.execution.clients.test_entry_points import BODY, facts_of
from tests.execution.realm_fixture import Serving
from tests.node_packages import node_folder
from tests.stock_client import Fields, Stock

PACKAGES = ("@nats-io/transport-node@3.3.1", "@nats-io/jetstream@3.3.1")
PROGRAM = Path(__file__).with_name("javascript_client.mjs")
RUN_S = 60


@pytest.fixture(scope="module")
def folder() -> Path:
    """The folder with the program and its packages."""
    return node_folder("javascript-client", PACKAGES, PROGRAM)


def run(command: list[str], patience_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=patience_s, check=False)


@pytest.mark.parametrize("door", ["request", "inbox"])
def test_javascript_gets_the_same_result_and_the_same_facts(
    driving: Serving, folder: Path, door: str
):
    session, where = f"javascript-{door}", urlsplit(driving.url)
    task = {
        "server": f"{where.hostname}:{where.port}",
        "user": where.username,
        "pass": where.password,
        "realm": driving.realm,
        "session": session,
        "door": door,
        "body": BODY,
    }
    said = run(["node", str(folder / PROGRAM.name), json.dumps(task)], RUN_S)
    assert said.returncode == 0, said.stderr
    told: Fields = json.loads(said.stdout)
    answer = told["answer"]
    assert (answer["status"], answer["result"], answer["stdout"]) == ("ok", 6, "two threes\n")
    assert (answer["session_id"], len(answer["external_calls"])) == (session, 2)

    async def scenario(client: Stock) -> None:
        facts = await facts_of(client, session)
        assert told["live"] == facts

    driving.visit(scenario)
