"""Programs reach the servers of the allowlist within its paths, methods and headers."""

from __future__ import annotations

import base64

import pytest

from rookery.actors.tools.http.allowlist import parse_url, resolve_redirect
from rookery.actors.tools.web.http import Allowed, http_tools
from rookery.schemas.run import SideEffect
from tests.tools.builtin.http_programs import DENIED, FAILED, INVALID, LARGE, Programs
from tests.tools.builtin.web_server import Web, answer, redirect

# --- what works -----------------------------------------------------------------------------------


def test_text_and_json_are_fetched(web: Web, programs: Programs):
    web.pages["/text"] = answer("gr\u00fc\u00df".encode())
    web.pages["/latin"] = answer(b"gr\xfc\xdf", "Content-Type: text/plain; charset=ISO-8859-1")
    web.pages["/json"] = answer(b'{"a": [1, null, "\\ud83e\\udd8e"]}')
    assert programs.call("fetch_text", f"{programs.origin}/text") == "gr\u00fc\u00df"
    assert programs.call("fetch_text", f"{programs.origin}/latin") == "gr\u00fc\u00df"
    assert programs.call("fetch_json", f"{programs.origin}/json?q=1") == {
        "a": [1, None, "\U0001f98e"]
    }
    assert web.asked[2].line == "GET /json?q=1 HTTP/1.1"


def test_a_fetched_page_must_exist_and_have_the_expected_type(web: Web, programs: Programs):
    web.pages["/bytes"] = answer(b"\xff")
    web.pages["/odd"] = answer(b"1", "Content-Type: text/plain; charset=utf-7")
    web.pages["/deep"] = answer(b"[" * 900)
    for path in ("/none", "/bytes", "/odd"):
        assert programs.code("fetch_text", programs.origin + path) == FAILED
    for path in ("/none", "/bytes", "/deep"):
        assert programs.code("fetch_json", programs.origin + path) == FAILED


def test_a_response_is_returned_whatever_its_status(web: Web, programs: Programs):
    web.pages["/"] = answer(b"no", "X-Why: a", "x-why: b", "Set-Cookie: id=1", status="503 Busy")
    web.pages["/bytes"] = answer(b"\xff\x00")
    got = programs.call("http_get", programs.origin)
    assert (got["status"], got["text"], got["base64"]) == (503, "no", None)
    assert got["url"] == f"{programs.origin}/"
    assert got["headers"] == {"content-length": "2", "x-why": "a, b"}
    got = programs.call("http_get", f"{programs.origin}/bytes")
    assert (got["text"], base64.b64decode(got["base64"])) == (None, b"\xff\x00")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_writing_sends_the_body_and_the_calls_idempotency_key(
    web: Web, programs: Programs, method: str
):
    web.pages["/orders"] = answer(b"made", status="201 Created")
    url = f"{programs.origin}/orders"
    headers = {"content-type": "application/json"}
    got = programs.call("http_send", method, url, text='{"n": 1}', headers=headers, key="op-7")
    assert (got["status"], got["text"]) == (201, "made")
    (asked,) = web.asked
    assert (asked.line, asked.body) == (f"{method} /orders HTTP/1.1", b'{"n": 1}')
    assert asked.headers["Idempotency-Key"] == "op-7"
    assert asked.headers["content-type"] == "application/json"
    assert asked.headers["Host"] == f"allowed.test:{web.port}"


def test_a_body_is_text_or_bytes_or_nothing(web: Web, programs: Programs):
    web.pages["/"] = answer()
    programs.call("http_send", "POST", programs.origin, base64="/wA=")
    programs.call("http_send", "POST", programs.origin)
    assert [asked.body for asked in web.asked] == [b"\xff\x00", b""]
    assert web.asked[1].headers["Content-Length"] == "0"
    for body in ({"text": "a", "base64": "YQ=="}, {"base64": "a"}, {"text": "\ud800"}):
        assert programs.code("http_send", "POST", programs.origin, **body) == INVALID
    assert programs.code("http_send", "POST", programs.origin, text="x" * 1001) == LARGE


def test_reading_sends_no_idempotency_key(web: Web, programs: Programs):
    web.pages["/"] = answer()
    programs.call("http_get", programs.origin, key="op-7")
    assert "Idempotency-Key" not in web.asked[0].headers


def test_capabilities_say_what_they_do_and_what_is_allowed(web: Web, programs: Programs):
    found = {c.name: (c.side_effect, c.idempotent) for c in programs.registry().capabilities()}
    assert found == {
        "fetch_json": (SideEffect.NETWORK, True),
        "fetch_text": (SideEffect.NETWORK, True),
        "http_get": (SideEffect.NETWORK, True),
        "http_send": (SideEffect.EXTERNAL_SYSTEM, False),
    }
    for tool in programs.registry():
        assert f"{programs.origin}/ (GET, POST" in tool.capability.description
        assert "url" in tool.capability.input_schema["required"]
        assert tool.async_mode


def test_there_are_no_tools_without_an_entry_and_none_to_write_without_a_writing_one():
    assert http_tools([]) == []
    read_only = http_tools([Allowed("https://allowed.test")])
    names = [tool.capability.name for tool in read_only]
    assert names == ["fetch_text", "fetch_json", "http_get"]


