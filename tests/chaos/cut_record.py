"""What is known of a realm while its nodes are cut off: facts, claims, executions, words.

Facts and claims are read from the server by a stock client; executions are the tools' own ledger.
All times are of one machine, so they can be compared.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rookery.bus.subjects import decode_token, partition_of
from rookery.schemas.ids import node_of_holder
from tests.stock_client import Fields, Stock

__all__ = [
    "RUN_ENDS",
    "Answered",
    "Execution",
    "Move",
    "Record",
    "SeenFact",
    "SessionRecord",
    "Word",
]

RUN_ENDS = frozenset(
    {
        "session.run_committed.v1",
        "session.run_failed.v1",
        "session.run_rolled_back.v1",
        "session.input_cancelled.v1",
        "session.input_refused.v1",
    }
)
CALL_ENDS = frozenset(
    {"tool.completed.v1", "tool.failed.v1", "tool.withdrawn.v1", "tool.refused.v1"}
)


class SeenFact(NamedTuple):
    """A fact, and when and where it was stored."""

    at_s: float
    sequence: int
    fact: Fields

    @property
    def type(self) -> str:
        return str(self.fact["type"])

    @property
    def node(self) -> str:
        """The node that wrote it."""
        return str(self.fact["source"]).rpartition("@")[2]

    @property
    def operation(self) -> str:
        return str(self.fact.get("operation_id", ""))


class Move(NamedTuple):
    """A partition's claim came to another node."""

    at_s: float
    partition: int
    node: str
    """Empty if the claim was released."""


class Execution(NamedTuple):
    """A line of the tools' ledger."""

    began_s: float
    acted_s: float
    operation: str
    attempt: int
    process: str


class Word(NamedTuple):
    """What an operator said of a call."""

    at_s: float
    operation: str
    said: str
    answer: str


class Answered(NamedTuple):
    """The last answer that a client got."""

    at_s: float
    status: str


class SessionRecord(NamedTuple):
    """All that is known of one session."""

    session: str
    facts: list[SeenFact]
    executions: list[Execution]
    words: list[Word]
    moves: list[Move]
    """Of the session's partition."""
    answers: list[Answered]

    def of(self, kind: str) -> list[SeenFact]:
        return [seen for seen in self.facts if seen.type == f"{kind}.v1"]

    def calls(self) -> dict[str, list[SeenFact]]:
        """The facts of each call, by operation."""
        calls = defaultdict(list)
        for seen in self.facts:
            if seen.operation and seen.type.startswith("tool."):
                calls[seen.operation].append(seen)
        return calls

    def ends(self) -> list[SeenFact]:
        """Of the session's runs."""
        return [seen for seen in self.facts if seen.type in RUN_ENDS]

    def open_calls(self) -> list[str]:
        """Calls that were intended and have no outcome."""
        return [
            operation
            for operation, facts in self.calls().items()
            if any(seen.type == "tool.intent_recorded.v1" for seen in facts)
            and not any(seen.type in CALL_ENDS for seen in facts)
        ]

    def may_act_until_s(self) -> float:
        """The latest time at which a call might act: as its recovery says, answered or not (the
        run continues only after the answer), or by the intent of a call without an outcome."""
        open_calls = self.open_calls()
        until_ms = [seen.fact.get("may_act_until_ms", 0) for seen in self.facts]
        until_ms += (
            seen.fact.get("deadline_at_ms", 0)
            for seen in self.facts
            if seen.operation in open_calls
        )
        return max(until_ms, default=0) / 1_000

    def is_over(self) -> bool:
        return bool(self.answers and self.ends() and not self.open_calls())

    def owner_at(self, at_s: float) -> str:
        """The node that held the session's partition at a time."""
        owner = ""
        for move in self.moves:
            if move.at_s <= at_s:
                owner = move.node
        return owner


class Record:
    """Collects while ``follow`` goes on; kept as a whole, so that late news is not lost."""

    def __init__(self, realm: str, ledger: Path) -> None:
        self._journal, self._claims = f"ROOKERY_{realm}_JOURNAL", f"ROOKERY_{realm}_CLAIMS"
        self._subject, self._ledger = f"rookery.{realm}.ev.>", ledger
        self.facts: dict[str, list[SeenFact]] = defaultdict(list)
        """By session."""
        self.moves: dict[int, list[Move]] = defaultdict(list)
        """By partition."""
        self.words: list[Word] = []
        self.answers: dict[str, list[Answered]] = defaultdict(list)
        """By session."""
        self.on_fact: list[Callable[[Fields], None]] = []
        self._sequences: set[int] = set()

    async def follow(self, client: Stock) -> None:
        await client.watch(f"$KV.{self._claims}.>", self._claim_seen, f"KV_{self._claims}")
        await client.watch(self._subject, self._facts_seen)

    async def follow_another_journal(self, client: Stock) -> None:
        """Forget the facts and answers of the one before."""
        self.facts.clear()
        self.answers.clear()
        self._sequences.clear()
        await client.watch(self._subject, self._facts_seen)

    async def _facts_seen(self, message: Any) -> None:
        stored = message.metadata
        if stored.sequence.stream in self._sequences:  # Two consumers may follow.
            return
        self._sequences.add(stored.sequence.stream)
        for fact in json.loads(message.data):
            seen = SeenFact(stored.timestamp.timestamp(), stored.sequence.stream, fact)
            self.facts[fact.get("session", "")].append(seen)
            for listener in self.on_fact:
                listener(fact)

    async def _claim_seen(self, message: Any) -> None:
        name = decode_token(message.subject.removeprefix(f"$KV.{self._claims}."))
        if not name.startswith("partition."):
            return
        partition = int(name.removeprefix("partition."))
        node = node_of_holder(decode_token((message.header or {}).get("Rookery-Holder", "")))
        if self.owner(partition) != node:
            at_s = message.metadata.timestamp.timestamp()
            self.moves[partition].append(Move(at_s, partition, node))

    def owner(self, partition: int) -> str:
        """The node that holds a partition, or held it last if its claim has run out."""
        moves = self.moves[partition]
        return moves[-1].node if moves else ""

    def last_move_s(self) -> float:
        return max((moves[-1].at_s for moves in self.moves.values() if moves), default=0.0)

    def executions(self) -> dict[str, list[Execution]]:
        """By operation."""
        found = defaultdict(list)
        for line in self._ledger.read_text(encoding="utf-8").splitlines():
            began_s, acted_s, operation, attempt, process = line.split()
            done = Execution(float(began_s), float(acted_s), operation, int(attempt), process)
            found[operation].append(done)
        return found

    def story(self, session: str) -> SessionRecord:
        return self.stories([session])[0]

    def stories(self, sessions: list[str]) -> list[SessionRecord]:
        executions = self.executions()
        return [self._story(session, executions) for session in sessions]

    def _story(self, session: str, executions: dict[str, list[Execution]]) -> SessionRecord:
        facts = self.facts[session]
        operations = {seen.operation for seen in facts if seen.operation}
        done = [one for operation in operations for one in executions.get(operation, ())]
        return SessionRecord(
            session,
            list(facts),
            sorted(done),
            [word for word in self.words if word.operation in operations],
            list(self.moves[partition_of(session)]),
            list(self.answers[session]),
        )
