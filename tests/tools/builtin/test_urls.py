"""Access is decided by one strict parser of URLs and by every address of the host."""

from __future__ import annotations

import asyncio
import ipaddress
from typing import Any

import pytest

from rookery.actors.tools import ToolCallContext, ToolError, ToolRegistry
from rookery.actors.tools.http.allowlist import METHODS, is_public, parse_url
from rookery.actors.tools.web.http import Allowed, HttpTransport, http_tools
from rookery.schemas.errors import Refused
from tests.tools.builtin.http_programs import (
    DENIED,
    FAILED,
    INVALID,
    LOOPBACK,
    Programs,
    addresses_of,
)
from tests.tools.builtin.web_server import Web, answer

# --- hostile URLs ---------------------------------------------------------------------------------

HOSTILE = {
    "": INVALID,
    "allowed.test": INVALID,
    "//allowed.test/": INVALID,
    "/path": INVALID,
    "https:/allowed.test/": INVALID,
    "https:allowed.test": INVALID,
    "https:///allowed.test/": INVALID,
    "https://": INVALID,
    "https:///": INVALID,
    "https://:443/": INVALID,
    " https://allowed.test/": INVALID,
    "https://allowed.test/ ": INVALID,
    "https://allowed.test/\n": INVALID,
    "https://allowed.test/\r\nHost: evil.test": INVALID,
    "ht\ttps://allowed.test/": INVALID,
    "https://allowed.test\0.evil.test/": INVALID,
    "https://allowed.test\t.evil.test/": INVALID,
    "javascript:alert(1)": INVALID,
    "data:text/plain,x": INVALID,
    "file:///etc/passwd": DENIED,
    "ftp://allowed.test/": DENIED,
    "gopher://allowed.test:70/_x": DENIED,
    "unix://var/run/docker.sock": DENIED,
    "https+unix://allowed.test/": DENIED,
    "http://allowed.test/": DENIED,
    "https://allowed:x@evil/": DENIED,
    "https://allowed.test@evil.test/": DENIED,
    "https://allowed.test:443@evil.test/": DENIED,
    "https://user@allowed.test/": DENIED,
    "https://:@allowed.test/": DENIED,
    "https://@allowed.test/": DENIED,
    "https://evil.test#@allowed.test/": INVALID,
    "https://evil.test/#@allowed.test/": INVALID,
    "https://evil.test?@allowed.test/": DENIED,
    "https://evil.test/@allowed.test/": DENIED,
    "https://allowed.test#": INVALID,
    "https://allowed.test\\@evil.test/": INVALID,
    "https:\\\\allowed.test\\": INVALID,
    "https://evil.test\\.allowed.test/": INVALID,
    "https://allowed.test./": INVALID,
    "https://.allowed.test/": INVALID,
    "https://allowed..test/": INVALID,
    "https://-allowed.test/": INVALID,
    "https://*.test/": INVALID,
    "https://allowed%2etest/": INVALID,
    "https://allowed.test%2f.evil.test/": INVALID,
    "https://allowed.test%00.evil.test/": INVALID,
    "https://allowed.test%40evil.test/": INVALID,
    "https://\u0430llowed.test/": INVALID,
    "https://allowed\u3002test/": INVALID,
    "https://\uff41llowed.test/": INVALID,
    "https://evil.test\uff0f.allowed.test/": INVALID,
    "https://allowed.test\u2100evil.test/": INVALID,
    "https://xn--llowed-4ve.test/": DENIED,
    f"https://{'a' * 64}.test/": INVALID,
    f"https://{'a.' * 126}test/": INVALID,
    "https://evil.test/": DENIED,
    "https://allowed.test.evil.test/": DENIED,
    "https://evilallowed.test/": DENIED,
    "https://sub.allowed.test/": DENIED,
    "https://test/": DENIED,
    "https://allowed.test:/": INVALID,
    "https://allowed.test:0/": INVALID,
    "https://allowed.test:0443/": INVALID,
    "https://allowed.test:+443/": INVALID,
    "https://allowed.test:443:443/": INVALID,
    "https://allowed.test:65536/": INVALID,
    "https://allowed.test:99999999/": INVALID,
    "https://allowed.test:\uff14\uff14\uff13/": INVALID,
    "https://allowed.test:80/": DENIED,
    "https://allowed.test:8443/": DENIED,
    "https://127.0.0.1/": DENIED,
    "https://127.1/": INVALID,
    "https://2130706433/": INVALID,
    "https://0x7f000001/": INVALID,
    "https://0x7f.0.0.1/": INVALID,
    "https://0177.0.0.1/": INVALID,
    "https://127.0.0.1./": INVALID,
    "https://127.0.0.256/": INVALID,
    "https://1.2.3.4.5/": INVALID,
    "https://[::1]/": DENIED,
    "https://[::ffff:127.0.0.1]/": DENIED,
    "https://[fe80::1%25lo]/": INVALID,
    "https://[fe80::1%lo]/": INVALID,
    "https://[::1/": INVALID,
    "https://::1/": INVALID,
    "https://[allowed.test]/": INVALID,
    "https://[::1].allowed.test/": INVALID,
    "https://[[::1]]/": INVALID,
    "https://allowed.test/a b": INVALID,
    "https://allowed.test/\u00fc": INVALID,
    "https://allowed.test/<x>": INVALID,
    "https://allowed.test/%": INVALID,
    "https://allowed.test/%zz": INVALID,
    "https://allowed.test/?q=%2": INVALID,
    "https://allowed.test/%00": INVALID,
    "https://allowed.test/%0d%0aHost:evil": INVALID,
    "https://allowed.test/%2525252525": INVALID,
    "https://allowed.test/" + "a" * 8192: INVALID,
    "https://allowed.test/../x": DENIED,
    "https://allowed.test/./x": DENIED,
    "https://allowed.test/%2e%2e/x": DENIED,
    "https://allowed.test/.%2E/x": DENIED,
    "https://allowed.test/a%2f..%2fx": DENIED,
    "https://allowed.test/..%5cx": DENIED,
    "https://allowed.test/%252e%252e/x": DENIED,
    "https://allowed.test/..;/x": DENIED,
    "https://scoped.test/": DENIED,
    "https://scoped.test/v11": DENIED,
    "https://scoped.test/V1": DENIED,
    "https://scoped.test/%761": DENIED,
    "https://scoped.test//v1": DENIED,
    "https://scoped.test/v1/../admin": DENIED,
    "https://scoped.test/v1%2f..%2fadmin": DENIED,
    "https://scoped.test/v1;/../admin": DENIED,
    "https://scoped.test?/v1": DENIED,
}


