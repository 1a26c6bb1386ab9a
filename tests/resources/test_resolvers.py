"""Files and servers are read within the limits of the tools, and cut at the budget."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from rookery.actors.resources import CaptureStore
from rookery.actors.resources.host_resolvers import FileResolver, HttpResolver
from rookery.actors.tools.files import Mount, Mounts
from rookery.actors.tools.http import HttpTransport
from rookery.actors.tools.web import Allowed, HttpReader
from rookery.bus.clock import entropy
from rookery.bus.memory import MemoryBus, MemoryServer
from rookery.bus.sealed_secrets import KEY_BYTES, KeyRing, RingSeal
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import CodedError
from rookery.schemas.resources import ResolvedResource
from rookery.schemas.seed.content import ContentScope
from rookery.schemas.seed.refs import PrivacyClass, SourceRef, TrustClass
from rookery.schemas.seed.resource import ResourceReadRequest
from tests.tools.builtin.conftest import web
from tests.tools.builtin.http_programs import LOOPBACK, addresses_of
from tests.tools.builtin.web_server import Line, Web, answer, redirect

__all__ = ["web"]

CAP = 1 << 20
DENIED, INVALID, ABSENT = "PERMISSION_DENIED", "RESOURCE_URI_INVALID", "RESOURCE_NOT_FOUND"


def store() -> CaptureStore:
    seal = RingSeal(KeyRing([b"k" * KEY_BYTES]), "default", entropy)
    return CaptureStore(MemoryBus(MemoryServer(lambda: 0)).blobs, CAP, seal)


def resolve(
    resolver: FileResolver | HttpResolver, uri: str, max_bytes: int = 100
) -> ResolvedResource:
    source = SourceRef.new("test")
    request = ResourceReadRequest(uri=uri, source=source, policy_refs=(), max_bytes=max_bytes)
    return asyncio.run(resolver.resolve(request))


def code(resolver: FileResolver | HttpResolver, uri: str, max_bytes: int = 100) -> str:
    with pytest.raises(CodedError) as caught:
        resolve(resolver, uri, max_bytes)
    return caught.value.code


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> FileResolver:
    """``data`` in a folder with a secret beside it."""
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    return FileResolver(Mounts({"data": Mount(tmp_path / "data")}), store())


def test_a_file_is_described_by_what_was_captured(files: FileResolver, tmp_path: Path):
    (tmp_path / "data" / "deep" / "a b.json").write_bytes(b"{}")
    found = resolve(files, "file://data/deep/a%20b.json")
    assert found.content is not None
    assert (found.content_ref.as_str(), found.byte_len, found.truncated) == (
        f"blob:{digest_bytes(b'{}')}",
        2,
        False,
    )
    assert (found.content.mime, found.content.artifact_ref, found.content.size_bytes) == (
        "application/json",
        "/data/deep/a b.json",
        2,
    )
    assert (found.content.scope, found.content.trust_class, found.privacy) == (
        ContentScope.HOST_WORKSPACE,
        TrustClass.HOST_PROVIDED,
        PrivacyClass.CONTENT_REFS_ONLY,
    )
    assert found.parser_version == "file.resource.resolver.v1"
    assert "a b" not in found.redacted_summary


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("data/../secret", DENIED),
        ("data/%2e%2e/secret", DENIED),
        ("data/deep/..%2f..%2f../secret", DENIED),
        ("data/%2e%2e%2fsecret", DENIED),
        ("../secret", DENIED),
        ("other/secret", DENIED),
        ("/etc/passwd", INVALID),
        ("", DENIED),
        ("data\\..\\secret", INVALID),
        ("data/%00", DENIED),
        ("data/%ff", INVALID),
        ("data/a%0ab", INVALID),
        ("data/" + "x" * 5_000, INVALID),
        ("data/none", ABSENT),
        ("data/deep", "TOOL_ERROR"),
        ("data", "TOOL_ERROR"),
    ],
)
def test_no_path_leads_out_of_the_mount(files: FileResolver, path: str, expected: str):
    assert code(files, f"file://{path}") == expected


def test_links_devices_and_pipes_are_not_read(files: FileResolver, tmp_path: Path):
    data = tmp_path / "data"
    (data / "link").symlink_to(tmp_path / "secret")
    (data / "up").symlink_to(tmp_path)
    (data / "null").symlink_to("/dev/zero")
    os.mkfifo(data / "pipe")
    for path in ("link", "up/secret", "null", "pipe"):
        assert code(files, f"file://data/{path}") == DENIED


def test_a_gigabyte_is_cut_at_the_budget_without_being_read(files: FileResolver, tmp_path: Path):
    with (tmp_path / "data" / "huge").open("wb") as file:
        file.write(b"begin")
        file.truncate(1 << 30)
    found = resolve(files, "file://data/huge", 5)
    assert (found.content_ref.as_str(), found.truncated) == (f"blob:{digest_bytes(b'begin')}", True)
    assert resolve(files, "file://data/huge", CAP).byte_len == CAP
    assert code(files, "file://data/huge", CAP + 1) == "RESOURCE_TOO_LARGE"


# --- servers --------------------------------------------------------------------------------------


def server(web: Web, *more: Allowed) -> HttpResolver:
    transport = HttpTransport(resolve=addresses_of)
    allowed = (Allowed(f"http://allowed.test:{web.port}/open", ("GET",), LOOPBACK), *more)
    return HttpResolver("http", HttpReader(allowed, transport), store())


def test_a_page_is_described_by_where_it_came_from(web: Web):
    origin = f"http://allowed.test:{web.port}/open"
    web.pages["/open/old"] = redirect("/open/new")
    web.pages["/open/new"] = answer(b"<p>", "Content-Type: Text/HTML; charset=x", 'ETag: W/"1"')
    found = resolve(server(web), f"{origin}/old")
    assert found.content is not None
    assert (found.content.artifact_ref, found.content.mime, found.etag, found.uri) == (
        f"{origin}/new",
        "text/html",
        'W/"1"',
        f"{origin}/old",
    )
    assert (found.content.scope, found.content.trust_class) == (
        ContentScope.EXTERNAL,
        TrustClass.EXTERNAL,
    )


def test_only_allowed_servers_at_permitted_addresses_are_asked(web: Web):
    port = web.port
    inner = Allowed(f"http://inner.test:{port}"), Allowed(f"http://cloud.test:{port}")
    reader = server(web, *inner, Allowed(f"http://other.test:{port}", ("POST",), LOOPBACK))
    web.pages["/open/away"] = redirect(f"http://other.test:{port}/")
    web.pages["/open/meta"] = redirect("http://169.254.169.254/latest/meta-data")
    web.pages["/open/local"] = redirect("file:///etc/passwd")
    for uri in (
        f"http://inner.test:{port}/",
        f"http://cloud.test:{port}/",
        f"http://other.test:{port}/",
        f"http://allowed.test:{port}/closed",
        f"http://allowed.test:{port}/open/../closed",
        f"http://allowed.test:{port}/open/%2e%2e/closed",
        f"http://user@allowed.test:{port}/open",
        f"http://allowed.test:{port}/open/away",
        f"http://allowed.test:{port}/open/meta",
        f"http://allowed.test:{port}/open/local",
        "http://127.0.0.1/",
        "http://[::1]/",
    ):
        assert code(reader, uri) == DENIED, uri
    assert code(reader, f"http://allowed.test:{port}/op en") == INVALID
    assert {one.line.split()[1] for one in web.asked} <= {"/open/away", "/open/meta", "/open/local"}


def test_a_page_that_is_not_there_differs_from_a_server_that_fails(web: Web):
    origin = f"http://allowed.test:{web.port}/open"
    web.pages["/open/gone"] = answer(b"", status="410 Gone")
    web.pages["/open/down"] = answer(b"", status="503 Busy")
    assert code(server(web), f"{origin}/none") == ABSENT
    assert code(server(web), f"{origin}/gone") == ABSENT
    assert code(server(web), f"{origin}/down") == "TOOL_ERROR"


def endless(line: Line) -> None:
    line.send(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        line.send(b"x" * 4_096)


def chunked(line: Line) -> None:
    line.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        line.send(b"10\r\n" + b"y" * 16 + b"\r\n")


def gigabyte(line: Line) -> None:
    line.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n")
    while True:
        line.send(b"z" * 65_536)


def test_endless_and_huge_bodies_are_cut_and_their_connections_ended(web: Web):
    for name, page in (("e", endless), ("c", chunked), ("g", gigabyte)):
        web.pages[f"/open/{name}"] = page
        found = resolve(server(web), f"http://allowed.test:{web.port}/open/{name}", 1_000)
        assert (found.byte_len, found.truncated) == (1_000, True)
        assert web.gone.acquire(timeout=90)


def test_a_body_of_exactly_the_budget_is_whole_and_one_that_ends_early_an_error(web: Web):
    web.pages["/open/whole"] = answer(b"x" * 100)
    web.pages["/open/short"] = lambda line: line.send(
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nabc"
    )
    origin = f"http://allowed.test:{web.port}/open"
    assert resolve(server(web), f"{origin}/whole").truncated is False
    assert code(server(web), f"{origin}/short") == "TOOL_ERROR"
