"""Three linked sites: one subject crosses each way, and a hostile site gets what is its own.

The servers are real ones; the streams are those that a node makes. No node runs: what a server lets
through does not depend on one.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any

import nats
import pytest

from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.mesh_links import LinkFiles, MeshLink, link_config, read_link
from rookery.bus.nats import Connection
from rookery.bus.roles import Role
from rookery.bus.server import EmbeddedServer, find_server
from rookery.bus.subjects import Subjects
from rookery.schemas.errors import Failed, Refused
from tests.bus.cluster import free_ports
from tests.peers.linked_sites import linked_servers, links_of
from tests.stock_client import until

SITES = ("west", "east", "north")
DOCUMENT = Path(__file__).parents[2] / "schemas/generated/asyncapi.json"
JETSTREAM_API = (
    "INFO",
    *(f"STREAM.{verb}.NONE" for verb in ("CREATE", "UPDATE", "INFO", "DELETE", "PURGE")),
    *(f"STREAM.MSG.{verb}.NONE" for verb in ("GET", "DELETE")),
    *("STREAM.NAMES", "STREAM.LIST", "STREAM.SNAPSHOT.NONE", "STREAM.RESTORE.NONE"),
    *("STREAM.LEADER.STEPDOWN.NONE", "STREAM.PEER.REMOVE.NONE"),
    *("CONSUMER.CREATE.NONE", "CONSUMER.CREATE.NONE.C", "CONSUMER.CREATE.NONE.C.x"),
    *("CONSUMER.DURABLE.CREATE.NONE.C", "CONSUMER.DELETE.NONE.C", "CONSUMER.INFO.NONE.C"),
    *("CONSUMER.LIST.NONE", "CONSUMER.NAMES.NONE", "CONSUMER.MSG.NEXT.NONE.C"),
    *("CONSUMER.PAUSE.NONE.C", "CONSUMER.UNPIN.NONE.C", "CONSUMER.LEADER.STEPDOWN.NONE.C"),
    *("DIRECT.GET.NONE", "DIRECT.GET.NONE.x", "META.LEADER.STEPDOWN", "SERVER.REMOVE"),
    *("ACCOUNT.PURGE.X", "ACCOUNT.STREAM.MOVE.X.NONE"),
)


@pytest.fixture(scope="module")
def links() -> dict[str, MeshLink]:
    return links_of("west", ("east", "north"), free_ports(1)[0])


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory, links: dict[str, MeshLink]
) -> Iterator[dict[str, EmbeddedServer]]:
    with linked_servers(tmp_path_factory.mktemp("sites"), links) as running:
        for server in running.values():
            asyncio.run(_make_streams(server))
        yield running


async def _make_streams(server: EmbeddedServer) -> None:
    bus = JetStreamBus(server.url)
    await bus.start()
    await bus.stop()


@asynccontextmanager
async def admins(servers: Mapping[str, EmbeddedServer]) -> AsyncIterator[dict[str, Any]]:
    """A connection to each site that may publish and hear everything there."""
    async with AsyncExitStack() as opened:
        found = {}
        for site, server in servers.items():
            found[site] = await nats.connect(server.admin_url)
            opened.push_async_callback(found[site].close)
        yield found


async def acknowledged(client: Any, site: str, body: bytes, **headers: str) -> dict[str, Any]:
    """The answer of the inbox of a site; asked again while the link is not there yet."""
    while True:
        try:
            subject = f"rookery.{site}.cmd.envelope.coder"
            reply = await client.request(subject, body, timeout=2, headers=headers or None)
        except nats.errors.Error:
            await asyncio.sleep(0.05)
        else:
            found: dict[str, Any] = json.loads(reply.data)
            return found


async def stored(client: Any, sequence: int) -> Any:
    return await client.jetstream().get_msg("ROOKERY_default_INBOX", sequence)


# --- what crosses ---------------------------------------------------------------------------------


def subjects_to(site: str) -> list[str]:
    """Every subject of the wire that a publisher could try in order to reach a site, but that of
    envelopes: of this realm, of the other one by its alias, and of the links themselves."""
    channels = json.loads(DOCUMENT.read_text())["channels"].values()
    addresses = [one["address"] for one in channels if one.get("address")]
    assert len(addresses) > 100
    tried = []
    for realm in ("default", site):
        for address in addresses:
            subject = address.replace("{realm}", realm)
            tried.append(subject.replace("{key}", "coder").replace("{digest}", "d" * 64))
    tried = [one.replace("{n}", "0").replace("{id}", "i") for one in tried]
    own = Subjects(site)
    tried += [f"rookery.{site}.{kind}.coder" for kind in ("peer", "timer", "dead", "kv", "own")]
    tried += [f"rookery.{site}.{kind}.x.y" for kind in ("tool", "result", "hook", "verdict", "w")]
    tried += [f"$JS.API.{call}" for call in JETSTREAM_API]
    tried += [f"$JS.{site}.API.{call}" for call in JETSTREAM_API]
    tried += [f"$KV.{bucket}.x" for bucket in own.buckets]
    tried += ["$JS.ACK.S.C.1.1.1.1.0", "$SRV.PING", "$SRV.INFO.rookery", "$SYS.REQ.SERVER.PING"]
    tried += [f"mesh.{site}.coder", "_R_.x.y", "_INBOX.default.client.x", "service.default.x"]
    return [one for one in tried if one != f"rookery.{site}.cmd.envelope.coder"]


@pytest.mark.parametrize(("sender", "receiver"), list(permutations(SITES, 2)))
def test_of_every_subject_that_of_envelopes_alone_crosses(
    servers: dict[str, EmbeddedServer], sender: str, receiver: str
):
    async def crossed() -> tuple[set[bytes], set[str]]:
        async with admins(servers) as clients:
            heard: dict[bytes, str] = {}

            async def hear(message: Any) -> None:
                heard[message.data] = message.subject

            for site in SITES:
                if site != sender:
                    await clients[site].subscribe(">", cb=hear)
                    await clients[site].flush()
            await acknowledged(clients[sender], receiver, b"first")
            for number, subject in enumerate(subjects_to(receiver)):
                await clients[sender].publish(subject, b"marked %d" % number)
            await clients[sender].flush()
            await acknowledged(clients[sender], receiver, b"last")
            await until(lambda: b"last" in heard)
            ours = {body: one for body, one in heard.items() if body.startswith(b"marked")}
            return set(ours), {heard[b"first"], heard[b"last"]}

    marked, subjects = asyncio.run(crossed())
    assert marked == set()
    assert subjects == {"rookery.default.cmd.envelope.coder"}


@pytest.mark.parametrize(("sender", "receiver"), list(permutations(SITES, 2)))
def test_an_envelope_is_stored_and_acknowledged_by_the_site_that_it_is_for(
    servers: dict[str, EmbeddedServer], sender: str, receiver: str
):
    async def sent() -> tuple[Any, ...]:
        async with admins(servers) as clients:
            headers = {"Nats-Msg-Id": "n", "Rookery-Signature": "ab", "Rookery-Vouch": "v.w"}
            body = f"{sender} to {receiver}".encode()
            ack = await acknowledged(clients[sender], receiver, body, **headers)
            there = await stored(clients[receiver], ack["seq"])
            return body, headers, there.data, there.headers, there.subject

    body, headers, data, got, subject = asyncio.run(sent())
    assert (data, got) == (body, headers)
    assert subject.startswith("rookery.default.cmd.")
    assert subject.endswith(".envelope.coder")


@pytest.mark.parametrize("role", [Role.CLIENT, Role.OPERATOR, Role.PEER])
def test_only_a_node_sends_to_other_sites(servers: dict[str, EmbeddedServer], role: Role):
    async def refused() -> list[str]:
        errors: list[str] = []

        async def on_error(error: Exception) -> None:
            errors.append(str(error))

        client = await nats.connect(servers["east"].url_for(role), error_cb=on_error)
        try:
            await client.publish("rookery.west.cmd.envelope.coder", b"no")
            return await until(lambda: errors)
        finally:
            await client.close()

    assert "permissions violation" in asyncio.run(refused())[0].lower()


# --- a hostile site -------------------------------------------------------------------------------


FORGED = b'{"stream":"EVIL","seq":1}'


@contextmanager
def hostile_leaf(folder: Path, link: MeshLink) -> Iterator[str]:
    """A server with a site's own password, whose owner hears and publishes what he likes in the
    account of the link; its URL."""
    blocks = "\n".join(link_config(link, "default", [], LinkFiles()))
    remote = blocks[blocks.index("leafnodes") : blocks.index("accounts {")]
    account = json.loads(remote.removeprefix("leafnodes"))["remotes"][0]["account"]
    folder.mkdir()
    config = folder / "server.conf"
    users = "users: [{user: evil, password: evil}]"
    config.write_text(
        f'listen: "127.0.0.1:-1"\nports_file_dir: {json.dumps(str(folder))}\n'
        f"{remote}\naccounts {{ {account} {{ {users} }} }}\n"
    )
    command = [find_server(), "-c", str(config), "-l", str(folder / "log")]
    with subprocess.Popen(command) as process:
        try:
            asyncio.run(until(lambda: list(folder.glob("*.ports"))))
            (ports,) = folder.glob("*.ports")
            (url,) = asyncio.run(until(lambda: json.loads(ports.read_text() or "{}").get("nats")))
            yield url.replace("://", "://evil:evil@")
        finally:
            process.terminate()
            process.wait(90)


def test_a_hostile_site_neither_hears_nor_acknowledges_what_is_for_another(tmp_path: Path):
    links = links_of("west", ("east", "north"), free_ports(1)[0])
    honest = {site: link for site, link in links.items() if site != "east"}
    with (
        linked_servers(tmp_path, honest) as servers,
        hostile_leaf(tmp_path / "evil", links["east"]) as url,
    ):
        for server in servers.values():
            asyncio.run(_make_streams(server))
        heard, acks = asyncio.run(_converse_beside(servers, url))
    assert all(ack["stream"] == "ROOKERY_default_INBOX" for ack in acks)
    foreign = {one for one in heard if one[1] != FORGED}
    assert foreign == {("mesh.east.coder", b"for the east")}


async def _converse_beside(
    servers: dict[str, EmbeddedServer], url: str
) -> tuple[list[tuple[str, bytes]], list[dict[str, Any]]]:
    """West and north exchange envelopes while the east answers all that it hears; then one is for
    the east."""
    heard: list[tuple[str, bytes]] = []
    evil = await nats.connect(url)

    async def hear(message: Any) -> None:
        heard.append((message.subject, message.data))
        if message.reply:
            await evil.publish(message.reply, FORGED)

    try:
        for subject in (">", "mesh.>", "mesh.*.*", "_R_.>", "rookery.>"):
            await evil.subscribe(subject, cb=hear)
        await evil.flush()
        async with admins(servers) as clients:
            acks = []
            for number in range(20):
                for sender, receiver in (("west", "north"), ("north", "west")):
                    body = b"%d" % number
                    ack = await acknowledged(clients[sender], receiver, body)
                    assert (await stored(clients[receiver], ack["seq"])).data == body
                    acks.append(ack)
            last = await acknowledged(clients["west"], "east", b"for the east")
            assert last["stream"] == "EVIL", "the control: what is for the east ends there"
            await until(lambda: (("mesh.east.coder", b"for the east")) in heard)
    finally:
        await evil.close()
    return heard, acks


# --- the files and the store ----------------------------------------------------------------------


def test_a_store_keeps_its_streams_when_it_gets_a_link_and_when_it_loses_it(tmp_path: Path):
    (link, *_) = links_of("west", ("east",), free_ports(1)[0]).values()

    async def message(server: EmbeddedServer, sequence: int = 0) -> bytes:
        async with admins({"": server}) as clients:
            if not sequence:
                ack = await acknowledged(clients[""], "default", b"kept")
                assert ack["seq"] == 1
            return (await stored(clients[""], 1)).data  # type: ignore[no-any-return]

    with EmbeddedServer(tmp_path / "s", sync="default", admin=True) as server:
        asyncio.run(_make_streams(server))
        assert asyncio.run(message(server)) == b"kept"
    for present in (link, None, link):
        with EmbeddedServer(tmp_path / "s", sync="default", admin=True, link=present) as server:
            assert asyncio.run(message(server, 1)) == b"kept"


def test_streams_of_two_accounts_are_never_mixed(tmp_path: Path):
    for account in ("$G", "ROOKERY"):
        (tmp_path / "s" / "jetstream" / account / "streams").mkdir(parents=True)
    with pytest.raises(Failed, match="streams of two accounts"):
        EmbeddedServer(tmp_path / "s").start()


def test_a_listener_whose_port_is_taken_says_so(tmp_path: Path, servers: dict[str, EmbeddedServer]):
    link = read_link(_written(tmp_path, servers))
    with pytest.raises(Failed, match="where links arrive, is taken"):
        EmbeddedServer(tmp_path / "other", link=link).start()


def _written(folder: Path, servers: dict[str, EmbeddedServer]) -> Path:
    """The link of the running hub, as a file."""
    text = (servers["west"].store / "server.conf").read_text()
    listen = json.loads(text[text.index("leafnodes") + 9 : text.index("accounts {")])["listen"]
    link = {"site": "west", "sites": ["east"], "passwords": {"east": "p"}}
    path = folder / "west.json"
    path.write_text(json.dumps({**link, "url": f"nats-leaf://{listen}", "listen": listen}))
    return path


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "truncated"),
        ('{"site": "a b", "sites": [], "url": "tls://h:1", "passwords": {}}', "site"),
        ('{"site": "a", "sites": ["b"], "url": "http://h", "passwords": {}}', "no URL of a hub"),
    ],
)
def test_a_damaged_link_file_is_refused(tmp_path: Path, text: str, reason: str):
    (tmp_path / "link.json").write_text(text)
    with pytest.raises(Refused, match=reason) as caught:
        read_link(tmp_path / "link.json")
    assert caught.value.code == "CONFIG_INVALID"


def test_a_listener_that_others_can_reach_needs_tls():
    link = links_of("west", ("east",), 7422)["west"]
    open_to_all = MeshLink(
        site="west", sites=("east",), url=link.url, listen="0.0.0.0:7422", passwords={"east": "p"}
    )
    with pytest.raises(Refused, match="need TLS"):
        link_config(open_to_all, "default", [], LinkFiles())
    files = LinkFiles(ca_file="ca.pem", certificate_file="c.pem", key_file="k.pem")
    assert '"verify": true' in "\n".join(link_config(open_to_all, "default", [], files))


def test_a_site_is_not_called_like_the_realm_here():
    link = links_of("west", ("default",), 7422)["west"]
    with pytest.raises(Refused, match="so is another site"):
        link_config(link, "default", [], LinkFiles())


def test_connections_are_those_of_the_roles(servers: dict[str, EmbeddedServer]):
    async def info() -> int:
        connection = Connection(servers["north"].url)
        await connection.open()
        try:
            return int((await connection.api("INFO"))["streams"])
        finally:
            await connection.close()

    assert asyncio.run(info()) == len(Subjects("default").streams)
