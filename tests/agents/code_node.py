"""A node whose model acts in programs, an approver, and what they leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from rookery.bus.client import Client
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.errors import CodedError
from tests.nodes import NodeProcess, node_on

__all__ = ["RESULT", "approver", "code_node", "ledger_lines", "work"]

CONFIG = """
[models]
default = "coder"
[models.coder]
provider = "scripted"
script = "tests.agents.code_script:answer"
"""
RESULT = [[3, 4], 14, "-1 is less than nothing", 15]
"""What the first program of the script comes to."""


def code_node(
    server: EmbeddedServer, folder: Path, realm: str, *options: str, **variables: str
) -> NodeProcess:
    (folder / "rookery.toml").write_text(CONFIG, encoding="utf-8")
    tools = ("--driver", "sandbox", "--tools", "tests.agents.code_tools:registry", *options)
    where = {"PYTHONPATH": str(Path(__file__).parents[2]), "LEDGER": str(folder / "ledger")}
    return node_on(server, realm, folder, *tools, **{**where, **variables})


def ledger_lines(folder: Path) -> list[str]:
    """What the tools have done."""
    file = folder / "ledger"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


@asynccontextmanager
async def approver(server: EmbeddedServer, realm: str, session: str) -> AsyncIterator[None]:
    """Approve every call of a session."""
    url = server.url_for(Role.OPERATOR, realm=realm)

    async def approve() -> None:
        async with Client(url, realm=realm) as client:
            while True:
                with suppress(CodedError, TimeoutError):
                    for waiting in await client.approvals(session):
                        await client.decide(waiting, "approved", actor="ann")
                await asyncio.sleep(0.1)

    task = asyncio.create_task(approve())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def work(client: Client, session: str, text: str, **more: Any) -> Any:
    """The result of a prompt whose model acts in programs."""
    answer = await client.run(session, {"prompt": text, "tool_mode": "code", **more})
    assert answer.error is None, answer
    return answer
