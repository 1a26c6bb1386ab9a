"""A session as a client and an outside driver see it: runs given, ends told, facts read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.stock_client import Answer, Fields, Stock, until

__all__ = ["Visit", "running"]

RUN_BEGINS = ("session.run_prepared.v1", "session.queued_run_drained.v1")
RUN_ENDS = ("session.run_committed.v1", "session.input_refused.v1")


class Visit:
    """One session. Runs are known by their message id."""

    def __init__(self, client: Stock, session: str) -> None:
        self.client, self.session = client, session

    async def run(self, id_: str, *, door: str = "cmd", told: str = "", **headers: str) -> None:
        """Give a run in and wait until it is accepted; its end is told under ``told``."""
        await self.send(id_, door=door, told=told, **headers)
        await until(lambda: self.accepted(id_), f"{self.session} accepts {id_}")

    async def send(
        self,
        id_: str,
        *,
        door: str = "cmd",
        told: str = "",
        body: object = None,
        verb: str = "run",
        **headers: str,
    ) -> None:
        """Give a command in, once, and do not wait for anything."""
        body = {"code": f"'{id_}'"} if body is None else body
        headers = {"Nats_Msg_Id": id_, "reply": self.reply(told or id_), **headers}
        await self.client.publish(door, verb, self.session, body, **headers)

    def reply(self, name: str) -> str:
        return self.client.reply(f"{self.session}-{name}")

    async def answer(self, name: str) -> Answer:
        """What is told under ``name``, as soon as it is."""
        found = await until(lambda: self.told(name), f"{self.session} answers {name}")
        return found[0]

    def told(self, name: str) -> list[Answer]:
        """All that was told under ``name`` so far."""
        return self.client.answers[f"{self.session}-{name}"]

    async def view(self) -> Fields:
        return (await self.client.ask("session", self.session)).body

    async def handle(self, on: str, **params: Any) -> Answer:
        """Put an input to the session's machines, as a driver does."""
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
        """The message id a run came under."""
        accepted = self.of_type("input_accepted")
        return str(next(fact["cause"][0] for fact in accepted if fact.get("run") == run))

    def current(self) -> Fields | None:
        """The fact that began the run that is not over."""
        return running(self.facts)


def running(facts: Iterable[Fields]) -> Fields | None:
    """Of a session's facts, the one that began the run that is not over."""
    begun = None
    for fact in facts:
        if fact["type"] in RUN_BEGINS:
            begun = fact
        elif begun and fact["type"] in RUN_ENDS and fact.get("run") == begun["run"]:
            begun = None
    return begun
