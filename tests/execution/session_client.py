"""A session as clients and external drivers use it: runs, replies and facts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.stock_client import Answer, Fields, Stock, until

__all__ = ["Visit", "running"]

RUN_BEGINS = ("session.run_prepared.v1", "session.queued_run_drained.v1")
RUN_ENDS = ("session.run_committed.v1", "session.input_refused.v1")


class Visit:
    """One session; a run is identified by its message id."""

    def __init__(self, client: Stock, session: str) -> None:
        self.client, self.session = client, session

    async def run(
        self, id_: str, *, door: str = "cmd", reply_name: str = "", **headers: str
    ) -> None:
        """Submit a run and wait until it is accepted; its result arrives under ``reply_name``."""
        await self.send(id_, door=door, reply_name=reply_name, **headers)
        await until(lambda: self.accepted(id_), f"{self.session} accepts {id_}")

    async def send(
        self,
        id_: str,
        *,
        door: str = "cmd",
        reply_name: str = "",
        body: object = None,
        verb: str = "run",
        **headers: str,
    ) -> None:
        """Send a command once, without waiting."""
        body = {"code": f"'{id_}'"} if body is None else body
        headers = {"Nats_Msg_Id": id_, "reply": self.reply(reply_name or id_), **headers}
        await self.client.publish(door, verb, self.session, body, **headers)

    def reply(self, name: str) -> str:
        return self.client.reply(f"{self.session}-{name}")

    async def answer(self, name: str) -> Answer:
        """The first reply under ``name``, as soon as it arrives."""
        found = await until(lambda: self.replies(name), f"{self.session} answers {name}")
        return found[0]

    def replies(self, name: str) -> list[Answer]:
        """All replies under ``name`` so far."""
        return self.client.answers[f"{self.session}-{name}"]

    async def view(self) -> Fields:
        return (await self.client.ask("session", self.session)).body

    async def handle(self, on: str, **params: Any) -> Answer:
        """Send an input to the session's machines, as an external driver does."""
        return await self.client.ask("admission", self.session, {"input": on, "params": params})

    async def commit(self) -> str:
        """End the current run, as soon as there is one; its message id."""
        begun = await until(self.current, f"{self.session} runs something")
        answer = await self.handle("commit", run_id=begun["run"], input_id=begun["input_id"])
        assert not answer.code, answer
        await until(lambda: self.current() != begun, "the end is seen")
        return self.id_of(begun["run"])

    # --- facts ----------------------------------------------------------------------------------

    @property
    def facts(self) -> list[Fields]:
        return self.client.facts[self.session]

    def of_type(self, kind: str) -> list[Fields]:
        return [fact for fact in self.facts if fact["type"] == f"session.{kind}.v1"]

    def accepted(self, id_: str) -> list[Fields]:
        return [fact for fact in self.of_type("input_accepted") if fact["cause"] == [id_]]

    def started(self) -> list[str]:
        """Message ids of the runs that were started, in order."""
        return [self.id_of(fact["run"]) for fact in self.facts if fact["type"] in RUN_BEGINS]

    def id_of(self, run: str) -> str:
        """The message id that submitted a run."""
        accepted = self.of_type("input_accepted")
        return str(next(fact["cause"][0] for fact in accepted if fact.get("run") == run))

    def current(self) -> Fields | None:
        """The fact that started the current run."""
        return running(self.facts)


def running(facts: Iterable[Fields]) -> Fields | None:
    """The fact, among a session's, that started the current run."""
    begun = None
    for fact in facts:
        if fact["type"] in RUN_BEGINS:
            begun = fact
        elif begun and fact["type"] in RUN_ENDS and fact.get("run") == begun["run"]:
            begun = None
    return begun
