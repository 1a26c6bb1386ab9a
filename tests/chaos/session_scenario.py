"""What becomes of a session, told by a client through both doors, the same way every time.

A command follows the one before as soon as that one's facts are seen, so the facts of a session
stand in one order only, whatever dies on the way. What an end needs to know (run, input) is read
from the facts, as a driver outside would do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.execution.session_client import running
from tests.stock_client import Answer, Fields, Stock, until

__all__ = ["SessionScenario"]


class SessionScenario:
    """The commands of one session, in order; ``turned`` swaps request endpoint and inbox."""

    def __init__(self, client: Stock, session: str, *, turned: bool = False) -> None:
        self._client, self.session, self._turned = client, session, turned
        self._given = 0
        self._awaited: dict[str, Callable[[], Awaitable[None]]] = {}
        """Names of answers that must come, and how to ask for each once more."""

    async def play(self) -> None:
        """Send all commands, and wait for the last reply."""
        await self._queue()
        await self._repeat_and_cancel()
        await self._work_off()
        await self._destroy()
        await self._retire()
        for name, ask in self._awaited.items():
            await self._hear(name, ask)

    async def _queue(self) -> None:
        """The first input runs, the others wait, each in the place its mode gives it."""
        await self._run("cmd", "a")
        await self._run("api", "b")
        await self._run("cmd", "c", Rookery_Mode="passive")
        await self._run("api", "d", Rookery_Mode="steer")
        await self._run("cmd", "e", Rookery_Mode="interrupt")

    async def _repeat_and_cancel(self) -> None:
        await self._give("cmd", "run", "a", code("a"), answer="a-again")
        withdrawn = {"run_id": self._run_of("c"), "reason": "no longer wanted"}
        await self._give("api", "cancel", "cancel-c", withdrawn, answer="cancel-c")
        for number in range(3):
            work = {"runtime_id": "r", "work_id": f"w{number}", "origin": "peer"}
            await self._handle("cmd", "ingest", work)

    async def _work_off(self) -> None:
        while running(self.facts):
            await self._commit("cmd" if self._given % 2 else "api")

    async def _destroy(self) -> None:
        """Who runs or waits is refused; the next input begins another life."""
        await self._run("cmd", "f")
        await self._run("api", "g")
        await self._handle("cmd", "Destroy", {})
        await self._run("api", "h")
        await self._commit("cmd")

    async def _retire(self) -> None:
        """What waits is drained and nothing new comes in; old ends are still known."""
        await self._run("cmd", "i")
        await self._run("api", "j")
        await self._handle("api", "Retire", {})
        await self._ask("cmd", "k", answer="k")
        await self._work_off()
        await self._ask("api", "b", answer="b-again")

    # --- commands -------------------------------------------------------------------------------

    async def _run(self, door: str, name: str, **headers: str) -> None:
        await self._give(door, "run", name, code(name), answer=name, **headers)

    async def _commit(self, door: str) -> None:
        run = running(self.facts)
        assert run is not None
        await self._handle(door, "commit", {"run_id": run["run"], "input_id": run["input_id"]})

    async def _handle(self, door: str, on: str, params: Fields) -> None:
        name, body = f"{on}-{self._given}", {"input": on, "params": params}
        await self._give(door, "admission", name, body, answer=name)

    async def _give(
        self, door: str, verb: str, name: str, body: Fields, *, answer: str, **headers: str
    ) -> None:
        """A command that leaves facts: sent again and again until they are seen."""
        seen = len(self.facts)
        self._given += 1
        send = self._sender(door, verb, name, body, answer, headers)
        await self._client.insist(
            send, lambda: any(name in fact["cause"] for fact in self.facts[seen:])
        )
        self._awaited[answer] = send

    async def _ask(self, door: str, name: str, *, answer: str) -> None:
        """A run that leaves no fact: sent again and again until it is answered."""
        send = self._sender(door, "run", name, code(name), answer, {})
        await self._client.insist(send, lambda: self.answer(answer))

    async def _hear(self, name: str, ask: Callable[[], Awaitable[None]]) -> None:
        """A run's end is reported by an effect, which a new node finds and does again; any other
        answer that was lost with its node is asked for once more."""
        if len(name) == 1:
            await until(lambda: self.answer(name), f"the end of {name} in {self.session}")
        else:
            await self._client.insist(ask, lambda: self.answer(name))

    def _sender(
        self, door: str, verb: str, name: str, body: Fields, answer: str, headers: dict[str, str]
    ) -> Callable[[], Awaitable[None]]:
        """Each time the same: subject, id, body and where the answer goes."""
        if self._turned:
            door = "api" if door == "cmd" else "cmd"
        sent = headers | {"Nats_Msg_Id": name, "reply": self._client.reply(self._called(answer))}
        return lambda: self._client.publish(door, verb, self.session, body, **sent)

    # --- what is seen ---------------------------------------------------------------------------

    @property
    def facts(self) -> list[Fields]:
        return self._client.facts[self.session]

    def answer(self, name: str) -> Answer | None:
        return self._client.answer_of(self._called(name))

    @property
    def answers(self) -> dict[str, str]:
        """How each question ended, by its name."""
        told = {name: self.answer(name) for name in (*self._awaited, "k", "b-again")}
        return {
            name: answer.code or answer.body.get("state", "")
            for name, answer in told.items()
            if answer
        }

    def _called(self, name: str) -> str:
        return f"{self.session}-{name}"

    def _run_of(self, name: str) -> str:
        accepted = (fact for fact in self.facts if fact["type"] == "session.input_accepted.v1")
        return str(next(fact["run"] for fact in accepted if name in fact["cause"]))


def code(name: str) -> Fields:
    return {"code": f"'{name}'"}
