"""Three real servers as ``ops/deploy/cluster`` configures them, with TLS, on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import TracebackType

import msgspec

from rookery.bus.credentials import CredentialStore, ServerFormat
from rookery.bus.jetstream_api import ApiError
from rookery.bus.nats import Connection
from rookery.bus.roles import Role
from rookery.bus.server.server import find_server
from rookery.bus.server_access import ServerAccess
from rookery.schemas.errors import Failed
from tests.bus.relay import Relay

__all__ = ["SERVERS", "Cluster", "Server", "free_ports", "made_certificates"]

DEPLOY = Path(__file__).parents[2] / "ops/deploy/cluster"
SERVERS = ("server-1", "server-2", "server-3")
READY_S = 60.0
ADMIN = "default.admin"
NOWHERE = "127.0.0.1:9"
"""An address at which no server listens."""


PORTS = range(12_000, 20_000)
"""Below those of embedded servers, and those that connections get at any time."""
_numbers = count(os.getpid() * 97)
"""Processes of tests begin at different ports."""


def free_ports(wanted: int) -> list[int]:
    """Ports that no process of this machine listened on just now."""
    found: list[int] = []
    while len(found) < wanted:
        port = PORTS[next(_numbers) % len(PORTS)]
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
    return found


def made_certificates(folder: Path) -> ServerAccess:
    """The certificates of a cluster in ``folder``; what a client needs of them."""
    subprocess.run([DEPLOY / "certificates.sh", folder], check=True)
    return ServerAccess(
        ca_file=str(folder / "ca.pem"),
        certificate_file=str(folder / "client.pem"),
        key_file=str(folder / "client-key.pem"),
    )


class Server:
    """One server of the cluster; it may be killed, stopped and started again."""

    def __init__(
        self, folder: Path, name: str, port: int, route_port: int, routes: list[int]
    ) -> None:
        self.name, self._folder, self._listens = name, folder, port
        self.port = port
        """Where clients connect."""
        self.options: list[str] = []
        """Further ones of the command line."""
        self.routes = routes
        """Ports of the other servers' routes."""
        self.route_port = route_port
        self.relays: list[Relay] = []
        """All that connects it, in a cluster with relays."""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        routes = ",".join(f"nats-route://127.0.0.1:{port}" for port in self.routes)
        command = [
            find_server(),
            *("-c", f"{self.name}.conf"),
            *("-a", "127.0.0.1", "-p", str(self._listens)),
            *("--cluster", f"nats://127.0.0.1:{self.route_port}", "--routes", routes),
            *("-l", f"{self.name}.log"),
            *self.options,
        ]
        self._process = subprocess.Popen(command, cwd=self._folder)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it as an operator would: its leaders move first."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait()

    async def relay(self, others: list[Server]) -> None:
        """Put a relay before its clients' port, and one before the routes to each other server."""
        clients = await Relay(self._listens).open()
        self.port = clients.port
        self.relays.append(clients)
        self.routes = []
        for other in others:
            route = await Relay(other.route_port).open()
            self.routes.append(route.port)
            self.relays.append(route)
            other.relays.append(route)
        # Servers tell each other and their clients where to connect. A route to this address
        # fails, so all use the configured ones, through the relays.
        address = f"127.0.0.1:{self.port}"
        self.options += ["--client_advertise", address, "--cluster_advertise", NOWHERE]

    def isolate(self) -> None:
        """Nothing reaches it or leaves it any more, and no connection ends."""
        for relay in self.relays:
            relay.unplug()

    def rejoin(self) -> None:
        for relay in self.relays:
            relay.plug()

    def close(self) -> None:
        if self._process is not None:
            self.kill()