def no_lookup(host: str, port: int) -> list[ipaddress.IPv4Address]:
    pytest.fail(f"somebody wanted to reach {host}:{port}")


@pytest.fixture(scope="module")
def strict() -> ToolRegistry:
    allowed = [Allowed("https://allowed.test", METHODS), Allowed("https://scoped.test/v1", METHODS)]
    return ToolRegistry.of(*http_tools(allowed, transport=HttpTransport(resolve=no_lookup)))


@pytest.mark.parametrize(("url", "code"), HOSTILE.items(), ids=map(str, range(len(HOSTILE))))
def test_a_hostile_url_is_refused_with_its_code_before_any_lookup(
    strict: ToolRegistry, url: str, code: str
):
    for name, args in (("fetch_text", [url]), ("http_get", [url]), ("http_send", ["POST", url])):
        tool = strict.get(name)
        assert tool is not None
        with pytest.raises(ToolError) as refusal:
            asyncio.run(awaited(tool.call(ToolCallContext(name, list(args), {}))))
        assert refusal.value.code == code


async def awaited(answer: Any) -> Any:
    return await answer


def test_the_table_has_its_promised_length():
    assert len(HOSTILE) >= 40


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("HTTPS://Allowed.TEST", "https://allowed.test/"),
        ("https://allowed.test:443/a?b=/../c&d[]=1", "https://allowed.test/a?b=/../c&d[]=1"),
        ("http://allowed.test:443", "http://allowed.test:443/"),
        ("https://allowed.test/a//b;c/..d/%20", "https://allowed.test/a//b;c/..d/%20"),
        ("https://xn--bcher-kva.test/", "https://xn--bcher-kva.test/"),
        ("https://[0:0::0001]:8443/x", "https://[::1]:8443/x"),
        ("https://10.0.0.1?q", "https://10.0.0.1/?q"),
        ("https://a_b.test/", "https://a_b.test/"),
    ],
)
def test_a_proper_url_has_one_spelling_and_keeps_it(text: str, url: str):
    assert parse_url(text).url == url
    assert parse_url(url) == parse_url(text)


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v1/a", "/v1?q=1", "/v1/a%2fb"])
def test_an_entry_covers_the_urls_below_its_path(web: Web, programs: Programs, path: str):
    programs.allowed = [Allowed(f"{programs.origin}/v1", networks=LOOPBACK)]
    web.pages[path.partition("?")[0]] = answer(b"in")
    assert programs.call("fetch_text", programs.origin + path) == "in"


