"""The servers that peers need, each on loopback and with a store of its own.

A store outlives its peer's processes: the peer is killed, and started again on the same store.
PostgreSQL is part of the store, since a crash of an application leaves its database running.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.error import URLError
from urllib.request import Request, urlopen

import msgspec

from rookery.bus.clock import wait_until
from rookery.ops.bench.peers.environment import Child, Environment, PeerUnavailable

__all__ = [
    "PeerStore",
    "await_port",
    "file_store",
    "postgres_store",
    "register_restate",
    "start_restate",
]

_READY_PATIENCE_S = 60.0
_PORTS = 5
_POSTGRES = Path("/usr/lib/postgresql")
"""Where Debian's packages have their binaries, by version."""
_SIZE = "select coalesce(sum(pg_database_size(datname)), 0)::bigint from pg_database"
_RESTATE_SERVER = "restate-server-*/bin/restate-server"


class PeerStore(NamedTuple):
    """What stays when a peer's processes end."""

    folder: Path
    ports: tuple[int, ...]
    """Free ports of loopback: a server is found at the same one after a restart."""
    disk_bytes: Callable[[], int]
    url: str = ""
    """Of the database, if there is one."""


@contextmanager
def file_store(folder: Path) -> Iterator[PeerStore]:
    """A store of files."""
    data = folder / "data"
    data.mkdir(parents=True)
    yield PeerStore(data, _free_ports(), lambda: _folder_bytes(data))


@contextmanager
def postgres_store(folder: Path) -> Iterator[PeerStore]:
    """A PostgreSQL server as it comes: ``fsync`` and ``synchronous_commit`` are on."""
    binaries = _postgres_binaries()
    data, ports = folder / "data", _free_ports()
    data.mkdir(parents=True)
    user = _unprivileged_user(data, folder)
    _run_as(user, binaries / "initdb", "-D", data, "-A", "trust", "-U", "postgres")
    server = Child(
        [
            *(binaries / "postgres", "-D", data, "-p", str(ports[0]), "-k", data),
            *("-c", "listen_addresses=127.0.0.1", "-c", "max_connections=200"),
        ],
        folder / "postgres.log",
        user=user,
    )
    psql: list[str | Path] = [
        binaries / "psql",
        "-h",
        "127.0.0.1",
        "-p",
        str(ports[0]),
        "-U",
        "postgres",
    ]

    def query(statement: str) -> str:
        command = [*psql, "-d", "postgres", "-Atqc", statement]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def size() -> int:
        query("checkpoint")
        return int(query(_SIZE))

    try:
        _await(server, lambda: _is_listening(ports[0]))
        _await(server, lambda: _succeeds(lambda: query("create database bench")))
        url = f"postgresql://postgres@127.0.0.1:{ports[0]}/bench"
        yield PeerStore(data, ports, size, url)
    finally:
        server.process.send_signal(signal.SIGINT)  # A fast shutdown.
        server.stop()


def start_restate(store: PeerStore, environment: Environment) -> Child:
    """Restate's server, from the binary of its npm package."""
    found = sorted((environment.modules / "@restatedev").glob(_RESTATE_SERVER))
    if not found:
        raise PeerUnavailable("npm has no restate-server for this platform")
    ingress, admin, node, *_ = store.ports
    bind = "127.0.0.1:{}".format
    settings = {
        "RESTATE_BASE_DIR": str(store.folder / "restate"),
        "RESTATE_INGRESS__BIND_ADDRESS": bind(ingress),
        "RESTATE_ADMIN__BIND_ADDRESS": bind(admin),
        "RESTATE_BIND_ADDRESS": bind(node),
        "RESTATE_ADVERTISED_ADDRESS": f"http://{bind(node)}/",
        "RESTATE_LISTEN_MODE": "tcp",
        "RESTATE_DISABLE_TELEMETRY": "true",
        "RESTATE_WORKER__INVOKER__CONCURRENT_INVOCATIONS_LIMIT": "4000",
        "DO_NOT_TRACK": "1",
    }
    log = store.folder.parent / "restate.log"
    server = Child([found[0], "--node-name", "n1", "--no-logo"], log, environment=settings)
    try:
        _await(server, lambda: _answers(f"http://{bind(admin)}/health"))
        _await(server, lambda: _answers(f"http://{bind(ingress)}/restate/health"))
    except BaseException:
        server.kill()
        raise
    return server


def register_restate(store: PeerStore, service: Child) -> None:
    """Register the service with Restate's server, once both answer."""
    _, admin, _, port, *_ = store.ports
    body = msgspec.json.encode({"uri": f"http://127.0.0.1:{port}", "force": True})
    request = Request(
        f"http://127.0.0.1:{admin}/deployments", body, {"content-type": "application/json"}
    )
    _await(service, lambda: _is_listening(port))
    _await(service, lambda: _answers(request))


def await_port(child: Child, port: int) -> None:
    """Return when the child listens; ``PeerUnavailable`` if it ends or takes too long."""
    _await(child, lambda: _is_listening(port))


def _is_listening(port: int) -> bool:
    """Whether a server accepts connections on this port of loopback."""
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex(("127.0.0.1", port)) == 0


def _await(child: Child, condition: Callable[[], bool]) -> None:
    def is_over() -> bool:
        return condition() or child.process.poll() is not None

    if not wait_until(is_over, _READY_PATIENCE_S):
        raise PeerUnavailable(f"it was not ready within {_READY_PATIENCE_S:.0f} s")
    child.check_running()


def _answers(request: str | Request) -> bool:
    with suppress(URLError, OSError), urlopen(request, timeout=10) as answer:
        return bool(200 <= answer.status < 300)
    return False


def _succeeds(act: Callable[[], object]) -> bool:
    with suppress(subprocess.CalledProcessError):
        act()
        return True
    return False


def _postgres_binaries() -> Path:
    folders = sorted(_POSTGRES.glob("*/bin"), reverse=True)
    on_path = [Path(found).parent] if (found := shutil.which("initdb")) else []
    for folder in (*folders, *on_path):
        if all((folder / name).exists() for name in ("initdb", "postgres", "psql")):
            return folder
    raise PeerUnavailable("PostgreSQL is not installed (Debian package postgresql)")


def _unprivileged_user(data: Path, folder: Path) -> str | None:
    """PostgreSQL refuses root: then its own user owns the data, and may enter the folders."""
    if os.geteuid() != 0:
        return None
    try:
        user = pwd.getpwnam("postgres")
    except KeyError:
        raise PeerUnavailable("root cannot run PostgreSQL, and has no user postgres") from None
    os.chown(data, user.pw_uid, -1)
    for parent in (folder, folder.parent):
        parent.chmod(0o711)
    return "postgres"


def _run_as(user: str | None, *command: str | Path) -> None:
    done = subprocess.run(command, user=user, cwd="/", capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PeerUnavailable(f"{command[0]}: {done.stderr.strip().splitlines()[-1:]}")


def _free_ports() -> tuple[int, ...]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(_PORTS)]
    ports = tuple(each.getsockname()[1] for each in sockets)
    for each in sockets:
        each.close()
    return ports


def _folder_bytes(folder: Path) -> int:
    """As long as the files are."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.stat(Path(root, name)).st_size
    return total
