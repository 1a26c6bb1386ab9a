"""Kill the node at every place where a request to an agent elsewhere could be lost or repeated.

The agent is on the official SDK's server, which executes a message as often as it gets it. Another
node takes the place of the killed one. A request has then one task at the agent and one end here,
and the program that asked has its answer.

    python -m tests.chaos.agent_kills [times each] [--minutes M] [--cells WORD ...]
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, aclosing, closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec

from rookery.actors.kernel.executors.failpoints import AGENT_FAILPOINTS
from rookery.bus.client import Client
from rookery.bus.ports import Filter
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.errors import CodedError, Refused
from tests.a2a.stock_agents import StockAgent
from tests.chaos.cells import Campaign, Verdict, options, places, run_campaign
from tests.nodes import NotReady, has_died, replace_node
from tests.peers.peer_realms import PeerRealm

__all__ = ["NETWORKS", "agent_realm", "ask_until_killed"]

STEPS: Final = ("append_sent", "appended", "acked", "evolved", "effect_started")
PASSES: Final = {**dict.fromkeys(STEPS, 8), **dict.fromkeys(AGENT_FAILPOINTS, 1)}
"""How often a request passes each failpoint at least."""
NETWORKS: Final = {"ROOKERY_PEERS_NETWORKS": "127.0.0.0/8"}
ALIAS: Final = "weather-agent"
CODE: Final = f'await send_request("{ALIAS}", "ask", "work")'
_ENDS: Final = ("response_ended", "request_timed_out", "request_send_failed")
_sessions = count(1)


@contextmanager
def agent_realm(server: EmbeddedServer, folder: Path, url: str) -> Iterator[PeerRealm]:
    """A realm without a node that has accepted the agent at ``url``."""
    realm = PeerRealm(server, "agents", folder)
    realm.environment |= NETWORKS
    with realm.node("--peers", **NETWORKS) as node:
        realm.card()
        accept = ("peers", "accept", "--a2a", url, "--as", ALIAS, "--approval", "none")
        ended = realm.rookery(*accept)
        assert ended.code == 0, ended
        node.stop()
    yield realm


async def ask_until_killed(realm: PeerRealm, agent: StockAgent, failpoint: str) -> list[str]:
    """A program asks on a node that dies at ``failpoint``, and its successor; what is wrong."""
    mortal = realm.node("--peers", ROOKERY_FAILPOINT=failpoint, **NETWORKS)
    successor, session = realm.node("--peers", **NETWORKS), f"planner{next(_sessions)}"
    with closing(mortal), closing(successor):
        with suppress(NotReady):  # It may come to its point while it starts.
            await asyncio.to_thread(mortal.start)
        replacing = asyncio.create_task(replace_node(mortal, successor))
        async with realm.client() as client:
            result = await _ask(client, session)
            assert await has_died(mortal), f"no node was killed at {failpoint}"
            await replacing
            found = await _facts(client, session)
    return _faults(result, found, agent)


async def _ask(client: Client, session: str) -> Any:
    """The result of the program, on whichever node."""
    while True:
        try:
            handle = await client.submit(session, CODE, message_id=f"asks-{session}")
            run_id = await handle.accepted()
            break
        except CodedError as error:
            if isinstance(error, Refused):
                raise
        await asyncio.sleep(0.1)
    async with aclosing(client.events("turn", session, run=run_id)) as feed:
        async for fact in feed:
            if fact["type"] in ("turn.completed.v1", "turn.failed.v1"):
                return fact["result"]
    raise AssertionError("the facts ended")


async def _facts(client: Client, session: str) -> list[dict[str, Any]]:
    pages = client.journal.scan(Filter("peer", session))
    bodies = [stored.body async for page in pages for stored in page]
    return [fact for body in bodies for fact in msgspec.json.decode(body)]


def _faults(result: Any, found: list[dict[str, Any]], agent: StockAgent) -> list[str]:
    kinds = Counter(fact["type"].split(".")[1] for fact in found)
    (request_id,) = [fact["corr_id"] for fact in found if "request_sent" in fact["type"]]
    executed = agent.executed.count(request_id)
    ends = sum(kinds[kind] for kind in _ENDS)
    return [
        f"{what}: {there}, not {right}"
        for what, there, right in (
            ("the result", result.get("result"), "sunny: work"),
            ("tasks at the agent", executed, 1),
            ("ends on record", ends, 1),
            ("tasks on record", kinds["remote_task"], 1),
            ("responses that match nothing", kinds["response_unmatched"], 0),
        )
        if there != right
    ]


async def campaign(asked: Campaign) -> None:
    with (
        StockAgent() as agent,
        EmbeddedServer(asked.folder / "store", admin=True) as server,
        ExitStack() as opened,
    ):
        of_agent = agent_realm(server, asked.folder / "realm", agent.url)
        realm = await asyncio.to_thread(opened.enter_context, of_agent)

        async def verdict(cell: str, folder: Path) -> Verdict:
            del folder
            return Verdict(await ask_until_killed(realm, agent, cell))

        await asked.judge(places(PASSES, asked.options.times), verdict)


if __name__ == "__main__":
    sys.exit(run_campaign(options("tests.chaos.agent_kills", times=2), campaign))
