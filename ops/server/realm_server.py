"""The server that a configuration means, and the supervision of an embedded one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from rookery.bus.client import Client
from rookery.bus.clock import monotonic_s
from rookery.bus.credentials import Credential
from rookery.bus.mesh_links import read_link
from rookery.bus.roles import Role
from rookery.bus.server import EmbeddedServer, Store
from rookery.bus.server_access import NO_ACCESS, ServerAccess
from rookery.ops.config import Config, address_of
from rookery.schemas.errors import CodedError, Failed

__all__ = [
    "ConfiguredServer",
    "RealmServer",
    "ServerSupervisor",
]

_OWN_FORMAT = ".json"


class RealmServer(msgspec.Struct, frozen=True):
    """A server, or a cluster of them, and the access to it for a realm."""

    url: str
    """Without the credential, if that is one of Rookery's own."""
    access: ServerAccess = NO_ACCESS
    credential: Credential | None = None

    @classmethod
    def of(cls, address: str, credential: Credential, tls: ServerAccess = NO_ACCESS) -> RealmServer:
        """``tls``: the certificates to use."""
        return cls(address, credential.access(tls), credential)

    @property
    def issuer(self) -> str:
        """Public key of the issuer of the realm's credentials; empty if none is known."""
        return self.credential.issuer if self.credential is not None else ""

    def url_with_credential(self) -> str:
        return self.credential.url(self.url) if self.credential is not None else self.url

    def client(self, realm: str, absence_s_max: float = Client.ABSENCE_S_MAX) -> Client:
        """A client to be opened. ``absence_s_max``: how long a run waits for any node to appear."""
        return Client(
            self.url,
            self.access,
            realm=realm,
            credential=self.credential,
            absence_s_max=absence_s_max,
        )


class ConfiguredServer:
    """The server that a configuration means, with the credential for a role.

    A configured URL comes first, with the configured credential; else it is the embedded server
    that runs on the store, with the store's own credential of the role. No method starts a server.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._store = Store.at(config.store)

    @property
    def store(self) -> Store:
        """The store directory of the embedded server, whether or not it exists yet; ``Refused``
        CONFIG_INVALID if it cannot be created."""
        self._store.check_path()
        return self._store

    @property
    def sealing_key_path(self) -> Path:
        """The default file of the keys of the realm's secrets, whether or not it exists yet."""
        config = self._config
        name, store = f"{config.realm}.sealing-key", self._store.path
        if not config.url or self._is_of_store(address_of(config.url)):
            return store / name
        if file := config.server.credentials_file:
            return Path(file).absolute().parent / "keys" / name
        return store.with_name(f"{store.name}.keys") / name

    def embedded(self) -> EmbeddedServer:
        """The server of the store, to be started, with its link to other realms."""
        config = self._config
        file = config.mesh.link_file
        return EmbeddedServer(
            self.store.path,
            realm=config.realm,
            sync=config.server.sync,
            link=read_link(Path(file)) if file else None,
            link_files=config.mesh,
        )

    def find(self, role: Role, surface: str = "") -> RealmServer | None:
        """The server with a credential; ``None`` if none is configured and none runs.

        ``surface``: of a worker.
        """
        config = self._config
        url, file = config.url, config.server.credentials_file
        if not url:
            running = self.store.find_running()
            return self._local(running.address, role, surface) if running is not None else None
        settings = msgspec.structs.asdict(config.server)
        fields = {
            name: settings[name] for name in ServerAccess.__struct_fields__ if name in settings
        }
        access = ServerAccess(**fields)
        if file.endswith(_OWN_FORMAT):
            return RealmServer.of(url, Credential.read(Path(file)), access)
        if "@" not in url and not access.has_credentials and self._is_of_store(url):
            return self._local(url, role, surface)
        return RealmServer(url, access)

    def require(self, role: Role, surface: str = "") -> RealmServer:
        """The server with a credential, or ``Failed`` SERVER_UNREACHABLE."""
        server = self.find(role, surface)
        if server is None:
            raise self.missing_error()
        return server

    def missing_error(self) -> Failed:
        """The error for a missing server, with what to do."""
        return Failed(
            "SERVER_UNREACHABLE",
            f"no server runs on {self.store.path}",
            hint="rookery up, or name a server with --url",
        )

    def local_credential(self, role: Role) -> Credential | None:
        """The configured credential, whatever its role, else that of the role in the store of the
        embedded server; ``None`` if there is neither. It makes none."""
        config = self._config
        if config.server.credentials_file.endswith(_OWN_FORMAT):
            return Credential.read(Path(config.server.credentials_file))
        if config.url and not self._is_of_store(config.url):
            return None
        return self._store.credentials.get(config.realm, role.value)

    def _local(self, address: str, role: Role, surface: str) -> RealmServer:
        """The embedded server. It has no use for credentials and certificates of servers elsewhere;
        a file of one of its own credentials counts."""
        file = self._config.server.credentials_file
        if file.endswith(_OWN_FORMAT):
            return RealmServer.of(address, Credential.read(Path(file)))
        return RealmServer.of(address, self._store.credential(self._config.realm, role, surface))

    def _is_of_store(self, url: str) -> bool:
        """Whether the embedded server of this user's store runs at the URL."""
        store = self._store
        if not store.path.is_dir():
            return False
        running = store.running_server() if store.is_locked() else None
        return running is not None and running.address == url


