"""``rookery peers link`` and the files of ``ops/deploy/mesh``, as their page says to use them."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.mesh_links import read_link
from rookery.bus.server import find_server
from rookery.bus.server_access import ServerAccess
from rookery.schemas.errors import Failed
from tests.bus.cluster import free_ports
from tests.ops.fixtures import CommandLine

DEPLOY = Path(__file__).parents[2] / "ops/deploy"
SITES = ("west", "east")


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    return CommandLine(tmp_path_factory.mktemp("person"))


def test_the_files_of_a_link_are_for_their_owner_and_keep_their_passwords(person: CommandLine):
    url = ("--url", "tls://west.example:7422", "--folder", "first")
    made = person.rookery("peers", "link", "west", "east", *url, "--json")
    assert made.code == 0, made
    assert made.json == {"files": ["first/west.link.json", "first/east.link.json"]}
    folder = person.home / "first"
    before = {site: read_link(folder / f"{site}.link.json") for site in SITES}
    assert before["west"].passwords == before["east"].passwords
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    again = person.rookery("peers", "link", "west", "east", "north", *url)
    assert "north: first/north.link.json, connects to tls://west.example:7422" in again.out
    west, east = (read_link(folder / f"{site}.link.json") for site in SITES)
    assert west.passwords["east"] == before["west"].passwords["east"]
    assert set(west.passwords) == {"east", "north"}
    assert set(east.passwords) == {"east"}
    assert east.sites == ("west", "north")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("west", "west", "--url", "tls://h:1"), "every site has a name of its own"),
        (("west", "ea st", "--url", "tls://h:1"), "Expected `str` matching regex"),
        (("west", "east", "--url", "http://h:1"), "no URL of a hub"),
        (("west", "east", "--url", "tls://h:99999"), "Port out of range"),
        (("west", "east", "--url", "nats-leaf://h:1", "--servers"), "need TLS"),
        (("west", "default", "--url", "tls://h:1", "--servers"), "need TLS|so is another site"),
    ],
)
def test_a_wrong_link_is_refused_and_writes_nothing(
    person: CommandLine, arguments: tuple[str, ...], reason: str
):
    ended = person.rookery("peers", "link", *arguments, "--folder", "wrong")
    assert ended.code == 2, ended
    assert any(part in ended.err for part in reason.split("|")), ended.err
    assert not (person.home / "wrong").exists()


def test_servers_of_ones_own_are_joined_by_the_files_of_the_page(person: CommandLine):
    """With TLS and nkeys, as the page says, but for the ports."""
    link_port = free_ports(1)[0]
    environment = os.environ | {"SERVERS": " ".join(SITES)}
    script = DEPLOY / "cluster/certificates.sh"
    subprocess.run([script, person.home / "certificates"], env=environment, check=True)
    options = ("--url", f"tls://localhost:{link_port}", "--listen", f"127.0.0.1:{link_port}")
    for_servers = ("--servers", "--certificates", "certificates")
    assert person.rookery("peers", "link", *SITES, *options, *for_servers).code == 0
    with ExitStack() as opened:
        ports = dict(zip(SITES, free_ports(len(SITES)), strict=True))
        for site in SITES:
            opened.enter_context(_server(person, site, ports[site]))
        places = asyncio.run(_exchanged(person, ports))
    assert places == {"west": 1, "east": 1}


@contextmanager
def _server(person: CommandLine, site: str, port: int) -> Iterator[None]:
    folder = person.home / site
    folder.mkdir()
    shutil.copytree(person.home / "certificates", folder / "certificates")
    shutil.copy(DEPLOY / "mesh/server.conf", folder)
    shutil.copy(person.home / f"links/{site}.mesh.conf", folder / "mesh.conf")
    users = person.rookery("auth", "init", str(folder / "credentials"), "--account")
    (folder / "auth.conf").write_text(users.out)
    command = [find_server(), "-c", "server.conf", "-a", "127.0.0.1", "-p", str(port), "-l", "log"]
    with subprocess.Popen(command, cwd=folder) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(90)


async def _exchanged(person: CommandLine, ports: dict[str, int]) -> dict[str, int]:
    """The place of each site's envelope in the inbox of the other site."""
    async with AsyncExitStack() as opened:
        buses = {}
        for site, port in ports.items():
            seed = person.home / site / "credentials/credentials/default.node.nk"
            access = ServerAccess(nkey_file=str(seed), inbox_prefix="_INBOX.default.node")
            buses[site] = JetStreamBus(f"nats://127.0.0.1:{port}", access)
            await buses[site].start()
            opened.push_async_callback(buses[site].stop)
        return {
            site: await _sent(buses[site], other)
            for site, other in zip(SITES, SITES[::-1], strict=True)
        }


async def _sent(bus: JetStreamBus, site: str) -> int:
    """Again while the link is not there yet."""
    while True:
        with suppress(Failed):
            return await bus.inbox.submit("envelope", "coder", b"x", message_id="m", realm=site)
