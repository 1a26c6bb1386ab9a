"""The tools that a node offers by its configuration, and a worker's process."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

from rookery.actors.tools import ToolRegistry
from rookery.actors.tools.authoring import RegisteredTool
from rookery.actors.tools.files import Mount, file_tools
from rookery.actors.tools.functions import RemoteToolHost, Worker
from rookery.actors.tools.web import Allowed, HttpCredential, http_tools
from rookery.bus.clock import SystemClock, monotonic_s
from rookery.bus.event_loop import LoopThread
from rookery.bus.nats import Connection
from rookery.bus.ports import Bus, BusLoop
from rookery.bus.reads import NodeBlobs
from rookery.bus.roles import Role
from rookery.bus.subjects import Subjects
from rookery.bus.workers import NatsWorkerEndpoint
from rookery.ops.config import Config, NodeConfig
from rookery.ops.process_identity import process_name
from rookery.ops.server import ConfiguredServer
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.surfaces import check_surface

__all__ = [
    "StartStopped",
    "WorkerProcess",
    "discover_workers",
    "mounts_of",
    "registry_of",
    "run_unless_stopped",
    "servers_of",
]

# --- node tools -----------------------------------------------------------------------------------

# The tools that a node offers by its configuration: a registry, mounted folders, allowed servers,
# and the workers it waits for.
#
# A mount is ``NAME=DIR``, or ``NAME=DIR:rw`` if programs may write: they call it ``/NAME``. A rule
# is ``[METHOD[+METHOD]=]URL[ NETWORK...]``: programs may send these requests, GET unless others are
# named, below the URL. Beside public addresses, the server may be in one of the networks. With
# ``binding=NAME`` among them, and ``header=NAME`` or ``query=NAME``, requests have that credential.


log = logging.getLogger(__name__)

WORKERS_POLL_S: Final = 0.25
START_POLL_S: Final = 0.01
WORKERS_NOTICE_S: Final = 30.0
"""How often a node that starts says for which workers it waits."""

_MOUNT: Final = re.compile(r"(?P<name>[^=]+)=(?P<path>.+?)(?P<mode>:rw|:ro)?\Z")
_RULE: Final = re.compile(r"(?:(?P<methods>[A-Z+]+)=)?(?P<url>\S+)(?P<networks>(?: +\S+)*)\Z")


def registry_of(node: NodeConfig) -> ToolRegistry:
    """All tools of the configuration; ``Refused`` if a folder, a rule or a name is invalid."""
    own = ToolRegistry.load(node.tools) if node.tools else ToolRegistry()
    if not (node.mounts or node.allow_http):
        return own
    built_in = (*file_tools(mounts_of(node)), *_http_tools(node.allow_http))
    everything = (*own, *own.hooks, *own.resources.values(), *own.agents.values())
    return ToolRegistry.of(*everything, *built_in)


def mounts_of(node: NodeConfig) -> dict[str, Mount]:
    """The mounted folders, by their names."""
    return _mounts(node.mounts)


def servers_of(node: NodeConfig) -> list[Allowed]:
    """What may be read of which servers without a credential."""
    allowed = _allowed_by_credential(node.allow_http).get(None, ())
    return [entry for entry in allowed if "GET" in entry.methods]


def _mounts(texts: tuple[str, ...]) -> dict[str, Mount]:
    found: dict[str, Mount] = {}
    for text in texts:
        matched = _MOUNT.match(text)
        if matched is None:
            raise _refused("node.mounts", text, "is not NAME=DIR or NAME=DIR:rw", "data=./data:rw")
        name, folder = matched["name"], Path(matched["path"]).expanduser()
        if name in found:
            raise _refused("node.mounts", text, f"mounts {name} a second time", "another name")
        if not folder.is_dir():
            hint = f"mkdir -p {folder}"
            raise _refused("node.mounts", text, f"{folder} is no directory", hint)
        found[name] = Mount(folder.resolve(), writable=matched["mode"] == ":rw")
    return found


def _http_tools(texts: tuple[str, ...]) -> list[RegisteredTool]:
    return [
        tool
        for credential, entries in _allowed_by_credential(texts).items()
        for tool in http_tools(entries, credential=credential)
    ]


def _allowed_by_credential(texts: tuple[str, ...]) -> dict[HttpCredential | None, list[Allowed]]:
    allowed: dict[HttpCredential | None, list[Allowed]] = {}
    for text in texts:
        matched = _RULE.match(text)
        if matched is None:
            form = "is not [METHOD[+METHOD]=]URL[ NETWORK...]"
            raise _refused("node.allow_http", text, form, "GET+POST=https://api.example.com/v1")
        methods = tuple((matched["methods"] or "GET").split("+"))
        words = matched["networks"].split()
        networks = tuple(word for word in words if "=" not in word)
        entry = Allowed(matched["url"], methods, networks)
        try:
            credential = _http_credential([word for word in words if "=" in word])
            http_tools([entry], credential=credential)
        except Refused as refusal:
            hint = refusal.hint or "GET+POST=https://api.example.com/v1"
            raise _refused("node.allow_http", text, refusal.message, hint) from None
        allowed.setdefault(credential, []).append(entry)
    return allowed


def _http_credential(words: list[str]) -> HttpCredential | None:
    """What ``binding=NAME`` and its place say; ``None`` without them."""
    given = dict(word.split("=", 1) for word in words)
    places = given.keys() - {"binding"}
    if not given:
        return None
    if "binding" not in given or len(words) > 2 or not places <= {"header", "query"}:
        raise Refused(
            "CONFIG_INVALID",
            f"{' '.join(words)[:80]!r} names no credential",
            hint="binding=NAME, binding=NAME header=X-Api-Key, or binding=NAME query=key",
        )
    try:
        return HttpCredential(**given)
    except Refused as refusal:
        raise Refused("CONFIG_INVALID", refusal.message) from None


def _refused(key: str, text: str, why: str, hint: str) -> Refused:
    return Refused("CONFIG_INVALID", f"{key}: {text[:200]!r}: {why}", hint=hint)


# --- workers --------------------------------------------------------------------------------------


class StartStopped(Exception):
    """The node was stopped while its start waited for others."""


def discover_workers(
    bus: Bus, loop: BusLoop, surfaces: Sequence[str], stopping: threading.Event
) -> Sequence[RemoteToolHost]:
    """The hosts of these surfaces, as soon as each has a worker; ``StartStopped`` if the node is
    stopped before.

    It waits in short steps on the caller's thread, since Python runs signal handlers only when the
    main thread wakes."""
    hosts: dict[str, RemoteToolHost] = {}
    absent, notice_s = sorted(set(surfaces)), monotonic_s()
    while absent:
        hosts |= loop.run(_discover_present(bus, absent))
        absent = [surface for surface in absent if surface not in hosts]
        if absent and monotonic_s() >= notice_s:
            command = f"rookery tools serve MODULE:OBJECT --surface {absent[0]}"
            about = {"surfaces": ", ".join(absent), "start_one": command}
            log.warning("waiting for workers", extra=about)
            notice_s += WORKERS_NOTICE_S
        if absent and stopping.wait(WORKERS_POLL_S):
            raise StartStopped
    return [hosts[surface] for surface in sorted(hosts)]


def run_unless_stopped(
    loop: LoopThread, work: Coroutine[Any, Any, None], stopping: threading.Event
) -> None:
    """Run ``work`` on the loop; ``StartStopped`` if the node is stopped before it ends."""
    running = asyncio.run_coroutine_threadsafe(work, loop.loop)
    while not running.done():
        if stopping.wait(START_POLL_S):
            running.cancel()
            raise StartStopped
    running.result()


async def _discover_present(bus: Bus, surfaces: Sequence[str]) -> dict[str, RemoteToolHost]:
    """The hosts of those surfaces that have workers now."""
    discover = RemoteToolHost.discover
    found = await asyncio.gather(*(discover(bus.tool_workers, name) for name in surfaces))
    return {host.surface: host for host in found if host is not None}


# --- worker ---------------------------------------------------------------------------------------

# A tool worker as a process: wires a connection, a worker endpoint and a tool registry.


CLOSE_S = 1.0
"""For functions that react to cancellation; others end with the process."""
SERVER_POLL_S: Final = 0.25
SERVER_NOTICE_S: Final = 30.0
"""How often a worker that starts says that it waits for a server."""


class WorkerProcess:
    """Serves its surface from ``start`` to ``stop``, through every outage."""

    def __init__(
        self, config: Config, registry: ToolRegistry, *, surface: str, concurrency: int
    ) -> None:
        check_surface(surface)
        self.name, self._drain_s = process_name(), config.node.drain_timeout_s
        self._config, self._registry, self._surface = config, registry, surface
        self._concurrency, self._loop = concurrency, LoopThread()
        self._connection: Connection
        self._worker: Worker

    def start(self, stopping: threading.Event) -> bool:
        """Return once the worker can receive calls; ``False`` if it is stopped while it waits for
        a server."""
        connection = self._connect(stopping)
        if connection is None:
            self._loop.close()
            return False
        subjects = Subjects(self._config.realm)
        blobs = NodeBlobs(connection, subjects)
        self._connection, self._worker = (
            connection,
            Worker(
                NatsWorkerEndpoint(connection, subjects, blobs, self._surface),
                self._registry,
                name=self.name,
                concurrency=self._concurrency,
                now_ms=SystemClock().now_ms,
            ),
        )
        self._loop.run(self._worker.open())
        return True

    def _connect(self, stopping: threading.Event) -> Connection | None:
        """A connection, as soon as there is a server; ``None`` if the worker is stopped before. A
        node's own server starts with the node, and the node waits for its first worker."""
        notice_s = monotonic_s()
        while True:
            try:
                server = ConfiguredServer(self._config).require(Role.WORKER, self._surface)
                connection = Connection(server.url, server.access, name="rookery-worker")
                self._loop.run(connection.open())
            except CodedError as error:
                if error.code != "SERVER_UNREACHABLE":
                    raise
                if monotonic_s() >= notice_s:
                    command = f"rookery up --workers {self._surface}"
                    about = {"reason": error.message, "start_one": command}
                    log.warning("waiting for a server", extra=about)
                    notice_s = monotonic_s() + SERVER_NOTICE_S
            else:
                return connection
            if stopping.wait(SERVER_POLL_S):
                return None

    def stop(self) -> bool:
        """Refuse new calls, finish those under way and stop; ``False`` if some took too long."""
        drained = self._loop.run(self._worker.drain(self._drain_s))
        self._worker.close(CLOSE_S)
        self._loop.run(self._connection.close())
        self._loop.close()
        return drained
