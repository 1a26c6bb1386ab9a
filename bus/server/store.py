"""The store directory of an embedded server: its lock, port and credentials.

nats-server does not lock its store, so Rookery does: the server process inherits the locked file
and holds it as long as it lives. Port and credentials are stored here, so that clients find the
server after a restart. ``is_accepted`` says whether a server accepts a credential, by one
connection without a client. ``rookery.bus.server.server`` starts and stops the server.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from rookery.bus.clock import SystemClock, wait_until
from rookery.bus.credentials import Credential, CredentialStore
from rookery.bus.mesh_links import REALM_ACCOUNT
from rookery.bus.roles import Role
from rookery.schemas.errors import Failed, Refused

__all__ = [
    "GLOBAL_ACCOUNT",
    "RunningServer",
    "Store",
    "default_store",
    "is_accepted",
]

GLOBAL_ACCOUNT = "$G"
"""The account of all users of a server that names none."""
_LOCK_PATIENCE_S = 2.0
"""Time for a server to stop after its node was killed."""
_START_PATIENCE_S = 2.0
_RELOAD_PATIENCE_S = 5.0


class RunningServer(NamedTuple):
    """A running server on a store."""

    pid: int
    address: str
    """Its URL without a credential."""


class Store:
    """One store directory."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()
        self._lock_path = self.path / "lock"
        self._port_path = self.path / "port"
        self.credentials = CredentialStore(self.path)

    @classmethod
    def at(cls, path: str | None) -> Store:
        """The store of this path, or the default one."""
        return cls(Path(path) if path else default_store())

    def check_path(self) -> None:
        """Raise ``Refused`` CONFIG_INVALID unless the store exists or can be created there."""
        with _check_usable(self.path):
            place = next(path for path in (self.path, *self.path.parents) if path.exists())
        if not (place.is_dir() and os.access(place, os.R_OK | os.W_OK | os.X_OK)):
            raise Refused(
                "CONFIG_INVALID",
                f"store {self.path}: {place} is not a writable directory",
                hint="choose another one with --store",
            )

    def create(self) -> None:
        """Create the directory for its owner only; one that others may enter is closed to them."""
        with _check_usable(self.path):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if stat.S_IMODE(self.path.stat().st_mode) & 0o077:
                self.path.chmod(0o700)

    def acquire(self) -> int:
        """The lock as an open file to be inherited; ``Refused`` STORE_IN_USE if it is held."""
        with _check_usable(self.path):
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        if not wait_until(lambda: _flock(lock, fcntl.LOCK_EX), _LOCK_PATIENCE_S):
            os.close(lock)
            raise self._in_use()
        return lock

    def is_locked(self) -> bool:
        """Whether a server runs on this store, or is starting."""
        with _check_usable(self.path):
            try:
                lock = os.open(self._lock_path, os.O_RDWR)
            except FileNotFoundError:
                return False
        try:
            return not _flock(lock, fcntl.LOCK_SH)
        finally:
            os.close(lock)

    def running_server(self) -> RunningServer | None:
        """The running server as it announced itself; valid only while the store is locked."""
        for path in self.path.glob("*.ports"):
            pid = int(path.stem.rpartition("_")[2])
            with suppress(ProcessLookupError, FileNotFoundError, msgspec.DecodeError, LookupError):
                os.kill(pid, 0)
                ports = msgspec.json.decode(path.read_bytes(), type=dict[str, list[str]])
                return RunningServer(pid, ports["nats"][0])
        return None

    def find_running(self) -> RunningServer | None:
        """The running server; ``None`` if there is none. The call waits for one that starts."""
        wait_until(lambda: not self.is_locked() or self.running_server(), _START_PATIENCE_S)
        return self.running_server() if self.is_locked() else None

    def remove_port_files(self) -> None:
        """Delete the announcements of killed servers. Only for the holder of the lock."""
        for path in self.path.glob("*.ports"):
            path.unlink()

    def credential(self, realm: str, role: Role, surface: str = "") -> Credential:
        """The realm's own credential of a role, made at first use; a running server accepts it."""
        made = self.credentials.ensure(realm)
        name = f"{role}-{surface}" if surface else role.value
        found = self.credentials.get(realm, name)
        if found is None and surface:
            found, made = self.credentials.create(realm, name, role, surface), True
        if found is None:  # Revoked: `ensure` makes only what never was.
            raise Refused(
                "CREDENTIAL_NOT_FOUND",
                f"realm {realm} has no credential {name!r}",
                hint=f"rookery auth create {name} --role {role}",
            )
        if made:
            self.reload(found, accepted=True)
        elif self._is_new(found):
            self._await(found, accepted=True)
        return found

    def _is_new(self, credential: Credential) -> bool:
        """Whether another process may have made it just now, and the server not read it yet."""
        made_ms = self.credentials.path(credential).stat().st_mtime_ns // 1_000_000
        return SystemClock().now_ms() - made_ms < _RELOAD_PATIENCE_S * 1_000

    def reload(self, credential: Credential, *, accepted: bool) -> None:
        """Let the running server read its users again; returns when it accepts the credential, or
        refuses it. Without a server there is nothing to do."""
        if server := self._server():
            os.kill(server.pid, signal.SIGHUP)
            self._await(credential, accepted=accepted)

    def _server(self) -> RunningServer | None:
        return self.running_server() if self.is_locked() else None

    def _await(self, credential: Credential, *, accepted: bool) -> None:
        server = self._server()
        if server is None:
            return
        address, user, password = server.address, credential.user, credential.password
        if not wait_until(
            lambda: is_accepted(address, user, password) is accepted, _RELOAD_PATIENCE_S
        ):
            raise Failed(
                "SERVER_UNREACHABLE",
                f"the server at {address} has not read its users again",
                hint=f"see {self.path / 'server.log'}",
            )

    def remove_token(self) -> None:
        """Delete the one token of older versions, which opens nothing any more."""
        (self.path / "token").unlink(missing_ok=True)

    def name_account(self, name: str) -> None:
        """Give the streams to the account of this name: the one with links, or the one without.
        Only for the holder of the lock."""
        folder = self.path / "jetstream"
        (former,) = {GLOBAL_ACCOUNT, REALM_ACCOUNT} - {name}
        if (folder / former).exists():
            if (folder / name).exists():
                text = f"{folder} has the streams of two accounts, {former} and {name}"
                raise Failed("SERVER_START_FAILED", text, hint="move one of them away")
            (folder / former).rename(folder / name)

    def port(self) -> int | None:
        """The port of the previous server; reusing it lets its clients reconnect."""
        try:
            return int(self._port_path.read_text())
        except (FileNotFoundError, ValueError):
            return None

    def write(self, name: str, text: str) -> Path:
        """Replace a file atomically, readable by its owner only."""
        path, draft = self.path / name, self.path / f".{name}.draft"
        draft.unlink(missing_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        draft.replace(path)
        return path

    def _in_use(self) -> Refused:
        server = self.running_server()
        if server is None:
            holder, hint = "another process that is starting a server", "wait for it, or stop it"
        else:
            holder = f"the nats-server with pid {server.pid} at {server.address}"
            hint = f"join it, by the same command with --url {server.address}, "
            hint += "or stop its node, which restarts a killed server"
        return Refused("STORE_IN_USE", f"{self.path} is used by {holder}", hint=hint)


@contextmanager
def _check_usable(store: Path) -> Iterator[None]:
    """Raise ``Refused`` CONFIG_INVALID if the file system does not allow a store there."""
    try:
        yield
    except OSError as error:
        raise Refused(
            "CONFIG_INVALID",
            f"store {store}: {error.strerror}",
            hint="choose another one with --store",
        ) from None


def default_store() -> Path:
    """The default store of an embedded server."""
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data, "rookery").expanduser()


def _flock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_TIMEOUT_S = 2.0


def is_accepted(address: str, user: str, password: str) -> bool:
    """``False`` also if no server replies there."""
    place = urlsplit(address)
    hello = {"user": user, "pass": password, "verbose": False, "pedantic": False}
    try:
        with socket.create_connection((place.hostname, place.port), _TIMEOUT_S) as client:
            client.sendall(b"CONNECT " + json.dumps(hello).encode() + b"\r\nPING\r\n")
            received = b""
            while b"PONG" not in received and b"-ERR" not in received:
                piece = client.recv(4_096)
                if not piece:
                    return False
                received += piece
    except OSError:
        return False
    return b"-ERR" not in received
