"""Kill the server again and again under load and compare what was said with what is journaled.

Goal: what the inbox took and what was answered is journaled exactly once, nothing else is, and each
session keeps the order of its client. Method: a node and clients through both doors, SIGKILL of a
real nats-server that syncs before it acks.

    python -m tests.chaos.server_kills [kills] [commands]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.chaos.load import load
from tests.nodes import node_on
from tests.stock_client import stock

__all__ = ["Report", "run_campaign"]

REALM = "killed"
SESSIONS_A_DOOR = 12


class Report(msgspec.Struct):
    """What a campaign found; it raises if anything was lost, doubled or out of order."""

    kills: int = 0
    accepted: int = 0
    """Commands the inbox acknowledged."""
    answered: int = 0
    """Requests that were answered."""
    journaled: int = 0
    caught_up_ms: list[int] = []
    """From each kill until all that was vouched for before it was journaled."""
    stall_ms_max: int = 0
    """The longest a client waited for one command."""


async def run_campaign(folder: Path, *, kills: int, commands_min: int) -> Report:
    """``kills`` kills while at least so many commands are accepted or answered."""
    server = EmbeddedServer(folder / "store", admin=True)
    await asyncio.to_thread(server.start)
    try:
        with node_on(server, REALM, folder):
            return await _campaign(server, kills, commands_min)
    finally:
        await asyncio.to_thread(server.stop)


async def _campaign(server: EmbeddedServer, kills: int, commands_min: int) -> Report:
    report = Report(kills)
    async with (
        stock(server, REALM, Role.OPERATOR) as client,
        load(client, SESSIONS_A_DOOR) as running,
    ):
        for kill in range(1, kills + 1):
            await running.reaches(kill * commands_min // (kills + 1))
            began_s = time.monotonic()
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await running.catches_up()
            report.caught_up_ms.append(round((time.monotonic() - began_s) * 1000))
        await running.reaches(commands_min)
        await running.ends()
        report.journaled = await running.compare(server, REALM)
        report.accepted, report.answered = running.vouched("cmd"), running.vouched("api")
        report.stall_ms_max = round(running.stall_s * 1000)
    return report


def main() -> None:
    kills, commands_min = (int(argument) for argument in (sys.argv[1:] or ("5", "10000")))
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(run_campaign(Path(folder), kills=kills, commands_min=commands_min))
    print(msgspec.json.encode(report).decode())


if __name__ == "__main__":
    main()
