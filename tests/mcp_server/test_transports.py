"""The two transports: processes as MCP hosts start them, and HTTP with its token."""

from __future__ import annotations

import asyncio
import json
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from rookery.ops.cli import main
from rookery.ops.gateways import HttpAddress, read_tokens
from rookery.ops.mcp_server import HttpAccess, http_transport, serve_http
from rookery.schemas.errors import Refused
from tests.forkserver import fork
from tests.mcp_server.mcp_fixtures import SESSION, McpRealm, Notices, eventually, scenario
from tests.mcp_server.test_requests import call
from tests.node_packages import node_folder
from tests.nodes import rookery_here
from tests.ops.fixtures import Started

TOKEN = "x" * 32
INSPECTOR = "@modelcontextprotocol/inspector@2.12.0"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
ENDED_S = 90
INSPECTOR_S = 90


def request(number: int, name: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments, "_meta": {"progressToken": number}}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


class Host:
    """An MCP host that speaks plain JSON to a process."""

    def __init__(self, process: Started) -> None:
        self.process = process
        self.progress: list[dict[str, Any]] = []

    def send(self, *messages: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        for message in messages:
            self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        message: dict[str, Any] = json.loads(self.process.stdout.readline())
        return message

    def read_answer(self, number: int) -> dict[str, Any]:
        while (message := self.read()).get("id") != number:
            self.progress.append(message)
        answer: dict[str, Any] = message["result"]
        return answer


@contextmanager
def hosted(realm: McpRealm, *arguments: str) -> Iterator[Host]:
    with realm.shell.started("mcp", "--session", SESSION, *arguments) as process:
        host = Host(process)
        host.send(INITIALIZE, INITIALIZED)
        assert host.read_answer(1)["serverInfo"]["name"] == "rookery"
        yield host


# --- stdio ----------------------------------------------------------------------------------------


def test_the_official_client_uses_the_server_as_a_process_and_its_end_cancels_nothing(
    shop: McpRealm,
):
    async def work() -> None:
        notices = Notices()
        async with Client(shop.command) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert {"run_code", "price", "pay"} <= names
            result = await client.call_tool(
                "run_code",
                {"code": "print('säule')\nawait slow(0.5)\n1 + 1", "session": "process"},
                progress_callback=notices,
            )
            assert result.structured_content["result"] == 2
            assert "säule" in "".join(notices.texts)
            notices.has_any.clear()
            left = asyncio.ensure_future(
                client.call_tool(
                    "run_code",
                    {"code": "await slow(1)", "session": "left-close"},
                    progress_callback=notices,
                )
            )
            await notices.has_any.wait()
        await asyncio.gather(left, return_exceptions=True)
        await run_ends(shop, "left-close")

    scenario(work)


def test_a_run_continues_when_a_signal_ends_the_server(shop: McpRealm):
    with hosted(shop) as host:
        host.send(request(10, "run_code", code="await slow(1)", session="left-signal"))
        assert host.read()["method"] == "notifications/progress"  # The run has begun.
        host.process.send_signal(signal.SIGTERM)
        assert host.process.wait(ENDED_S) == 0
        assert host.process.stderr is not None
        assert host.process.stderr.read() == ""
    scenario(lambda: run_ends(shop, "left-signal"))


async def run_ends(realm: McpRealm, session: str) -> None:
    """Wait until the session's only run has ended as it would by itself."""
    async with realm.client() as client:

        async def is_done() -> bool:
            (run,) = (await call(client, "runs_list", session=session))["runs"]
            return bool(run["status"] == "ok")

        await eventually(is_done)


def test_what_is_no_message_costs_no_connection_and_an_endless_line_ends_it(shop: McpRealm):
    with hosted(shop) as host:
        assert host.process.stdin is not None
        host.process.stdin.write("no json\n[]\n\n{}\n")
        host.send(request(2, "run_code", code="40 + 2", session="noise"))
        assert host.read_answer(2)["structuredContent"]["result"] == 42
        with pytest.raises(BrokenPipeError):
            host.process.stdin.write("x" * (64 << 20))
        code = host.process.wait(ENDED_S)
        assert host.process.stderr is not None
        assert (code, "PAYLOAD_TOO_LARGE" in host.process.stderr.read()) == (3, True)


def test_an_empty_input_ends_the_server(shop: McpRealm):
    ended = rookery_here(shop.home, "mcp")
    assert (ended.code, ended.out, ended.err) == (0, "", "")


def test_the_official_inspector_calls_a_tool(shop: McpRealm, tmp_path: Path):
    program = tmp_path / "unused.mjs"
    program.write_text("")
    folder = node_folder("mcp-inspector", (INSPECTOR,), program)
    inspector = folder / "node_modules" / ".bin" / "mcp-inspector"
    store = f"ROOKERY_STORE={shop.shell.environment['ROOKERY_STORE']}"
    target = [shop.command.command, *shop.command.args]

    patience = ("--connect-timeout", str(INSPECTOR_S * 1_000))
    call = ("--method", "tools/call", "--tool-name", "price", "--tool-arg", "item=coffee")
    said = subprocess.run(
        [str(inspector), "--cli", "-e", store, *patience, *target, *call],
        env=shop.shell.environment,
        cwd=shop.home,
        capture_output=True,
        text=True,
        timeout=INSPECTOR_S,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["structuredContent"]["result"] == "6 EUR"


# --- http -----------------------------------------------------------------------------------------


@asynccontextmanager
async def by_http(realm: McpRealm, *origins: str) -> AsyncIterator[str]:
    """The server in this process, at a port of its own."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve_http(
            realm.server(),
            HttpAccess(HttpAddress.of("0"), {"mcp": TOKEN.encode()}, origins),
            ready.set_result,
        )
    )
    await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
    try:
        yield ready.result() if ready.done() else serving.result()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def bearer(token: str = TOKEN, **headers: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        headers={"Authorization": f"Bearer {token}"} | headers, timeout=30, trust_env=False
    )


@asynccontextmanager
async def http_client(realm: McpRealm, era: str) -> AsyncIterator[Client]:
    async with by_http(realm) as url, bearer() as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode=era) as client:
            yield client


@pytest.mark.parametrize("era", ["auto", "legacy"])
def test_the_official_client_uses_the_server_by_http(shop: McpRealm, era: str):
    async def work() -> None:
        async with http_client(shop, era) as client:
            notices = Notices()
            code = "print('one')\nawait slow(0.5)\n3"
            result = await client.call_tool(
                "run_code",
                {"code": code, "session": f"http-{era}"},
                progress_callback=notices,
            )
            assert result.structured_content["result"] == 3
            assert "one" in "".join(notices.texts)
            assert (await call(client, "price", item="tea"))["result"] == "3 EUR"

    scenario(work)


@pytest.mark.parametrize("era", ["auto", "legacy"])
def test_a_request_that_is_cancelled_by_http_cancels_its_run(shop: McpRealm, era: str):
    async def work() -> None:
        session = f"http-cancelled-{era}"
        async with http_client(shop, era) as client:
            notices = Notices()
            arguments = {"code": "print('a')\nawait slow(50)", "session": session}
            asked = asyncio.ensure_future(
                client.call_tool(
                    "run_code",
                    arguments | {"timeout_ms": 60_000},
                    progress_callback=notices,
                )
            )
            await notices.has_any.wait()
            asked.cancel()

            async def is_cancelled() -> bool:
                (run,) = (await call(client, "runs_list", session=session))["runs"]
                return bool(run["status"] == "cancelled")

            await eventually(is_cancelled)

    scenario(work)


def test_http_requests_without_the_token_or_from_foreign_pages_are_refused(shop: McpRealm):
    async def status(url: str, *, token: str = TOKEN, **headers: str) -> int:
        accepts = {"accept": "application/json, text/event-stream"}
        async with bearer(token, **headers) as http:
            return (await http.post(url, json=INITIALIZE, headers=accepts)).status_code

    async def work() -> None:
        async with by_http(shop, "https://tools.example.com") as url:
            assert await status(url) == 200
            assert await status(url, token="y" * 32) == 401
            assert await status(url, token=f"{TOKEN}x") == 401
            assert await status(url, Origin="https://evil.example.com") == 403
            assert await status(url, Origin="http://127.0.0.1:5173") == 200
            assert await status(url, Origin="https://tools.example.com") == 200
            assert await status(url, Host="evil.example.com") == 421
            async with httpx2.AsyncClient(trust_env=False) as http:
                asks = {"Access-Control-Request-Method": "POST"}
                for page, is_allowed in (("https://tools.example.com", True), ("null", False)):
                    answer = await http.options(url, headers=asks | {"Origin": page})
                    allows = answer.headers.get("access-control-allow-origin")
                    assert (allows == page) is is_allowed
                refused = await http.post(url, json=INITIALIZE)
                assert (refused.status_code, refused.json()["error"]["code"]) == (
                    401,
                    "UNAUTHORIZED",
                )

    scenario(work)


def test_sessions_by_http_are_bounded(shop: McpRealm, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_transport, "SESSIONS_MAX", 3)

    async def work() -> None:
        accepts = {"accept": "application/json, text/event-stream"}
        async with by_http(shop) as url, bearer(**accepts) as http:
            answers = [await http.post(url, json=INITIALIZE) for _ in range(4)]
            assert {answer.status_code for answer in answers[:3]} == {200}
            assert answers[3].status_code == 503
            ended = answers[0].headers["mcp-session-id"]
            await http.delete(url, headers={"mcp-session-id": ended})
            assert (await http.post(url, json=INITIALIZE)).status_code == 200

    scenario(work)


def test_a_server_by_http_ends_with_a_signal(shop: McpRealm, tmp_path: Path):
    secret = tmp_path / "token"
    secret.write_text(f"{TOKEN}\n")
    secret.chmod(0o600)
    arguments = ("mcp", "--http", "127.0.0.1:0", "--token-file", str(secret), "--json")
    with (tmp_path / "log").open("wb") as log:
        environment = shop.shell.environment
        process = fork(arguments, env=environment, cwd=shop.home, stderr=log.fileno())
    with process.stdout:
        ready = json.loads(process.stdout.readline())
        assert ready["url"].startswith("http://127.0.0.1:")
        process.send_signal(signal.SIGTERM)
        assert process.wait(ENDED_S) == 0


# --- options --------------------------------------------------------------------------------------


def test_wrong_options_are_refused_with_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROOKERY_STORE", str(tmp_path / "store"))
    secret = tmp_path / "token"
    secret.write_text("short")
    cases = [
        (["--http", "8765"], "--token-file"),
        (["--token-file", str(secret)], "--http"),
        (["--http", "x", "--token-file", str(secret)], "HOST:PORT"),
        (["--http", "0", "--token-file", str(secret)], "chmod 600"),
        (["--http", "0", "--token-file", str(tmp_path / "none")], "openssl rand"),
        (["--session", "a/b"], "INVALID_SESSION_ID"),
        (["--approver-key", str(tmp_path / "none.pem")], "none.pem"),
    ]
    for arguments, says in cases:
        assert main(["mcp", *arguments]) in (2, 3), arguments
        assert says in capsys.readouterr().err, arguments
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert main(["mcp"]) == 3
    said = capsys.readouterr().err
    assert "EXTRA_MISSING" in said
    assert "pip install 'rookery[mcp]'" in said


def test_a_token_is_long_and_private(tmp_path: Path):
    secret = tmp_path / "token"
    secret.write_text(f"{TOKEN}\n")
    secret.chmod(0o600)
    assert read_tokens(secret, client="mcp") == {"mcp": TOKEN.encode()}
    secret.chmod(stat.S_IRUSR | stat.S_IRGRP)
    with pytest.raises(Refused, match="other users"):
        read_tokens(secret, client="mcp")
    for text in ("", "short", "two words " * 8):
        secret.chmod(0o600)
        secret.write_text(text)
        with pytest.raises(Refused, match="no token"):
            read_tokens(secret, client="mcp")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("8765", ("127.0.0.1", 8765)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("[::1]:80", ("::1", 80)),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, address: tuple[str, int]):
    assert HttpAddress.of(text) == address


@pytest.mark.parametrize("text", ["", ":80", "host:", "host:x", "host:65536", "http://host"])
def test_what_is_no_address_is_refused(text: str):
    with pytest.raises(Refused, match="HOST:PORT"):
        HttpAddress.of(text)
