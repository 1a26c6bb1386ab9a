"""Folders and servers for programs, by options alone: wired, described and checked."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from rookery.ops.config import NodeConfig
from rookery.ops.node_tools import registry_of
from rookery.schemas.errors import Refused
from tests.ops.fixtures import CommandLine


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        self.wfile.write(b"a page")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there.
        """Log nothing."""


@pytest.fixture
def web() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/docs"
        server.shutdown()
        thread.join()


def test_a_program_reads_a_mount_and_a_server_named_by_options(tmp_path: Path, web: str):
    user, folder = CommandLine(tmp_path), tmp_path / "shared"
    folder.mkdir()
    (folder / "a.txt").write_text("from the host")
    rule = f"{web} 127.0.0.0/8"
    options = ("--mount", f"data={folder}:rw", "--mount", f"docs={folder}", "--allow-http", rule)
    with user.served(*options):
        read = f"[read_text('/data/a.txt'), await fetch_text('{web}/x')]"
        assert user.rookery("run", "-e", read).out == '["from the host","a page"]\n'
        user.rookery("run", "-e", "write_text('/data/b.txt', 'from a program')")
        assert (folder / "b.txt").read_text() == "from a program"
        refused = user.rookery("run", "-e", "write_text('/docs/c.txt', 'x')")
        assert "PERMISSION_DENIED" in refused.err
        elsewhere = user.rookery("run", "-e", f"await fetch_text('{web[:-5]}/other')")
        assert "PERMISSION_DENIED" in elsewhere.err
        assert "/data (read and write), /docs (read only)" in user.rookery(
            "tools", "describe", "read_text"
        ).out.replace("\n", " ")
        again = user.rookery("run", "-e", "1", "--mount", f"data={folder}")
        assert (again.code, f"rookery up --mount data={folder}" in again.err) == (2, True)
    alone = user.rookery("run", "-e", "read_text('/data/a.txt')", "--mount", f"data={folder}")
    assert alone.out == '"from the host"\n'


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"mounts": ("data",)}, "is not NAME=DIR"),
        ({"mounts": ("data=/no/such/folder",)}, "/no/such/folder is no directory"),
        ({"mounts": ("a=/tmp", "a=/")}, "a second time"),
        ({"allow_http": ("",)}, "is not [METHOD"),
        ({"allow_http": ("ftp://example.com",)}, "node.allow_http: 'ftp://example.com'"),
        ({"allow_http": ("FETCH=https://example.com",)}, "allows FETCH"),
        ({"allow_http": ("https://example.com 10.0.0.0/99",)}, "10.0.0.0/99"),
        ({"allow_http": ("http://127.0.0.1:8000/",)}, "no public address"),
        ({"allow_http": ("http://localhost 10.0.0.0/8",)}, "no public address"),
        ({"allow_http": ("https://example.com header=X-Key",)}, "names no credential"),
        ({"allow_http": ("https://example.com binding=a query=k header=h",)}, "no credential"),
        ({"allow_http": ("https://example.com binding=a place=x",)}, "names no credential"),
        ({"allow_http": ("https://example.com binding=a:b:c",)}, "NAME:PROFILE"),
        ({"allow_http": ("http://example.com binding=a",)}, "not encrypted"),
    ],
)
def test_a_folder_or_a_rule_that_cannot_be_is_refused(node: dict[str, tuple[str]], words: str):
    with pytest.raises(Refused) as refused:
        registry_of(NodeConfig(**node))
    assert refused.value.code == "CONFIG_INVALID"
    assert words in refused.value.message
    assert refused.value.hint


def test_the_configuration_and_the_doctor_show_and_check_them(tmp_path: Path):
    user = CommandLine(tmp_path)
    (user.home / "rookery.toml").write_text('[node]\nmounts = ["data=missing"]\n')
    shown = user.rookery("config", "show")
    assert "data=missing" in shown.out
    found = user.rookery("doctor", "--json")
    tools = [one for one in found.json["findings"] if one["check"] == "tools"]
    assert (tools[0]["verdict"], tools[0]["code"]) == ("fail", "CONFIG_INVALID")
    started = user.rookery("up", "--driver", "sandbox")
    assert started.code == 2
    assert "missing is no directory" in started.err


def test_rules_of_a_binding_are_tools_of_their_own():
    rules = (
        "https://a.example",
        "https://b.example binding=git-hub",
        "GET+POST=https://c.example 10.0.0.0/8 binding=git-hub",
        "https://d.example binding=maps query=key",
    )
    tools = {
        one.capability.name: one.capability for one in registry_of(NodeConfig(allow_http=rules))
    }
    assert sorted(tools) == [
        *("fetch_json", "fetch_text"),
        *("git_hub_fetch_json", "git_hub_fetch_text", "git_hub_http_get", "git_hub_http_send"),
        *("http_get", "maps_fetch_json", "maps_fetch_text", "maps_http_get"),
    ]
    assert tools["git_hub_http_send"].binding == "git-hub"
    assert tools["maps_http_get"].binding == "maps"
    assert not tools["http_get"].binding
    assert "b.example" in tools["git_hub_http_get"].description
    assert "b.example" not in tools["http_get"].description
