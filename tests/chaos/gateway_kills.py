"""A gateway that is killed under streams: ``python -m tests.chaos.gateway_kills [STREAMS KILLS]``.

Each client sends its message and follows its task. Where the connection is cut, it sends the same
message again, with the id of the last event that it has. At the end a gateway that has served none
of them says what there was to see.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from tests.a2a.a2a_realms import (
    PROGRAM,
    A2aRealm,
    Gateway,
    RpcError,
    events,
    message_of,
    state_of,
    text_of,
)
from tests.stock_client import until

__all__ = ["StreamClient", "follow_streams", "read_again"]

STEPS = 4
ENDS = ("COMPLETED", "FAILED", "CANCELED", "REJECTED")
RETRY_S = 0.05
PAUSE_S = (0.1, 1.0)
"""Between the start of a gateway and its end."""


class StreamClient:
    """One client and its task."""

    def __init__(self, message_id: str, *, is_held: bool = False) -> None:
        """``is_held``: its task does not end before its realm releases it."""
        self.text = f"steps {STEPS}" + (" held" if is_held else "")
        self.params = {"message": message_of(self.text, message_id)}
        self.message_id = message_id
        self.events: list[tuple[str, dict[str, Any]]] = []
        """Behind the first, which is the task itself, each with its id."""
        self.cuts = 0

    @property
    def steps(self) -> list[str]:
        updates = [event["artifactUpdate"] for _, event in self.events if "artifactUpdate" in event]
        return [text_of(update["artifact"]) for update in updates]

    @property
    def has_ended(self) -> bool:
        return bool(self.events) and state_of(self.events[-1][1]) in ENDS

    async def follow(self, gateway: Gateway) -> None:
        """Until the task has ended, through all cuts."""
        last = ""
        while not self.has_ended:
            try:
                async with gateway.http() as http:
                    found = events(http, "SendStreamingMessage", self.params, after=last)
                    async for last, event in found:
                        if "task" not in event:
                            self.events.append((last, event))
            except (httpx.HTTPError, RpcError):
                self.cuts += 1
                await asyncio.sleep(RETRY_S)


async def follow_streams(
    realm: A2aRealm, streams: int, kills: int, *, seed: int
) -> list[StreamClient]:
    """Follow so many tasks at once, while so many gateways are killed. The first gateway ends under
    a stream for sure, as a task is held until then."""
    clients = [
        StreamClient(f"stream-{seed}-{number}", is_held=number == 0) for number in range(streams)
    ]
    chance, port = random.Random(seed), 0
    async with asyncio.TaskGroup() as following:
        for number in range(kills + 1):
            with realm.gateway(port=port) as gateway:
                port = gateway.port
                if number == 0:
                    for client in clients:
                        following.create_task(client.follow(gateway))
                    await until(lambda: any(one.events for one in clients), "a stream has begun")
                    continue
                realm.release()
                if number < kills:
                    await asyncio.sleep(chance.uniform(*PAUSE_S))
                else:
                    await until(lambda: all(one.has_ended for one in clients), "all tasks end")
    return clients


async def read_again(gateway: Gateway, clients: list[StreamClient]) -> list[list[Any]]:
    """The events of the same tasks, as another gateway has them."""
    found = []
    async with gateway.http() as http:
        for client in clients:
            whole = events(http, "SendStreamingMessage", client.params, after="0.0.0")
            found.append([event async for event in whole])
    return found


async def campaign(realm: A2aRealm, streams: int, kills: int) -> int:
    clients = await follow_streams(realm, streams, kills, seed=1)
    with realm.gateway() as gateway:
        again, runs = await read_again(gateway, clients), realm.counted
    wrong = [
        one.message_id
        for one, whole in zip(clients, again, strict=True)
        if one.events != whole or runs.count(one.message_id) != 1
    ]
    cuts = sum(one.cuts for one in clients)
    print(f"{streams} streams, {kills} kills, {cuts} connections cut or refused")
    print(f"with an event lost or doubled, or not run exactly once: {wrong or 'none'}")
    return 1 if wrong or not cuts else 0


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:]] or [50, 10]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home = A2aRealm(Path(folder))
        with home.agent(PROGRAM):
            code = asyncio.run(campaign(home, *numbers))
    sys.exit(code)