class Cluster:
    """``async with`` starts it, and ends all of it."""

    def __init__(self, folder: Path, realm: str = "default", *, relayed: bool = False) -> None:
        """``relayed``: its servers can be isolated."""
        folder.mkdir()
        self._relayed = relayed
        self.folder = folder
        self.tls = made_certificates(folder / "certificates")
        self.access = msgspec.structs.replace(self.tls, user=ADMIN, password=ADMIN)
        """Of a user without limits, as no role may make streams of its own."""
        self.credentials = CredentialStore(folder / "auth")
        self.credentials.prepare(realm, ServerFormat.NKEYS)
        self.realm = realm
        self._write_users()
        for name in SERVERS:
            shutil.copy(DEPLOY / f"{name}.conf", folder)
        ports = free_ports(2 * len(SERVERS))
        clients, routes = ports[: len(SERVERS)], ports[len(SERVERS) :]
        self.servers = [
            Server(folder, name, clients[n], routes[n], [p for p in routes if p != routes[n]])
            for n, name in enumerate(SERVERS)
        ]
        self.connection: Connection

    def _write_users(self) -> None:
        """What ``rookery auth init`` prints, and the user of the test."""
        listed = self.credentials.server_config().partition("users = ")[2].rpartition("}")[0]
        users = [*json.loads(listed), {"user": ADMIN, "password": ADMIN}]
        text = f"authorization {{\nusers = {json.dumps(users)}\n}}\n"
        (self.folder / "auth.conf").write_text(text)

    def access_of(self, role: Role) -> ServerAccess:
        """How a credential of the realm connects."""
        found = self.credentials.get(self.realm, role.value)
        assert found is not None
        return found.access(self.tls)

    @property
    def url(self) -> str:
        """The URLs of all servers."""
        return ",".join(f"tls://127.0.0.1:{server.port}" for server in self.servers)

    @property
    def settings(self) -> dict[str, str]:
        """Variables by which a node finds the cluster."""
        files = ("ca_file", "certificate_file", "key_file")
        named = {f"ROOKERY_SERVER_{name.upper()}": getattr(self.tls, name) for name in files}
        node = self.credentials.get(self.realm, Role.NODE.value)
        assert node is not None
        named["ROOKERY_SERVER_CREDENTIALS_FILE"] = str(self.credentials.path(node))
        return named | {"ROOKERY_URL": self.url}

    async def __aenter__(self) -> Cluster:
        if self._relayed:
            for server in self.servers:
                await server.relay([one for one in self.servers if one is not server])
        for server in self.servers:
            server.start()
        try:
            self.connection = Connection(self.url, self.access, name="cluster-test")
            await self._connected()
        except BaseException:
            self._close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.connection.close()
        self._close()
        for relay in {relay for server in self.servers for relay in server.relays}:
            await relay.close()

    def _close(self) -> None:
        for server in self.servers:
            server.close()

    async def _connected(self) -> None:
        """Wait until JetStream has a leader and knows three servers."""
        async with asyncio.timeout(READY_S):
            while not await self._is_ready():
                await asyncio.sleep(0.1)

    async def _is_ready(self) -> bool:
        self.connection = Connection(self.url, self.access, name="cluster-test")
        try:
            await self.connection.open()
            probe = {"name": "PROBE", "subjects": ["probe"], "num_replicas": len(SERVERS)}
            await self.connection.api("STREAM.CREATE.PROBE", probe)
            await self.connection.api("STREAM.DELETE.PROBE")
        except (ApiError, Failed):
            await self.connection.close()
            return False
        return True

    def server(self, name: str) -> Server:
        return next(server for server in self.servers if server.name == name)

    async def leader(self, stream: str) -> Server:
        """The server that leads the stream's copies."""
        async with asyncio.timeout(READY_S):
            while True:
                try:
                    info = await self.connection.api(f"STREAM.INFO.{stream}")
                    return self.server(info["cluster"]["leader"])
                except (ApiError, Failed, KeyError):
                    await asyncio.sleep(0.1)

    async def whole(self, streams: list[str]) -> None:
        """Wait until every copy of these streams has every message."""
        async with asyncio.timeout(READY_S):
            for stream in streams:
                while not await self._is_whole(stream):
                    await asyncio.sleep(0.1)

    async def _is_whole(self, stream: str) -> bool:
        try:
            cluster = (await self.connection.api(f"STREAM.INFO.{stream}"))["cluster"]
        except (ApiError, Failed):
            return False
        copies = cluster.get("replicas") or []
        behind = [one for one in copies if not one["current"] or one.get("offline")]
        return bool(cluster.get("leader")) and len(copies) == len(SERVERS) - 1 and not behind