# --- supervisor -----------------------------------------------------------------------------------

# Supervises the node's own server: restarts it on its store and its port when it ends.
#
# Clients reconnect by themselves, and the store has everything the server acknowledged. If the
# server does not start, or ends again too often, the supervisor stops restarting it and reports the
# error.


log = logging.getLogger(__name__)

POLL_S: Final = 0.2
PAUSES_S: Final = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0)
"""Before each restart; after the last failed one the supervisor stops."""
STABLE_AFTER_S: Final = 60.0
"""A server that has run for so long gets all restarts again."""


class ServerSupervisor:
    """``on_loss`` is called once, on the supervisor's thread, when it stops restarting."""

    def __init__(self, server: EmbeddedServer, on_loss: Callable[[CodedError], None]) -> None:
        self.restarts = 0
        """How often the server was restarted."""
        self._server, self._on_loss = server, on_loss
        self._stopping = threading.Event()
        self._supervisor = threading.Thread(
            target=self._supervise, name="rookery-server", daemon=True
        )
        self._last_error: CodedError = Failed(
            "SERVER_START_FAILED", "nats-server ends again and again"
        )

    @property
    def realm_server(self) -> RealmServer:
        """For nodes of the realm."""
        return RealmServer.of(self._server.address, self._server.credential(Role.NODE))

    def start(self) -> None:
        """Start the server and supervise it."""
        self._server.start()
        self._supervisor.start()

    def stop(self) -> None:
        """Stop supervising, then stop the server; a restart under way is cancelled."""
        self._stopping.set()
        self._supervisor.join()
        self._server.stop()

    def _supervise(self) -> None:
        pauses, up_s = iter(PAUSES_S), monotonic_s()
        while not self._stopping.wait(POLL_S):
            if self._server.running:
                if monotonic_s() - up_s >= STABLE_AFTER_S:
                    pauses = iter(PAUSES_S)
                continue
            if self._is_other_process():
                continue  # Another process started a server on this store; use that one.
            pause_s = next(pauses, None)
            if pause_s is None:
                log.error("server restarts exhausted", extra={"code": self._last_error.code})
                return self._on_loss(self._last_error)
            log.error("server ended", extra={"restart_in_s": pause_s})
            if not self._stopping.wait(pause_s):
                self._restart()
                up_s = monotonic_s()
        return None

    def _is_other_process(self) -> bool:
        """Whether a server that another process started uses the store."""
        store = Store(self._server.store)
        other = store.running_server() if store.is_locked() else None
        return other is not None and other.pid != self._server.pid

    def _restart(self) -> None:
        try:
            self._server.restart(lambda: not self._stopping.is_set())
        except Exception as error:
            if not self._stopping.is_set():
                self._record_failure(error)
        else:
            self.restarts += 1
            log.warning("server restarted", extra={"restarts": self.restarts})

    def _record_failure(self, error: Exception) -> None:
        """Log the error; the supervisor retries after any error."""
        if isinstance(error, CodedError):
            self._last_error = error
        else:
            text = f"nats-server was not started: {type(error).__name__}: {error}"
            self._last_error = Failed("SERVER_START_FAILED", text)
        log.error("server restart failed", extra={"code": self._last_error.code}, exc_info=error)
