"""Who a realm's runs deal with: clients who wait for ends, an operator, and an approver.

Each does what the README asks of it and no more: a client keeps its message id and asks again, the
operator looks into the tools' own ledger before every answer, the approver takes its time.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from tests.chaos.cut_record import CALL_ENDS, Answered, Record, Word
from tests.stock_client import Answer, Fields, Stock

__all__ = ["People", "run_by_inbox", "run_by_request"]

LOOKS_AFTER_S = 0.5
APPROVES_AFTER_S = 1.5
RESTS = ("interrupted", "waiting_for_approval")


class People:
    """The operator and the approver; both hear of facts from the record."""

    def __init__(self, client: Stock, record: Record) -> None:
        self._client, self._record = client, record
        self._working: set[asyncio.Task[None]] = set()
        record.on_fact.append(self._hear)

    def _hear(self, fact: Fields) -> None:
        if fact["type"] == "tool.recovery_required.v1":
            task = asyncio.create_task(self._resolve(fact))
        elif fact["type"] == "approval.requested.v1":
            task = asyncio.create_task(self._approve(fact))
        else:
            return
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def leave(self) -> None:
        for task in (working := list(self._working)):
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)

    async def _resolve(self, fact: Fields) -> None:
        """Look into the ledger and say what it says. A look before the tool's time is over would
        not be the last word; where a word is refused all the same, look and say again."""
        operation, session = fact["operation_id"], fact["session"]
        number = 0
        await asyncio.sleep(fact.get("may_act_until_ms", 0) / 1_000 - time.time())
        while not self._has_outcome(session, operation):
            await asyncio.sleep(LOOKS_AFTER_S)
            number += 1
            acted = bool(self._record.executions().get(operation))
            said: Fields = {"completed": 0} if acted else {"retry": True}
            body = {"run_id": fact["run"], "operation_id": operation, **said}
            id_ = f"resolve-{fact['id']}-{number}"
            answer = await _asked(self._client, "resolve", session, body, id_)
            told = "no answer" if answer is None else answer.code or "taken"
            self._record.words.append(Word(time.time(), operation, next(iter(said)), told))
            if told == "taken":
                return

    def _has_outcome(self, session: str, operation: str) -> bool:
        facts = self._record.facts[session]
        return any(seen.operation == operation and seen.type in CALL_ENDS for seen in facts)

    async def _approve(self, fact: Fields) -> None:
        await asyncio.sleep(APPROVES_AFTER_S)
        body = {
            "approval_id": fact["approval_id"],
            "decision": "approved",
            "actor": "ann",
            "request_digest": fact["request_digest"],
        }
        await self._client.submit(
            "decide", fact["session"], body, Nats_Msg_Id=f"decide-{fact['id']}"
        )


async def _asked(client: Stock, verb: str, session: str, body: Fields, id_: str) -> Answer | None:
    with suppress(AssertionError):  # It has waited as long as it does.
        return await client.ask(verb, session, body, Nats_Msg_Id=id_)
    return None


async def run_by_inbox(
    client: Stock, record: Record, session: str, body: Fields, id_: str = "first"
) -> None:
    """A durable command; its answers come to a reply subject."""
    name = f"run-{session}-{id_}"
    headers = {"Nats_Msg_Id": f"m-{session}-{id_}", "Rookery_Reply": client.reply(name)}
    await client.submit("run", session, body, **headers)
    while not (last := [answer for answer in client.answers[name] if _is_final(answer)]):
        await asyncio.sleep(0.02)
    _note(record, session, last[0])


async def run_by_request(
    client: Stock, record: Record, session: str, body: Fields, id_: str = "first"
) -> None:
    """A request, sent again under the same id until its final answer."""
    while True:
        answer = await _asked(client, "run", session, body, f"m-{session}-{id_}")
        if answer is not None and _is_final(answer):
            _note(record, session, answer)
            return
        await asyncio.sleep(0.2)


def _is_final(answer: Answer) -> bool:
    return bool(answer.code) or answer.body.get("status") not in (None, *RESTS)


def _note(record: Record, session: str, answer: Answer) -> None:
    status = str(answer.code or answer.body.get("status"))
    record.answers[session].append(Answered(time.time(), status))
