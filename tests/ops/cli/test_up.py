"""``rookery up`` as a process: it starts, reports its health, refuses, and stops cleanly."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rookery.bus.roles import Role
from rookery.bus.server import Store
from rookery.bus.server.server import EmbeddedServer
from tests.nodes import served_by
from tests.ops.fixtures import ROOKERY, Ended, Realm, clean_environment, rookery, shell


class NodeFolder:
    """A user with a store of his own and nothing running yet."""

    def __init__(self, path: Path) -> None:
        self.path, self.store = path, path / "store"
        self.environment = clean_environment(path) | {"ROOKERY_STORE": str(self.store)}

    def rookery(self, *arguments: str) -> Ended:
        return rookery(*arguments, environment=self.environment, directory=self.path)

    def shell(self, *arguments: str) -> Ended:
        return shell(*arguments, environment=self.environment, directory=self.path)

    @contextmanager
    def up(self, *options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
        """A node that is ready, and what it said when it was."""
        process = subprocess.Popen(
            [*ROOKERY, "up", "--json", *options],
            env=self.environment,
            cwd=self.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with process:
            try:
                assert process.stdout is not None
                assert process.stderr is not None
                line = process.stdout.readline()
                assert line, process.stderr.read()
                yield process, msgspec.json.decode(line)
            finally:
                process.kill()


@pytest.fixture
def home(tmp_path: Path) -> NodeFolder:
    return NodeFolder(tmp_path)


def facts(ended: Ended) -> list[dict[str, Any]]:
    return [line["fact"] for line in ended.lines]


@pytest.mark.parametrize("way", ["SIGTERM", "SIGINT"])
def test_a_node_serves_until_a_stop_signal_and_leaves_in_order(home: NodeFolder, way: str):
    with home.up() as (process, said):
        assert said["ready"] is True
        client = Store(home.store).credential("default", Role.CLIENT)
        assert "@" not in str(said)
        assert home.rookery("auth", "url").out == client.url(said["url"]) + "\n"
        doctor = home.rookery("doctor", "--json")
        assert (doctor.code, doctor.json["url"]) == (0, said["url"])
        os.killpg(process.pid, signal.Signals[way])  # As a terminal does with Ctrl-C.
        assert process.wait(60) == 0
        assert process.stderr is not None
        errors = process.stderr.read()
    for credential in Store(home.store).credentials.all():
        assert credential.password not in errors
    with EmbeddedServer(home.store, admin=True):
        written = facts(home.rookery("journal", "tail", "--family", "node", "--json"))
        assert home.rookery("journal", "verify").code == 0
    kinds = [
        *("node.partitions_taken.v1", "node.started.v1"),
        *("node.stopped.v1", "node.checkpoint.v1"),
    ]
    assert [fact["type"] for fact in written] == kinds
    assert written[0]["partitions"] == list(range(16))
    assert written[1]["durability"] == "always"
    assert written[2]["reason"] == way


def test_the_only_node_of_an_embedded_server_leaves_when_it_is_drained(home: NodeFolder):
    with home.up() as (process, _):
        (node,) = home.rookery("nodes", "list", "--json").json
        ended = home.rookery("nodes", "drain", node["node"])
        assert (ended.code, ended.out) == (0, f"{node['node']} has left\n"), ended
        assert process.wait(60) == 0


def test_for_people_it_prints_one_line_with_the_url(home: NodeFolder):
    process = subprocess.Popen(
        [*ROOKERY, "up"], env=home.environment, cwd=home.path, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        word, url = process.stdout.readline().split()
        process.terminate()
        assert re.fullmatch(r"ready nats://127.0.0.1:[0-9]+", f"{word} {url}")
        assert process.stdout.read() == ""
    assert process.returncode == 0


def test_a_second_node_on_the_same_store_is_refused_and_the_first_goes_on(home: NodeFolder):
    with home.up() as (_, said):
        ended = home.shell("up")
        assert (ended.code, ended.out) == (3, "")
        assert ended.err.startswith(f"STORE_IN_USE: {home.store} is used by")
        assert home.rookery("sessions", "list", "--url", said["url"]).code == 0


def test_it_is_looked_after_on_its_metrics_port(home: NodeFolder):
    with home.up("--metrics-port", "0") as (process, said):
        for page in ("livez", "readyz"):
            with urllib.request.urlopen(f"{said['health']}/{page}", timeout=90) as answer:
                assert all(msgspec.json.decode(line)["ok"] for line in answer)
        with urllib.request.urlopen(f"{said['health']}/metrics", timeout=90) as answer:
            assert "rookery_partition_owned 16.0" in answer.read().decode()
        process.terminate()
        assert process.wait(60) == 0
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(f"{said['health']}/livez", timeout=90)


def test_a_port_that_cannot_be_had_is_refused_before_anything_is_made(home: NodeFolder):
    with home.up("--metrics-port", "0", "--store", "other") as (_, said):
        port = said["health"].rpartition(":")[2]
        ended = home.shell("up", "--metrics-port", port)
    assert ended.code == 2
    assert "choose another --metrics-port" in ended.err
    assert not home.store.exists()


def test_a_server_that_may_lose_data_is_refused_until_that_is_accepted(
    home: NodeFolder, realm: Realm
):
    options = served_by(realm.server, realm.name)
    ended = home.shell("up", *options)
    assert ended.code == 3
    assert ended.err.startswith("DURABILITY_UNKNOWN: ")
    with home.up("--accept-unknown-durability", *options) as (process, said):
        assert said["url"] == realm.server.address
        process.terminate()
        assert process.wait(60) == 0
    assert not home.store.exists()
    (_, started, *_) = facts(realm.rookery("journal", "tail", "--json"))
    assert started["durability"] == "unknown_accepted"