def test_the_environment_names_no_proxy(
    web: Web, programs: Programs, monkeypatch: pytest.MonkeyPatch
):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv(name.upper(), "http://127.0.0.1:9")
    web.pages["/"] = answer(b"direct")
    assert programs.call("fetch_text", programs.origin) == "direct"


# --- headers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("Host", "authorization", "Cookie", "Proxy-Authorization", "Content-Length"),
        *("Transfer-Encoding", "Connection", "Idempotency-Key", "X-Forwarded-For", "Expect"),
        *("accept\r\nHost", "accept ", "accept:", "", "\u212aeep", "TE", "Upgrade", "X-Api-Key"),
    ],
)
def test_a_header_that_programs_may_not_send_is_refused(web: Web, programs: Programs, name: str):
    assert programs.code("http_get", programs.origin, headers={name: "x"}) == DENIED
    assert programs.code("http_send", "POST", programs.origin, headers={name: "x"}) == DENIED
    assert web.asked == []


@pytest.mark.parametrize(
    "value",
    ["", " x", "x ", "x\r\nHost: evil", "x\ny", "x\0", "\u00fc", "x" * 5000, "x\r", "\ud800"],
)
def test_a_header_is_one_line_of_plain_text(web: Web, programs: Programs, value: str):
    assert programs.code("http_get", programs.origin, headers={"Accept": value}) == INVALID
    assert web.asked == []


def test_a_duplicate_header_is_refused(programs: Programs):
    headers = {"Accept": "a", "accept": "b"}
    assert programs.code("http_get", programs.origin, headers=headers) == INVALID


def test_wrong_arguments_are_type_errors(programs: Programs):
    assert programs.code("fetch_text") == "TYPE_ERROR"
    assert programs.code("fetch_text", 1) == "TYPE_ERROR"
    assert programs.code("http_get", programs.origin, headers={"Accept": 1}) == "TYPE_ERROR"
    assert programs.code("http_send", "GET", programs.origin) == "TYPE_ERROR"
    assert programs.code("http_send", "CONNECT", programs.origin) == "TYPE_ERROR"


# --- redirects ------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_to_an_allowed_url_is_followed(web: Web, programs: Programs, status: int):
    web.pages["/a"] = redirect("b?c=1#d", status)
    web.pages["/b"] = answer(b"there")
    got = programs.call("http_get", f"{programs.origin}/a", headers={"Accept": "x/y"})
    assert (got["text"], got["url"]) == ("there", f"{programs.origin}/b?c=1")
    assert [asked.headers["accept"] for asked in web.asked] == ["x/y", "x/y"]


@pytest.mark.parametrize(
    ("location", "code"),
    [
        ("http://other.test:{port}/", DENIED),
        ("//other.test:{port}/", DENIED),
        ("https://allowed.test:{port}/", DENIED),
        ("http://allowed.test:1/", DENIED),
        ("http://127.0.0.1:{port}/", DENIED),
        ("http://allowed.test:{port}@other.test/", DENIED),
        ("file:///etc/passwd", DENIED),
        ("ftp://allowed.test/", DENIED),
        ("/%2e%2e/x", DENIED),
        ("http://inner.test:{port}/", DENIED),
        ("http://[::1", FAILED),
        ("\\\\other.test\\", FAILED),
        ("http://allowed.test:{port}/\xfc", FAILED),
        ("javascript:alert(1)", FAILED),
        ("data:text/plain,x", FAILED),
    ],
)
def test_a_redirect_to_anything_else_is_refused(
    web: Web, programs: Programs, location: str, code: str
):
    programs.allow(f"http://inner.test:{web.port}")
    web.pages["/a"] = redirect(location.format(port=web.port))
    web.pages["/"] = answer(b"forbidden")
    assert programs.code("fetch_text", f"{programs.origin}/a") == code
    assert len(web.asked) == 1


def test_redirects_are_followed_five_times_at_most(web: Web, programs: Programs):
    web.pages["/5"] = answer(b"end")
    web.pages["/round"] = redirect("/round")
    for number in range(5):
        web.pages[f"/{number}"] = redirect(f"/{number + 1}")
    assert programs.call("fetch_text", f"{programs.origin}/0") == "end"
    assert programs.code("fetch_text", f"{programs.origin}/round") == FAILED
    assert len(web.asked) == 6 + 6


def test_a_writing_request_is_not_sent_again_to_where_it_is_redirected(
    web: Web, programs: Programs
):
    web.pages["/a"] = redirect("/b", 307)
    got = programs.call("http_send", "POST", f"{programs.origin}/a")
    assert (got["status"], got["headers"]["location"], len(web.asked)) == (307, "/b", 1)


def test_a_redirect_is_resolved_against_where_it_came_from():
    target = parse_url("https://allowed.test/a/b?c")
    assert resolve_redirect(target, "d").url == "https://allowed.test/a/d"
    assert resolve_redirect(target, "?e").url == "https://allowed.test/a/b?e"
    assert resolve_redirect(target, "//x.test").url == "https://x.test/"
