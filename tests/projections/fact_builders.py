"""Histories for projections: recorded ones, and ones that a test builds fact by fact."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import force_setattr

from rookery.actors.projections.lists.run_queries import RunQueryHandler
from rookery.bus.journal.reader import matcher
from rookery.bus.ports import Filter, StoredMessage
from rookery.schemas.calls import RequestedCall
from rookery.schemas.codec import encode_facts
from rookery.schemas.commands import RunsQuery
from rookery.schemas.digest import ZERO_CHAIN, chain
from rookery.schemas.envelope import EntityId, Fact, InputSource
from rookery.schemas.facts import session, tool, turn
from rookery.schemas.machines.turn import TurnPrimitiveKind
from rookery.schemas.replies import RunList, RunView
from rookery.schemas.run import RunRequest, RunResult

RECORDED = Path(__file__).parents[1] / "golden" / "runs"
BEGIN_MS = 1_700_000_000_000


class FactHistory:
    """A journal that a test appends to. Each message is a millisecond later than the last one."""

    def __init__(self, messages: list[StoredMessage] | None = None) -> None:
        self.messages = messages or []
        self.now_ms = BEGIN_MS
        self._ends: dict[EntityId, str] = {}

    @classmethod
    def recorded(cls, name: str) -> FactHistory:
        """The recorded messages of one session of a real realm."""
        lines = map(json.loads, (RECORDED / f"{name}.jsonl").read_text("utf-8").splitlines())
        return cls([_stored(line) for line in lines])

    async def end(self) -> int:
        return self.messages[-1].sequence if self.messages else 0

    async def at(self, sequence: int) -> StoredMessage | None:
        return next((one for one in self.messages if one.sequence == sequence), None)

    async def scan(
        self, where: Filter, after: int = 0
    ) -> AsyncGenerator[list[StoredMessage], None]:
        matches = matcher(where)
        if page := [one for one in self.messages if one.sequence > after and matches(one)]:
            yield page

    def write(self, family: str, key: str, body: bytes) -> None:
        sequence = len(self.messages) + 1
        entity = EntityId(family, key)
        digest = self._ends[entity] = chain(self._ends.get(entity, ZERO_CHAIN), body)
        self.messages.append(
            StoredMessage(sequence, entity, f"m{sequence}", digest, body, self.now_ms)
        )

    def say(self, key: str, *facts: Fact) -> None:
        """One message, of the family its facts are of."""
        self.now_ms += 1
        for fact in facts:
            force_setattr(fact, "at_ms", self.now_ms)
        family = str(type(facts[0]).__struct_config__.tag).partition(".")[0]
        self.write(family, key, encode_facts(facts))

    # What runs commonly do.

    def accept(
        self, key: str, run: str, *, source: InputSource | UnsetType = UNSET, **request: Any
    ) -> None:
        asked = RunRequest(**request)
        self.say(
            key,
            session.InputAccepted(run=run, input_id=run, input_source=source, request=asked),
        )

    def start(self, key: str, run: str) -> None:
        started = turn.Started(
            run=run,
            primitive_kind_in=TurnPrimitiveKind.CONVERSATION_TURN,
            shape="conversation",
            vision=False,
            image_results=False,
            max_retries=0,
        )
        self.say(key, session.RunPrepared(run=run, input_id=run))
        self.say(key, started, turn.PrimitiveApplied(run=run))

    def want(self, key: str, run: str, *names: str) -> list[str]:
        """Calls of these tools, all put on record together; their operations."""
        calls = tuple(
            RequestedCall(operation_id=f"{run}-{number}", number=number, name=name, digest="d")
            for number, name in enumerate(names, 1)
        )
        self.say(key, turn.ToolCallsReturned(run=run, tool_count=len(calls), calls=calls))
        return [call.operation_id for call in calls]

    def intend(self, key: str, run: str, *operations: str) -> None:
        intents = [
            tool.IntentRecorded(
                run=run, operation_id=operation, attempt=1, node="n", deadline_at_ms=0
            )
            for operation in operations
        ]
        self.say(key, *intents)

    def complete(self, key: str, run: str, **result: Any) -> None:
        """The run ends well, and the session is free."""
        self.say(key, turn.Completed(run=run, result=RunResult(**result)))
        self.say(key, session.RunCommitted(run=run, input_id=run))

    def run(
        self, key: str, run: str, *, source: InputSource | UnsetType = UNSET, **request: Any
    ) -> None:
        """A run that has nothing to wait for."""
        self.accept(key, run, source=source, **request)
        self.start(key, run)
        self.complete(key, run)


def runs_of(history: FactHistory, **query: Any) -> RunList:
    """What a view says that begins now."""
    return asyncio.run(RunQueryHandler.without_node(history).list(RunsQuery(**query)))


def run_of(history: FactHistory, run_id: str) -> RunView:
    (found,) = runs_of(history, run_id=run_id).runs
    return found


def _stored(line: dict[str, Any]) -> StoredMessage:
    entity = EntityId(line["family"], line["key"])
    body = json.dumps(line["facts"]).encode()
    return StoredMessage(line["sequence"], entity, "", "", body, line["stored_at_ms"])
