"""No server can cost more time or memory than the limits permit, whatever it answers."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Callable

import pytest

from rookery.actors.tools import ToolCallContext
from rookery.actors.tools.web.http import HttpTransport
from tests.tools.builtin.http_programs import FAILED, LARGE, LATE, LOOPBACK, Programs, addresses_of
from tests.tools.builtin.web_server import Line, Web, answer, bytes_of, redirect

# --- hostile servers ------------------------------------------------------------------------------


def endless(start: bytes, piece: bytes, pause_s: float = 0.0) -> Callable[[Line], None]:
    def page(line: Line) -> None:
        line.send(start)
        while not line.ended.is_set():
            line.send(piece)
            if pause_s:
                line.pause(pause_s)

    return page


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
HOSTILE_ANSWERS = {
    "nothing": (b"", FAILED),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.2\r\n", FAILED),
    "HTTP of the future": (b"HTTP/7.0 200 OK\r\n\r\n", FAILED),
    "no status": (b"HTTP/1.1 OK\r\n\r\n", FAILED),
    "a status out of range": (b"HTTP/1.1 42 OK\r\n\r\n", FAILED),
    "another protocol": (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n", FAILED),
    "an early hint": (b"HTTP/1.1 103 Early\r\n\r\n", FAILED),
    "a long status line": (b"HTTP/1.1 200 " + b"x" * 70_000, FAILED),
    "a long header": (OK + b"A: " + b"x" * 70_000, FAILED),
    "many headers": (OK + b"A: x\r\n" * 200 + b"\r\n", FAILED),
    "large headers": (OK + (b"A: " + b"x" * 8000 + b"\r\n") * 9 + b"\r\n", LARGE),
    "less than its length": (OK + b"Content-Length: 9\r\n\r\n1234", FAILED),
    "two lengths": (OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n12", FAILED),
    "a negative length": (OK + b"Content-Length: -1\r\n\r\n12", FAILED),
    "a length with a sign": (OK + b"Content-Length: +2\r\n\r\n12", FAILED),
    "a length of words": (OK + b"Content-Length: two\r\n\r\n12", FAILED),
    "an absurd length": (OK + b"Content-Length: 999999999999\r\n\r\n12", LARGE),
    "a body above the limit": (OK + b"Content-Length: 1001\r\n\r\n" + b"x" * 1001, LARGE),
    "a large body of no length": (OK + b"\r\n" + b"x" * 1001, LARGE),
    "a large body in small chunks": (CHUNKED + b"1\r\nx\r\n" * 1001 + b"0\r\n\r\n", LARGE),
    "an absurd chunk": (CHUNKED + b"ffffffffffff\r\n" + b"x" * 2000, LARGE),
    "an absurd chunk that ends": (CHUNKED + b"ffffffffffff\r\nx", FAILED),
    "a negative chunk": (CHUNKED + b"-1\r\n" + b"x" * 50, FAILED),
    "a chunk of words": (CHUNKED + b"many\r\nx\r\n0\r\n\r\n", FAILED),
    "an empty chunk size": (CHUNKED + b"\r\nx\r\n0\r\n\r\n", FAILED),
    "a chunk without an end": (CHUNKED + b"5\r\nabc", FAILED),
    "chunks without an end": (CHUNKED + b"3\r\nabc\r\n", FAILED),
    "a long chunk size": (CHUNKED + b"1;" + b"x" * 70_000, FAILED),
    "chunks and a length": (
        OK + b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n",
        FAILED,
    ),
    "an unknown encoding": (OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", FAILED),
}


@pytest.mark.parametrize("what", HOSTILE_ANSWERS)
def test_a_malformed_response_is_a_coded_failure(web: Web, programs: Programs, what: str):
    said, code = HOSTILE_ANSWERS[what]
    web.pages["/"] = bytes_of(said)
    assert programs.code("http_get", programs.origin) == code


def test_a_body_of_exactly_the_limit_is_read(web: Web, programs: Programs):
    body = b"x" * 998  # And its quotes.
    web.pages["/length"] = answer(body)
    web.pages["/chunks"] = bytes_of(
        CHUNKED
        + b"1f4;a=b\r\n"
        + body[:500]
        + b"\r\n1F2\r\n"
        + body[500:]
        + b"\r\n0\r\nT: x\r\n\r\n"
    )
    web.pages["/close"] = bytes_of(b"HTTP/1.0 200 OK\r\n\r\n" + body)
    web.pages["/continued"] = bytes_of(b"HTTP/1.1 100 Go on\r\n\r\n" + OK + b"\r\n" + body)
    for path in ("/length", "/chunks", "/close", "/continued"):
        assert programs.call("fetch_text", programs.origin + path) == body.decode()


ENDLESS = {
    "silence": endless(b"", b"", 0.01),
    "a slow status line": endless(b"", b"H", 0.01),
    "slow headers": endless(OK, b"A: x\r\n", 0.01),
    "a slow body": endless(OK + b"Content-Length: 100000\r\n\r\n", b"x", 0.01),
    "a slow body of no length": endless(OK + b"\r\n", b"x", 0.01),
    "slow chunks": endless(CHUNKED, b"1\r\nx\r\n", 0.01),
    "a slow chunk size": endless(CHUNKED, b"0", 0.01),
    "slow trailers": endless(CHUNKED + b"0\r\n", b"A: x\r\n", 0.01),
    "always: go on": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.001),
    "endless trailers": endless(CHUNKED + b"0\r\n", b"A: x\r\n" * 1000),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_the_deadline_ends_an_endless_response(web: Web, programs: Programs, what: str):
    web.pages["/"] = ENDLESS[what]
    for timeout_ms in (200, 2_000, 20_000):
        programs.hurry(timeout_ms)
        assert programs.code("fetch_text", programs.origin) == LATE
        if web.asked:  # On a busy machine a deadline may pass before the request is sent.
            break
    if what != "silence":  # The server sends nothing, so it does not notice the end.
        assert web.gone.acquire(timeout=90)
    assert_no_thread_stays()


@pytest.mark.parametrize("start", [OK + b"\r\n", CHUNKED + b"fffffffffff\r\n"])
def test_the_size_limit_ends_an_endless_body(web: Web, programs: Programs, start: bytes):
    web.pages["/"] = endless(start, b"x" * 10_000)
    assert programs.code("fetch_text", programs.origin) == LARGE
    assert web.gone.acquire(timeout=90)
    assert_no_thread_stays()


def test_one_deadline_counts_for_all_redirects(web: Web, programs: Programs):
    programs.hurry()

    def slowly(line: Line) -> None:
        line.pause(0.07)
        redirect("/")(line)

    web.pages["/"] = slowly
    assert programs.code("fetch_text", programs.origin) == LATE
    assert len(web.asked) <= 4


def test_the_deadline_ends_the_wait_for_a_silent_name_server(web: Web, programs: Programs):
    programs.hurry()
    heard = threading.Event()

    def silent(_host: str, _port: int) -> list[ipaddress.IPv4Address]:
        heard.wait(90)
        return addresses_of("allowed.test", 0)

    programs.resolve = silent
    assert programs.code("fetch_text", programs.origin) == LATE
    heard.set()
    assert_no_thread_stays()
    assert web.asked == []


def test_a_cancelled_call_ends_its_connection(web: Web, programs: Programs):
    reached = threading.Event()

    def page(line: Line) -> None:
        reached.set()
        endless(OK + b"Content-Length: 900\r\n\r\n", b"x", 0.02)(line)

    web.pages["/"] = page
    tool = programs.registry().get("fetch_text")
    assert tool is not None

    async def cancelled() -> None:
        call = asyncio.ensure_future(tool.call(ToolCallContext("", [programs.origin], {})))
        await asyncio.to_thread(reached.wait, 20)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(cancelled())
    assert web.gone.acquire(timeout=90)
    assert_no_thread_stays()


def assert_no_thread_stays() -> None:
    for thread in threading.enumerate():
        if thread.name == "rookery-http":
            thread.join(90)
            assert not thread.is_alive()


# --- TLS ------------------------------------------------------------------------------------------


def test_https_needs_a_certificate_for_the_host(secure_web: Web):
    programs = Programs(secure_web, "https")
    secure_web.pages["/"] = answer(b"sealed")
    secure_web.pages["/closed"] = bytes_of(b"HTTP/1.0 200 OK\r\n\r\nsealed")
    assert programs.call("fetch_text", programs.origin) == "sealed"
    assert programs.call("fetch_text", f"{programs.origin}/closed") == "sealed"


def test_a_certificate_of_another_name_is_refused(secure_web: Web):
    programs = Programs(secure_web, "https")
    programs.allow(f"https://other.test:{secure_web.port}", *LOOPBACK)
    assert programs.code("fetch_text", f"https://other.test:{secure_web.port}") == FAILED
    assert secure_web.asked == []


def test_an_untrusted_certificate_is_refused(secure_web: Web):
    programs = Programs(secure_web, "https")
    programs.tls = HttpTransport().tls
    assert programs.code("fetch_text", programs.origin) == FAILED
    assert secure_web.asked == []


def test_a_cut_tls_body_without_a_length_is_a_failure(secure_web: Web):
    programs = Programs(secure_web, "https")

    def cut(line: Line) -> None:
        line.send(b"HTTP/1.0 200 OK\r\n\r\nhalf of")
        raise ConnectionAbortedError

    secure_web.pages["/"] = cut
    assert programs.code("fetch_text", programs.origin) == FAILED


def test_a_handshake_without_an_answer_ends_in_time(web: Web):
    programs = Programs(web, "https")
    programs.hurry()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        origin = f"https://allowed.test:{listener.getsockname()[1]}"
        programs.allow(origin, *LOOPBACK)
        assert programs.code("fetch_text", origin) == LATE
    assert_no_thread_stays()
