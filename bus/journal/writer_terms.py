"""Turns: which node the server takes facts from, partition by partition.

A node publishes its facts to ``w.<partition>.<turn>.<family>.<key>``. The stream listens to one
turn of each partition, and stores what comes as ``ev.<family>.<key>``. So the server itself refuses
a late owner: nothing listens to an older turn. A takeover replaces the turn by one update of the
stream.

A turn is a number, which only grows, and 128 random bits, without which nothing can be written. An
update has no compare-and-swap, so it is made under a short claim. An updater that was paused may
still put an old turn back: the node that held the newer one notices before it keeps a horizon, and
with its next append, and takes the partition anew. This file knows the stream's configuration;
``appender`` appends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from rookery.bus.clock import entropy
from rookery.bus.nats import ApiError, Connection
from rookery.bus.ports import PARTITIONS, Claim, Claims
from rookery.bus.subjects import Subjects
from rookery.schemas.errors import Failed

__all__ = ["WriterTerms", "first_subjects", "has_all_terms", "terms_in"]

CLAIM: Final = "journal.turns"
CLAIM_S: Final = 2
PAUSE_S: Final = 0.02
RANDOM_BYTES: Final = 16


class WriterTerms:
    """This node's turns. To be used on the event loop of its connection."""

    def __init__(
        self,
        connection: Connection,
        subjects: Subjects,
        claims: Claims,
    ) -> None:
        self._connection, self._subjects, self._claims = connection, subjects, claims
        self._holder = connection.client.new_inbox()
        self._held: dict[int, str] = {}
        self._identity = ""
        """Of the journal that the turns were taken in."""

    def term_of(self, partition: int) -> str | None:
        """The turn that this node has taken last; ``None`` if it has taken none."""
        return self._held.get(partition)

    def abandon(self) -> None:
        """Nothing is appended any more until partitions are taken anew."""
        self._held.clear()

    async def begin(self, partitions: frozenset[int]) -> dict[int, int]:
        """Begin a turn in each; their numbers."""
        claim = await self._acquire_claim()
        try:
            info = await self._stream_api("INFO")
            config, before = info["config"], terms_in(self._subjects, info["config"])
            numbers = {p: _term_number(before.get(p, "")) + 1 for p in partitions}
            begun = {p: _new_term(number) for p, number in numbers.items()}
            await self._update(config, before | begun)
        finally:
            await self._release_claim(claim)
        self._identity = info["created"]
        self._held |= begun
        return numbers

    async def current(self) -> dict[int, str]:
        """The turn of each partition that the server listens to."""
        return terms_in(self._subjects, (await self._stream_api("INFO"))["config"])

    async def identity(self) -> str:
        """Of the journal that is there now."""
        return str((await self._stream_api("INFO"))["created"])

    async def verified_end(self) -> int:
        """The last sequence of the journal, if all turns held here are the last ones of their
        partitions; else ``Failed`` CLAIM_LOST."""
        info = await self._stream_api("INFO")
        current = terms_in(self._subjects, info["config"])
        if lost := [p for p, turn in self._held.items() if current.get(p) != turn]:
            raise Failed("CLAIM_LOST", f"other turns have begun in the partitions {sorted(lost)}")
        if self._held and info["created"] != self._identity:
            raise Failed("CLAIM_LOST", "another journal was put in the place of this one")
        return int(info["state"]["last_seq"])

    async def _acquire_claim(self) -> Claim:
        while True:
            claim = await self._claims.acquire(CLAIM, self._holder, CLAIM_S)
            if claim is not None:
                return claim
            await asyncio.sleep(PAUSE_S)

    async def _release_claim(self, claim: Claim) -> None:
        try:
            await self._claims.release(claim)
        except Failed:
            """It ends by itself."""

    async def _update(self, config: Mapping[str, Any], turns: Mapping[int, str]) -> None:
        await self._stream_api("UPDATE", {**config, "subjects": _subjects(self._subjects, turns)})

    async def _stream_api(self, verb: str, query: object = None) -> dict[str, Any]:
        stream = self._subjects.journal_stream
        try:
            return await self._connection.api(f"STREAM.{verb}.{stream}", query)
        except ApiError as error:
            raise Failed("SERVER_UNREACHABLE", f"{stream} does not answer: {error}") from None


def first_subjects(subjects: Subjects) -> list[str]:
    """What the journal of a new realm listens to: turns that no node has taken."""
    return _subjects(subjects, {partition: _new_term(0) for partition in range(PARTITIONS)})


def terms_in(subjects: Subjects, config: Mapping[str, Any]) -> dict[int, str]:
    """The turn of each partition, as the stream's configuration has it."""
    prefix = f"{subjects.root}.w."
    turns = {}
    for subject in config.get("subjects") or ():
        if subject.startswith(prefix):
            partition, _, turn = subject.removeprefix(prefix).removesuffix(".>").partition(".")
            if partition.isdecimal():
                turns[int(partition)] = turn
    return turns


def has_all_terms(subjects: Subjects, config: Mapping[str, Any]) -> bool:
    """Whether the stream listens to one turn of each partition and to what nodes say."""
    turns = terms_in(subjects, config)
    every = turns.keys() == frozenset(range(PARTITIONS))
    return every and sorted(config["subjects"]) == sorted(_subjects(subjects, turns))


def _subjects(subjects: Subjects, turns: Mapping[int, str]) -> list[str]:
    listed = [subjects.appends(partition, turns[partition]) for partition in sorted(turns)]
    return [*listed, subjects.node_appends]


def _new_term(number: int) -> str:
    return f"{number}-{entropy(RANDOM_BYTES).hex()}"


def _term_number(turn: str) -> int:
    number = turn.partition("-")[0]
    return int(number) if number.isdecimal() else 0
