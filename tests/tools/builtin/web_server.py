"""A web server on loopback with its own threads; each test provides the pages.

A page is a function that gets the connection when the request has been read; it may send any bytes.
The server records the requests, and all threads have ended when ``stop`` returns.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

__all__ = ["CERTIFICATE", "Page", "ReceivedRequest", "Web", "answer", "bytes_of", "redirect"]

CERTIFICATE = Path(__file__).with_name("certificate.pem")
"""For ``allowed.test`` and 127.0.0.1, until 2120, with its key; no other client trusts it."""


class ReceivedRequest(NamedTuple):
    """A received request."""

    line: str
    headers: dict[str, str]
    body: bytes


class Line:
    """The connection that a page writes to."""

    def __init__(self, connection: socket.socket, ended: threading.Event) -> None:
        self._connection, self.ended = connection, ended

    def send(self, data: bytes) -> None:
        self._connection.sendall(data)

    def pause(self, seconds: float) -> None:
        """Wait for the next part of a slow reply; returns at once when the test is over."""
        if self.ended.wait(seconds):
            raise ConnectionAbortedError


Page = Callable[[Line], None]


def bytes_of(*pieces: bytes) -> Page:
    """A page that sends these bytes."""

    def page(line: Line) -> None:
        for piece in pieces:
            line.send(piece)

    return page


def answer(body: bytes = b"", *headers: str, status: str = "200 OK") -> Page:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return bytes_of("\r\n".join(head).encode() + b"\r\n\r\n" + body)


def redirect(location: str, status: int = 302) -> Page:
    return answer(b"moved", f"Location: {location}", status=f"{status} Moved")


class Web:
    """Pages by path; a missing one is a 404."""

    def __init__(self, *, tls: bool = False) -> None:
        self.pages: dict[str, Page] = {}
        self.asked: list[ReceivedRequest] = []
        self.gone = threading.Semaphore(0)
        """Released for every connection that the client ended before its page did."""
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if tls else None
        if self._tls is not None:
            self._tls.load_cert_chain(CERTIFICATE)
        self._ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._listen)]
        self._threads[0].start()

    def stop(self) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _listen(self) -> None:
        while not self._ended.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(30)
        with contextlib.ExitStack() as stack:
            stack.callback(connection.close)
            try:
                if self._tls is not None:
                    connection = self._tls.wrap_socket(connection, server_side=True)
                    stack.callback(connection.close)
                self._reply(connection)
                if self._tls is not None:
                    connection.unwrap()
            except OSError:
                self.gone.release()

    def _reply(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as stream:
            line = stream.readline().decode().strip()
            if not line:
                return
            headers = {}
            while (header := stream.readline().decode().strip()) != "":
                name, _, value = header.partition(": ")
                headers[name] = value
            body = stream.read(int(headers.get("Content-Length", 0)))
        self.asked.append(ReceivedRequest(line, headers, body))
        path = line.split(" ")[1].partition("?")[0]
        page = self.pages.get(path, answer(b"none", status="404 Not Found"))
        page(Line(connection, self._ended))
