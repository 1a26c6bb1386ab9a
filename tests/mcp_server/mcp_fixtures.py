"""A realm with a node, its tools, and MCP clients of every kind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

from rookery.bus.roles import Role
from rookery.ops.config import Config, load
from rookery.ops.mcp_server import McpApprover
from rookery.ops.mcp_server.server import RealmMcpServer
from tests.nodes import NodeProcess
from tests.ops.fixtures import CommandLine

SESSION = "shop"
TOOLS = '''
import asyncio, os
from pathlib import Path
from rookery.actors import tool
from rookery.actors.tools import ToolRegistry

BOOK = Path(__file__).with_name("book.txt")

@tool(side_effect="read")
def price(item: str, currency: str = "EUR") -> str:
    """What an item costs."""
    return f"{len(item)} {currency}"

@tool(side_effect="write", idempotent=False, approval_policy="manual")
def pay(to: str, amount: int) -> str:
    """Pay an amount."""
    with BOOK.open("a") as book:
        book.write(f"{amount} {to}\\n")
    return f"paid {amount} to {to}"

@tool(side_effect="read", timeout_ms=60_000)
async def slow(seconds: float) -> float:
    """Takes its time."""
    await asyncio.sleep(seconds)
    return seconds

@tool(side_effect="read", sensitive=["key"])
def unlock(key: str) -> bool:
    """Whether it is the key."""
    return key == "sesame"

registry = ToolRegistry.of(price, pay, slow, unlock)
'''


class McpRealm:
    """One user's store, and the configuration that leads to it."""

    def __init__(self, home: Path) -> None:
        self.shell = CommandLine(home)
        self.home = home
        (home / "shoptools.py").write_text(TOOLS)

    @contextmanager
    def served(self, *arguments: str) -> Iterator[NodeProcess]:
        with self.shell.served("--tools", "shoptools:registry", *arguments) as node:
            yield node

    @property
    def config(self) -> Config:
        return load(environ=self.shell.environment, directory=self.home).config

    @property
    def paid(self) -> list[str]:
        book = self.home / "book.txt"
        return book.read_text().splitlines() if book.exists() else []

    def server(self, *, session: str = SESSION, approver: McpApprover | None = None) -> Any:
        return RealmMcpServer(self.config, session, approver)

    @asynccontextmanager
    async def client(
        self,
        *,
        mode: str = "auto",
        session: str = SESSION,
        approver: McpApprover | None = None,
        on_message: Callable[[Any], Awaitable[None]] | None = None,
    ) -> AsyncIterator[Client]:
        """A client beside the server, in this process."""
        server = self.server(session=session, approver=approver)
        client = Client(server.protocol, mode=mode, message_handler=on_message)
        async with server.open(), client:
            yield client

    @property
    def command(self) -> StdioServerParameters:
        """The server as an MCP host starts it."""
        arguments = ["-m", "rookery.ops.cli", "mcp", "--session", SESSION]
        return StdioServerParameters(
            command=os.sys.executable, args=arguments, env=self.shell.environment, cwd=self.home
        )


def scenario(work: Callable[[], Coroutine[Any, Any, None]], patience_s: float = 60.0) -> None:
    asyncio.run(asyncio.wait_for(work(), patience_s))


async def eventually(holds: Callable[[], Awaitable[bool]], patience_s: float = 30.0) -> None:
    async with asyncio.timeout(patience_s):
        while not await holds():
            await asyncio.sleep(0.05)


class Notices:
    """The progress notifications of a request."""

    def __init__(self) -> None:
        self.numbers: list[float] = []
        self.texts: list[str] = []
        self.has_any = asyncio.Event()

    async def __call__(self, number: float, _total: float | None, text: str | None) -> None:
        self.numbers.append(number)
        self.texts.append(text or "")
        self.has_any.set()


__all__ = ["SESSION", "McpRealm", "Notices", "Role", "eventually", "scenario"]
