"""The canary: a file, an environment variable and two listening sockets of the test process.

The process can access all of them, so the canary detects a probe that escapes.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

__all__ = ["Canary", "canary"]

_VARIABLE = "ROOKERY_CANARY"
_OUTSIDE = "/var/tmp"
"""Sessions have a ``/tmp`` of their own."""


class Canary:
    def __init__(self, folder: Path, stream: socket.socket, datagram: socket.socket) -> None:
        self.secret = uuid4().hex
        self._folder, self._stream, self._datagram = folder, stream, datagram
        self.file = folder / "canary"
        self.file.write_text(self.secret)
        os.environ[_VARIABLE] = self.secret
        self._before = self._state()

    @property
    def inputs(self) -> dict[str, Any]:
        """The names by which a probe finds the canary."""
        return {
            "path": str(self.file),
            "folder": str(self._folder),
            "port": self._stream.getsockname()[1],
            "variable": _VARIABLE,
        }

    def harm(self) -> list[str]:
        """The changes that a probe made."""
        now = self._state()
        changed = [name for name in now if now[name] != self._before[name]]
        return changed + [f"{name} was heard of" for name in self._heard()]

    def _state(self) -> dict[str, Any]:
        status = self.file.stat() if self.file.exists() else None
        return {
            "file": status and (self.file.read_bytes(), status.st_mtime_ns, status.st_mode),
            "folder": sorted(os.listdir(self._folder)),
            "environment": os.environ.get(_VARIABLE),
            "working directory": os.getcwd(),
        }

    def _heard(self) -> Iterator[str]:
        for name, wait in (("stream", self._stream.accept), ("datagram", self._datagram.recv)):
            try:
                wait(*([1] if name == "datagram" else []))
            except BlockingIOError:
                continue
            yield name


@contextmanager
def canary() -> Iterator[Canary]:
    """Both sockets listen on the same port. The folder is one that no session has."""
    before = os.environ.get(_VARIABLE)
    stream, datagram = _sockets()
    with tempfile.TemporaryDirectory(dir=_OUTSIDE) as folder, stream, datagram:
        try:
            yield Canary(Path(folder), stream, datagram)
        finally:
            os.environ.pop(_VARIABLE)
            if before is not None:  # Another canary of this process.
                os.environ[_VARIABLE] = before


def _sockets() -> tuple[socket.socket, socket.socket]:
    """Another process may use the number of the stream's port for datagrams: then the next one."""
    while True:
        stream = socket.create_server(("127.0.0.1", 0))
        datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            datagram.bind(stream.getsockname())
        except OSError:
            stream.close()
            datagram.close()
            continue
        stream.setblocking(False)
        datagram.setblocking(False)
        return stream, datagram
