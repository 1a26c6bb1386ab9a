"""Clients that keep a thread busy and never come to the point, against the servers of a node."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from rookery.actors.keys.webhooks import WebhookKey
from rookery.bus.clock import wait_until
from rookery.ops.approval_dispatchers import PATH, WebhookCallback, WebhookCallbackServer
from rookery.ops.http_server import CONCURRENT_REQUESTS_MAX, HealthServer, HttpServer, Page

DEADLINE_S = 90.0
DRIP_S = 0.2


@contextmanager
def dripping(server: HttpServer, clients: int) -> Iterator[None]:
    """So many have begun a request and send a byte of it now and then, whatever comes."""
    ended = threading.Event()
    begun = [socket.create_connection(_address(server)) for _ in range(clients)]
    for client in begun:
        client.sendall(f"POST {PATH} HTTP/1.1\r\nDrip: ".encode())

    def drip(client: socket.socket) -> None:
        try:
            while not ended.wait(DRIP_S):
                client.sendall(b"x")
        except OSError:
            pass  # Hung up on.

    drips = [threading.Thread(target=drip, args=(client,)) for client in begun]
    for thread in drips:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for client, thread in zip(begun, drips, strict=True):
            thread.join()
            client.close()


def asked(server: HttpServer, method: str, path: str) -> int | None:
    """The status of the answer, if there is one."""
    connection = HTTPConnection(*_address(server), timeout=DEADLINE_S)
    try:
        connection.request(method, path, b"{}")
        return connection.getresponse().status
    except (HTTPException, OSError):
        return None
    finally:
        connection.close()


def has_ended(work: Callable[[], None]) -> bool:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    return not thread.is_alive()


def _address(server: HttpServer) -> tuple[str, int]:
    place = urlsplit(server.url)
    return str(place.hostname), int(place.port or 0)


def test_a_slow_client_does_not_delay_the_end():
    server = HealthServer("127.0.0.1", 0, {})
    with dripping(server, 3):
        assert has_ended(server.close)


def test_slow_clients_do_not_block_the_next_one_for_long():
    key = WebhookKey("b3RoZXI" * 8)
    callback = WebhookCallback(key, lambda: 0, lambda *_: None)
    with (
        WebhookCallbackServer("127.0.0.1", 0, callback) as server,
        dripping(server, CONCURRENT_REQUESTS_MAX),
    ):
        assert wait_until(lambda: asked(server, "POST", PATH), DEADLINE_S) == 401


def test_there_are_never_more_requests_in_work_than_threads():
    started, go_on = [], threading.Event()

    def page() -> Page:
        started.append(None)
        go_on.wait(DEADLINE_S)
        return Page(200, "text/plain", b"")

    answers: list[int | None] = []
    with HealthServer("127.0.0.1", 0, {"/slow": page}) as server:

        def ask() -> None:
            answers.append(asked(server, "GET", "/slow"))

        clients = [threading.Thread(target=ask) for _ in range(CONCURRENT_REQUESTS_MAX)]
        for client in clients:
            client.start()
        assert wait_until(lambda: len(started) == CONCURRENT_REQUESTS_MAX, DEADLINE_S)
        assert [asked(server, "GET", "/slow") for _ in range(5)] == [None] * 5
        go_on.set()
        for client in clients:
            client.join()
    assert len(started) == CONCURRENT_REQUESTS_MAX
    assert answers == [200] * CONCURRENT_REQUESTS_MAX


def test_what_was_asked_in_time_is_answered_though_the_server_closes():
    started, go_on = threading.Event(), threading.Event()

    def page() -> Page:
        started.set()
        go_on.wait(DEADLINE_S)
        return Page(200, "text/plain", b"")

    server = HealthServer("127.0.0.1", 0, {"/slow": page})
    answers: list[int | None] = []
    client = threading.Thread(target=lambda: answers.append(asked(server, "GET", "/slow")))
    client.start()
    assert started.wait(DEADLINE_S)
    closing = threading.Thread(target=server.close)
    closing.start()
    assert wait_until(lambda: asked(server, "GET", "/") is None, DEADLINE_S)
    go_on.set()
    closing.join()
    client.join()
    assert answers == [200]
