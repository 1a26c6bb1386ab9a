"""The doctor against servers that are well, ill, forgetful, strange, or not there."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rookery.actors.keys.ed25519 import SigningKey
from rookery.actors.leases.lease_rules import LeaseEntry, decide_input
from rookery.bus.clock import SystemClock
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.nats.connection import Connection
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer, find_server
from rookery.bus.streams import new_node_token, streams_of
from rookery.bus.subjects import Subjects
from rookery.ops.checks import Finding
from rookery.ops.config import Config, LimitsConfig, ServerConfig, address_of
from rookery.ops.doctor import Report, durability_of, examine
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Refused
from rookery.schemas.facts.lease import AcquisitionFailed
from rookery.schemas.facts.node import Started
from rookery.schemas.facts.surface import REALM_KEY, Catalogued
from rookery.schemas.machines.lease import LeaseKey
from rookery.schemas.surfaces import SurfaceKind, SurfaceSource
from tests.nodes import node_on
from tests.ops.fixtures import Realm

NOW_MS = SystemClock().now_ms
ACCEPTING = ServerConfig(accept_unknown_durability=True)


def report_on(config: Config, now_ms: Callable[[], int] = NOW_MS) -> Report:
    return asyncio.run(examine(config, now_ms))


def of(report: Report, check: str) -> Finding:
    (found,) = [finding for finding in report.findings if finding.check == check]
    return found


def failures(report: Report) -> set[tuple[str, str]]:
    return {(one.check, one.code) for one in report.findings if one.verdict == "fail"}


def embedded(realm: Realm) -> Config:
    return Config(realm=realm.name, store=str(realm.server.store))


def foreign(realm: Realm, **settings: Any) -> Config:
    """The same server, named by its URL by a user without its store."""
    store = str(realm.home / "nothing")
    return Config(
        realm=realm.name,
        url=realm.server.url_for(Role.NODE, realm=realm.name),
        store=store,
        **settings,
    )


async def ask(url: str, subject: str, query: object = None) -> dict[str, Any]:
    connection = Connection(url)
    await connection.open()
    try:
        return await connection.api(subject, query)
    finally:
        await connection.close()


@contextmanager
def stock_server(folder: Path, *options: str, config: str = "") -> Iterator[str]:
    """A nats-server that Rookery did not start; its URL."""
    folder.mkdir()
    (folder / "server.conf").write_text(config)
    command = [find_server(), "-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", str(folder)]
    with subprocess.Popen(
        [*command, "-c", str(folder / "server.conf"), *options], stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield asyncio.run(_announced(folder / f"nats-server_{process.pid}.ports"))
        finally:
            process.terminate()


async def _announced(ports: Path) -> str:
    async with asyncio.timeout(30):
        while not (ports.exists() and (text := ports.read_bytes())):
            await asyncio.sleep(0.01)
    return str(msgspec.json.decode(text)["nats"][0])


def test_a_good_embedded_server_has_nothing_wrong(realm: Realm):
    realm.write("one", 3)
    report = report_on(embedded(realm))
    assert report.ok
    assert {finding.verdict for finding in report.findings} == {"ok"}
    assert report.url == address_of(realm.server.url)
    assert of(report, "durability").detail.startswith("always")
    assert of(report, "chain").detail == "3 of 3 messages verified"
    assert "held by nats-server" in of(report, "lock").detail


def test_surfaces_that_no_node_is_connected_to_are_named(realm: Realm, tmp_path: Path):
    realm.write("one", 1)
    assert of(report_on(embedded(realm)), "surfaces").detail == "none"
    source = SurfaceSource(kind=SurfaceKind.WORKER)
    empty = asyncio.run(stored(realm, b"[]"))
    added = Catalogued(surface_id="desk", origin=source, sequence=1, tools=empty, listing=empty)
    realm.write_facts(EntityId("surface", REALM_KEY), [added])
    found = of(report_on(embedded(realm)), "surfaces")
    assert (found.verdict, found.detail) == ("ok", "not checked: no node serves the realm")
    with node_on(realm.server, realm.name, tmp_path, "--driver", "sandbox"):
        found = of(report_on(embedded(realm)), "surfaces")
    assert (found.verdict, found.code) == ("warn", "SURFACE_UNAVAILABLE")
    assert "rookery surfaces reload desk" in found.hint
    assert found.detail.startswith("desk ")


async def stored(realm: Realm, content: bytes) -> str:
    """The digest of a blob of the realm."""
    bus = JetStreamBus(realm.server.url_for(Role.NODE, realm=realm.name), realm=realm.name)
    await bus.start()
    digest = await bus.blobs.put(content)
    await bus.stop()
    return digest


def test_a_lease_that_needs_a_login_is_named_with_the_command(realm: Realm):
    key = LeaseKey.parse(f"{realm.name}:mail")
    valid = decide_input(LeaseEntry(), key, "acquire_lease", {"expires_at_ts": None})
    realm.write_facts(EntityId("lease", str(key)), [valid])
    found = of(report_on(embedded(realm)), "leases")
    assert (found.verdict, found.detail, found.hint) == ("ok", "1 in all", "")
    bank = f"{realm.name}:bank"
    realm.write_facts(EntityId("lease", bank), [AcquisitionFailed(reason="log in first")])
    report = report_on(embedded(realm))
    found = of(report, "leases")
    assert report.ok
    assert (found.verdict, found.code) == ("warn", "LEASE_REAUTH_REQUIRED")
    assert found.detail == "2 in all, 1 in need of a login"
    assert found.hint == f"rookery leases login {bank}"


def test_the_embedded_server_is_known_again_by_its_url(realm: Realm):
    realm.write("one", 1)
    config = msgspec.structs.replace(embedded(realm), url=realm.server.address)
    report = report_on(config)
    assert report.ok
    assert report.url == address_of(realm.server.url)


def test_looking_makes_no_stream(realm: Realm):
    report = report_on(embedded(realm))
    assert report.ok
    assert "will be created" in of(report, f"stream ROOKERY_{realm.name}_JOURNAL").detail
    query = {"subject": f"rookery.{realm.name}.>"}
    assert asyncio.run(ask(realm.server.admin_url, "STREAM.NAMES", query))["streams"] is None


def test_an_embedded_server_that_does_not_sync_is_unsafe(tmp_path: Path):
    with EmbeddedServer(tmp_path / "store", sync="default", admin=True):
        config = Config(store=str(tmp_path / "store"))
        assert failures(report_on(config)) == {("durability", "DURABILITY_UNSAFE")}
        assert durability_of(
            msgspec.structs.replace(config, server=ACCEPTING), embedded=True, replicas=1
        ) == ("unknown_accepted")


def test_a_single_copy_elsewhere_is_refused_unless_it_is_accepted(realm: Realm):
    realm.write("one", 1)
    report = report_on(foreign(realm))
    assert not report.ok
    assert failures(report) == {("durability", "DURABILITY_UNKNOWN")}
    assert "--accept-unknown-durability" in of(report, "durability").hint
    accepted = report_on(foreign(realm, server=ACCEPTING))
    assert accepted.ok
    assert of(accepted, "durability").verdict == "warn"


@pytest.mark.parametrize(
    ("settings", "replicas", "durability"),
    [
        ({}, 3, "replicated"),
        ({"accept_unknown_durability": True}, 1, "unknown_accepted"),
        ({"accept_unknown_durability": True}, 3, "replicated"),
    ],
)
def test_what_an_ack_from_elsewhere_is_worth(settings, replicas: int, durability: str):
    config = Config(server=ServerConfig(**settings))
    assert durability_of(config, embedded=False, replicas=replicas) == durability


def test_two_copies_are_too_few():
    with pytest.raises(Refused) as refusal:
        durability_of(Config(), embedded=False, replicas=2)
    assert refusal.value.code == "DURABILITY_UNKNOWN"
    assert "2 of 3 copies" in refusal.value.message


def test_a_server_without_jetstream_is_no_server_for_us(tmp_path: Path):
    with stock_server(tmp_path / "plain") as url:
        report = report_on(Config(url=url, store=str(tmp_path / "none"), server=ACCEPTING))
    assert failures(report) == {("jetstream", "SERVER_UNREACHABLE")}


def test_a_server_that_takes_less_than_we_send_is_refused(tmp_path: Path):
    options = ("-js", "-sd", str(tmp_path / "js"))
    with stock_server(tmp_path / "small", *options, config="max_payload: 64KB\n") as url:
        config = Config(url=url, store=str(tmp_path / "none"), server=ACCEPTING)
        assert failures(report_on(config)) == {("payload", "")}
        limits = LimitsConfig(payload_bytes_max=65_536)
        assert report_on(msgspec.structs.replace(config, limits=limits)).ok


def test_a_stream_in_memory_would_lose_everything(realm: Realm):
    subjects = Subjects(realm.name)
    subjects.set_node_token(new_node_token())
    (inbox,) = [one for one in streams_of(subjects) if one.name.endswith("_INBOX")]
    demands = {name: value for name, value in inbox.demands.items() if value is not None}
    query = {"name": inbox.name, **demands, "storage": "memory"}
    asyncio.run(ask(realm.server.admin_url, f"STREAM.CREATE.{inbox.name}", query))
    report = report_on(embedded(realm))
    check = f"stream {inbox.name}"
    assert (check, "STREAM_MISMATCH") in failures(report)
    assert "storage is 'memory', it must be 'file'" in of(report, check).detail


def test_a_journal_missing_beside_its_other_streams_was_lost(realm: Realm):
    realm.write("one", 1)
    journal = f"ROOKERY_{realm.name}_JOURNAL"
    asyncio.run(ask(realm.server.admin_url, f"STREAM.DELETE.{journal}"))
    assert failures(report_on(embedded(realm))) == {(f"stream {journal}", "STREAM_MISMATCH")}


def test_a_broken_chain_is_found(realm: Realm):
    realm.write("one", 3, broken_at=2)
    report = report_on(embedded(realm))
    assert failures(report) == {("chain", "CHAIN_BROKEN")}
    assert "message 2 of session/one" in of(report, "chain").detail


def test_another_key_under_a_nodes_name_is_found(realm: Realm):
    realm.write("one", 1)
    assert of(report_on(embedded(realm)), "node keys").detail.startswith("0 keys")
    fields = {"node": "n1", "version": "1", "host": "h", "pid": 1, "durability": "always"}
    keys = [SigningKey(digit * 32).public_key for digit in (b"a", b"b")]
    facts = [Started(**fields, public_key=key, source="kernel@n1") for key in keys]
    realm.write_facts(EntityId("node", "n1"), facts)
    report = report_on(embedded(realm))
    assert failures(report) == {("node keys", "FACT_FORGED")}
    found = of(report, "node keys")
    assert "`rookery nodes vouch`" in found.detail
    assert found.hint.startswith("yours: `rookery nodes vouch` on its machine, with --as FILE")


def test_clocks_that_differ_are_reported(realm: Realm):
    realm.write("one", 1)
    report = report_on(embedded(realm), lambda: SystemClock().now_ms() + 60_000)
    assert report.ok
    assert of(report, "clock").verdict == "warn"


def test_a_wrong_credential_is_named(realm: Realm):
    url = realm.server.address.replace("//", "//wrong:wrong@")
    report = report_on(Config(url=url, store=str(realm.home / "none")))
    assert failures(report) == {("server", "UNAUTHORIZED")}


def test_where_nothing_runs_the_rest_is_still_checked(tmp_path: Path):
    report = report_on(Config(store=str(tmp_path / "store")))
    assert failures(report) == {("server", "SERVER_UNREACHABLE")}
    assert report.url == ""
    assert "rookery up" in of(report, "server").hint
    assert of(report, "lock").detail == "free"
    assert not (tmp_path / "store").exists()


def end_with_its_parent_guard(server: EmbeddedServer) -> None:
    """Kill the server as a power cut would."""
    (guard,) = re.findall(r"^PPid:\s(\d+)", Path(f"/proc/{server.pid}/status").read_text(), re.M)
    for pid in (int(guard), server.pid):
        os.kill(pid, signal.SIGKILL)
    server.stop()


def test_the_files_of_a_killed_server_are_reported(tmp_path: Path):
    server = EmbeddedServer(tmp_path / "store", admin=True)
    server.start()
    end_with_its_parent_guard(server)
    assert "a killed server left" in of(report_on(Config(store=str(server.store))), "lock").detail


@pytest.mark.parametrize("secret", ["users.conf", "credentials/default.client.json"])
def test_a_credential_others_can_read_fails_and_a_store_they_can_enter_warns(
    tmp_path: Path, secret: str
):
    store = tmp_path / "store"
    with EmbeddedServer(store, admin=True):
        store.chmod(0o755)
        finding = of(report_on(Config(store=str(store))), "store")
        assert (finding.verdict, finding.hint) == ("warn", f"chmod 700 {store}")
        (store / secret).chmod(0o644)
        finding = of(report_on(Config(store=str(store))), "store")
        assert (finding.verdict, finding.hint) == ("fail", f"chmod 600 {store / secret}")


@pytest.mark.parametrize("store", ["file", "file/below"])
def test_an_invalid_store_fails_and_every_command_reports_it(realm: Realm, store: str):
    (realm.home / "file").write_text("")
    path = str(realm.home / store)
    assert failures(report_on(Config(store=path))) == {("server", "CONFIG_INVALID")}
    assert realm.rookery("journal", "tail", "--store", path).code == 2


def test_the_command_prints_no_credential_and_ends_with_the_verdict(realm: Realm):
    realm.write("one", 1)
    ended = realm.rookery("doctor", "--json")
    assert ended.code == 0
    assert ended.json["ok"] is True
    assert ended.json["url"] == address_of(realm.server.url)
    table = realm.rookery("doctor")
    assert "@" not in table.out
    url = realm.server.url_for(Role.NODE, realm=realm.name)
    ended = realm.rookery("doctor", "--url", url, "--store", "elsewhere")
    assert ended.code == 1
    assert "durability" in ended.out
    accepted = ("--accept-unknown-durability", "--url", url, "--store", "elsewhere")
    assert realm.rookery("doctor", *accepted).code == 0
