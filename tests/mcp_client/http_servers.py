"""Servers of the Model Context Protocol by HTTP for tests: one of the official SDK, and one by hand
that breaks what it can. Both in threads of this process, on loopback."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer

__all__ = ["HostileHttp", "hostile_http", "official_http"]

Json = dict[str, Any]
STATUS = {"broken": 503, "gone": 404}


@contextmanager
def official_http(port: int = 0) -> Iterator[int]:
    """The port of a server of the SDK."""
    server = MCPServer("official", instructions="an official one")

    @server.tool()
    def add(a: int, b: int) -> int:
        """Sum."""
        return a + b

    @server.tool()
    async def header(name: str, context: Context) -> str:
        """A header of the request."""
        request = context.request_context.request
        assert request is not None
        return str(request.headers.get(name, ""))

    @server.resource("notes://today")
    def today() -> str:
        return "buy tea"

    bound = socket.create_server(("127.0.0.1", port))
    app = server.streamable_http_app()
    running = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        yield bound.getsockname()[1]
    finally:
        running.should_exit = True
        thread.join()
        bound.close()


class HostileHttp:
    """What the hostile server knows."""

    def __init__(self, url: str) -> None:
        self.url, self.seen = url, list[str]()
        self.token = ""
        """The only one that it accepts; empty: it accepts everything."""
        self.tasks: dict[str, str] = {}
        """The status of each task that was begun."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    known: HostileHttp

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        self._send(405, b"")

    do_DELETE = do_GET

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        given = self.headers.get("Authorization", "")
        self.known.seen.append(f"{message['method']} {given}")
        if self.known.token and given != f"Bearer {self.known.token}":
            self._send(401, b"")
        elif "id" not in message:
            self._send(202, b"")
        else:
            self._reply(message, message.get("params", {}))

    def _reply(self, message: Json, params: Json) -> None:
        match message["method"]:
            case "initialize":
                version = params["protocolVersion"]
                info = {"name": "hostile", "version": "1"}
                known = {"tools": {}, "tasks": {"requests": {"tools": {"call": {}}}}}
                self._result(
                    message,
                    {"protocolVersion": version, "capabilities": known, "serverInfo": info},
                )
            case "tools/list":
                usual = {"inputSchema": {"type": "object"}}
                names = (
                    "drop",
                    "echo",
                    "encoded",
                    "endless",
                    "events",
                    "garbage",
                    "giant",
                    *STATUS,
                )
                task = {"name": "research", "execution": {"taskSupport": "required"}, **usual}
                tools = [*({"name": name, **usual} for name in names), task]
                self._result(message, {"tools": tools})
            case "tools/call" if "task" in params:
                name = f"task-{len(self.known.tasks)}"
                self.known.tasks[name] = "working"
                self._result(message, {"task": self._task(name)})
            case "tasks/get" | "tasks/cancel" if params["taskId"] in self.known.tasks:
                if message["method"] == "tasks/cancel":
                    self.known.tasks[params["taskId"]] = "cancelled"
                self._result(message, self._task(params["taskId"]))
            case "tasks/result":
                self._result(message, {"content": [{"type": "text", "text": "found"}]})
            case "tools/call":
                self._act(params["name"], message)
            case _:
                error = {"code": -32601, "message": "no such method"}
                body = {"jsonrpc": "2.0", "id": message["id"], "error": error}
                self._send(200, json.dumps(body).encode())

    def _task(self, name: str) -> Json:
        at = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z"}
        task = {"taskId": name, "status": self.known.tasks[name], "ttl": None, **at}
        return {**task, "pollInterval": 100}

    def _act(self, name: str, message: Json) -> None:
        match name:
            case "drop":
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
            case "giant":
                self._begin(200, "application/json", 100 << 20)
                self._write_until_refused(b'"' + b"x" * (1 << 20))
            case "endless":
                self._begin(200, "text/event-stream", 1 << 40)
                self._write_until_refused(b"data: " + b"x" * (1 << 20))
            case "events":
                self._begin(200, "text/event-stream", None)
                self.wfile.write(b": nothing comes\n\n")
                self.close_connection = True
            case "garbage":
                self._send(200, b"{]")
            case "encoded":
                self._send(200, b"\x1f\x8b", encoding="gzip")
            case "broken" | "gone":
                self._send(STATUS[name], b"")
            case _:
                self._result(message, {"content": [{"type": "text", "text": name}]})

    def _write_until_refused(self, part: bytes) -> None:
        self.close_connection = True
        try:
            for _ in range(100):
                self.wfile.write(part)
        except OSError:
            """The client has closed the connection."""

    def _result(self, message: Json, result: Json) -> None:
        body = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        self._send(200, json.dumps(body).encode())

    def _send(self, status: int, body: bytes, *, encoding: str = "") -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        if encoding:
            self.send_header("content-encoding", encoding)
        self.end_headers()
        self.wfile.write(body)

    def _begin(self, status: int, kind: str, length: int | None) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        if length is not None:
            self.send_header("content-length", str(length))
        self.end_headers()


@contextmanager
def hostile_http() -> Iterator[HostileHttp]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {}))
    server.daemon_threads = True
    known = HostileHttp(f"http://127.0.0.1:{server.server_address[1]}/mcp")
    server.RequestHandlerClass.known = known  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield known
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