def test_an_entry_covers_its_methods_only(web: Web, programs: Programs):
    programs.allowed = [Allowed(programs.origin, ("PUT",), LOOPBACK)]
    programs.allow(f"{programs.origin}/read", *LOOPBACK)
    for method in ("POST", "PATCH", "DELETE"):
        assert programs.code("http_send", method, programs.origin) == DENIED
    assert programs.code("fetch_text", programs.origin) == DENIED
    assert web.asked == []
    assert programs.call("http_send", "PUT", f"{programs.origin}/read")["status"] == 404


@pytest.mark.parametrize(
    "entry",
    [
        Allowed("allowed.test"),
        Allowed("https://user@allowed.test"),
        Allowed("https://allowed.test/?q=1"),
        Allowed("https://*.test"),
        Allowed("https://allowed.test", ("TRACE",)),
        Allowed("https://allowed.test", ("get",)),
        Allowed("https://allowed.test", networks=("10.0.0.1/8",)),
        Allowed("https://allowed.test", networks=("inside",)),
    ],
)
def test_an_ambiguous_entry_is_refused(entry: Allowed):
    with pytest.raises(Refused, match="CONFIG_INVALID"):
        http_tools([entry])


# --- addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["inner.test", "cloud.test", "mixed.test"])
def test_a_name_at_an_address_outside_the_networks_is_refused(
    web: Web, programs: Programs, host: str
):
    programs.allow(f"http://{host}:{web.port}")
    web.pages["/"] = answer(b"inside")
    assert programs.code("fetch_text", f"http://{host}:{web.port}/") == DENIED
    assert web.asked == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "[::1]", "10.0.0.7"])
def test_an_entry_at_an_inner_address_must_name_its_network(host: str):
    with pytest.raises(Refused, match=r"CONFIG_INVALID.*no public address.*network"):
        http_tools([Allowed(f"http://{host}:8000/")])
    networks = ("127.0.0.0/8", "0.0.0.0/32", "::1/128", "10.0.0.0/8")
    assert http_tools([Allowed(f"http://{host}:8000/", networks=networks)])


def test_a_network_is_named_by_entry(web: Web, programs: Programs):
    programs.allow(f"http://other.test:{web.port}", "10.0.0.0/8")
    assert programs.code("fetch_text", f"http://other.test:{web.port}/") == DENIED


def test_the_address_that_was_checked_is_the_one_connected_to(web: Web, programs: Programs):
    web.pages["/"] = answer(b"first")
    answers = iter([addresses_of("127.0.0.1", 0), addresses_of("127.0.0.9", 0)])
    programs.resolve = lambda *_: next(answers)
    assert programs.call("fetch_text", programs.origin) == "first"
    assert next(answers) == addresses_of("127.0.0.9", 0)


def test_the_next_address_is_tried_when_one_does_not_answer(web: Web, programs: Programs):
    programs.allow(f"http://second.test:{web.port}", *LOOPBACK)
    web.pages["/"] = answer(b"second")
    assert programs.call("fetch_text", f"http://second.test:{web.port}") == "second"


def test_a_name_without_an_address_and_a_port_without_a_server_are_failures(programs: Programs):
    programs.allow("http://empty.test", *LOOPBACK)
    programs.allow("http://127.0.0.1:9", *LOOPBACK)
    assert programs.code("fetch_text", "http://empty.test/") == FAILED
    assert programs.code("fetch_text", "http://127.0.0.1:9/") == FAILED


# fmt: off
NEAR_OR_SPECIAL = (
    "0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "127.255.255.255", "169.254.169.254",
    "172.16.0.1", "192.0.0.8", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1",
    "203.0.113.9", "224.0.0.1", "240.0.0.1", "255.255.255.255", "::", "::1", "::127.0.0.1",
    "::ffff:10.0.0.1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::1",
    "100::1", "2001::1", "2001:db8::1", "2002:7f00:1::", "3fff::1", "5f00::1", "fc00::1",
    "fd00:ec2::254", "fe80::1", "fe80::1%lo", "fec0::1", "ff02::1",
)
# fmt: on
PUBLIC = ("1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101")


@pytest.mark.parametrize("address", NEAR_OR_SPECIAL)
def test_a_near_special_or_tunnel_address_is_not_public(address: str):
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_the_internet_at_large_is_public(address: str):
    assert is_public(ipaddress.ip_address(address))
