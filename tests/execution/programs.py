"""Programs that a node executes, and all facts and results of them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from rookery.bus.client.sync import SyncClient
from rookery.bus.roles import Role
from tests.execution.realm_fixture import Serving
from tests.stock_client import Answer, Fields, Stock, stock, until

__all__ = ["ENDS", "Programs", "ended", "play_programs"]

ENDS = (
    "turn.completed.v1",
    "turn.failed.v1",
    "turn.cancelled.v1",
    "session.input_cancelled.v1",
    "session.input_refused.v1",
)
RESTS = ("waiting_for_approval", "interrupted")


class Programs:
    """One session of a client."""

    def __init__(self, client: Stock, session: str) -> None:
        self.client, self.session = client, session
        self.messages: list[list[Fields]] = []
        self.follows = False

    async def follow(self) -> None:
        """Collect all facts of the session, in order."""
        self.follows = True

        async def seen(message: Any) -> None:
            self.messages.append(json.loads(message.data))

        await self.client.watch(f"rookery.{self.client.realm}.ev.*.{self.session}", seen)

    async def run(self, code: str, **body: Any) -> Fields:
        """Run a program and wait for its result."""
        return (await self.answer(code, **body)).body

    async def answer(self, code: str, mode: str = "", **body: Any) -> Answer:
        """The reply to a run, once this client has read the run's end, or that it is parked: the
        reply may arrive before these facts."""
        headers = {"Rookery_Mode": mode} if mode else {}
        if "wall_ms" not in body.get("limits", {}):
            body.setdefault("timeout_ms", 60_000)  # On a busy machine 5 s may be too short.
        told = await self.client.ask("run", self.session, {"code": code, **body}, **headers)
        run_id = told.body.get("run_id")
        if self.follows and run_id and told.body["status"] in RESTS:
            await until(lambda: self.was_parked(run_id) or run_id in self.ends(), "it is parked")
        elif self.follows and run_id:
            await until(lambda: run_id in self.ends(), f"the end of {run_id} is seen")
        return told

    def begin(self, code: str, **body: Any) -> asyncio.Task[Fields]:
        return asyncio.create_task(self.run(code, **body))

    async def cancel(self, run_id: str, *, now: bool) -> Answer:
        return await self.client.ask("cancel", self.session, {"run_id": run_id, "now": now})

    async def seen(self, kind: str, count: int = 1) -> list[Fields]:
        """This many facts of a kind, as soon as there are."""
        return await until(
            lambda: found if len(found := self.of(kind)) >= count else None, f"{count} {kind}"
        )

    # --- the record -------------------------------------------------------------------------------

    @property
    def facts(self) -> list[Fields]:
        return [fact for message in self.messages for fact in message]

    def of(self, kind: str) -> list[Fields]:
        return [fact for fact in self.facts if fact["type"] == f"{kind}.v1"]

    def was_parked(self, run_id: str) -> bool:
        return any(fact["run"] == run_id for fact in self.of("turn.parked"))

    def ends(self) -> Counter[str]:
        """The number of ends of each run."""
        return Counter(fact["run"] for fact in self.facts if fact["type"] in ENDS)

    async def at_rest(self) -> None:
        """Wait until every accepted run has ended once."""
        accepted = {fact["run"] for fact in self.of("session.input_accepted")}
        await until(lambda: self.ends().keys() == accepted, f"{self.session} is at rest")
        assert self.ends() == dict.fromkeys(accepted, 1)


def ended(client: SyncClient, session: str, run_id: str) -> list[Fields]:
    """The facts of a session up to the end of this run."""
    found = []
    for fact in client.events(key=session):
        found.append(fact)
        if fact["type"] in ENDS and fact["run"] == run_id:
            return found
    raise AssertionError("the feed has no end")


def play_programs(
    serving: Serving,
    session: str,
    scenario: Callable[[Programs], Awaitable[None]],
    role: Role | Literal["admin"] = Role.CLIENT,
) -> None:
    """Play a scenario with a stock client in one session, and check that every run ends once."""

    async def play() -> None:
        async with stock(serving.server, serving.realm, role) as client:
            programs = Programs(client, session)
            await programs.follow()
            await scenario(programs)
            await programs.at_rest()

    asyncio.run(play())
