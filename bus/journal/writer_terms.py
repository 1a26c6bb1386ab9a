"""Terms: from which node the journal accepts facts, partition by partition.

A node publishes its facts to ``w.<partition>.<term>.<family>.<key>``. The journal's stream listens
to one term of each partition, and stores the facts under ``ev.<family>.<key>``. So the server
itself refuses the facts of a former owner: no stream listens to an older term. A new owner replaces
the term by one update of the stream.

A term is a number, which only grows, and 128 random bits, so that only its node can publish in it.
JetStream has no compare-and-swap for updates, so a node updates the stream under a short claim. A
node that was paused during an update may restore an old term: the node with the newer term notices
that before it stores a watermark, and with its next append, and begins a term again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from rookery.bus.jetstream_api import ApiError
from rookery.bus.nats import Connection
from rookery.bus.ports import Claim, Claims
from rookery.bus.streams import new_term, subjects_of_terms, terms_in
from rookery.bus.subjects import Subjects
from rookery.schemas.errors import Failed

__all__ = ["WriterTerms"]

CLAIM: Final = "journal.turns"
CLAIM_S: Final = 2
PAUSE_S: Final = 0.02


class WriterTerms:
    """The terms of this node; used on the event loop of its connection."""

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
        """Creation time of the journal in which the terms were begun."""

    def term_of(self, partition: int) -> str | None:
        """The term that this node began last in the partition."""
        return self._held.get(partition)

    def abandon(self) -> None:
        """Forget all terms: the node cannot append until it begins new ones."""
        self._held.clear()

    async def begin(self, partitions: frozenset[int]) -> dict[int, int]:
        """Begin a term in each partition; returns the numbers of the terms."""
        claim = await self._acquire_claim()
        try:
            info = await self._stream_api("INFO")
            config, before = info["config"], terms_in(self._subjects, info["config"])
            numbers = {p: _term_number(before.get(p, "")) + 1 for p in partitions}
            begun = {p: new_term(number) for p, number in numbers.items()}
            await self._update(config, before | begun)
        finally:
            await self._release_claim(claim)
        self._identity = info["created"]
        self._held |= begun
        return numbers

    async def current(self) -> dict[int, str]:
        """The term of each partition that the journal's stream listens to."""
        return terms_in(self._subjects, (await self._stream_api("INFO"))["config"])

    async def identity(self) -> str:
        """Creation time of the journal that exists now."""
        return str((await self._stream_api("INFO"))["created"])

    async def verified_end(self, partitions: frozenset[int]) -> int:
        """The last sequence of the journal; ``Failed`` CLAIM_LOST if another node has begun a
        term in one of these partitions. Those that this node has released are not among them."""
        info = await self._stream_api("INFO")
        current = terms_in(self._subjects, info["config"])
        held = {p: term for p, term in self._held.items() if p in partitions}
        if lost := [p for p, term in held.items() if current.get(p) != term]:
            raise Failed(
                "CLAIM_LOST", f"other nodes have begun terms in the partitions {sorted(lost)}"
            )
        if self._held and info["created"] != self._identity:
            raise Failed("CLAIM_LOST", "the journal was replaced by another one")
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
            """The claim expires by itself."""

    async def _update(self, config: Mapping[str, Any], terms: Mapping[int, str]) -> None:
        wanted = {**config, "subjects": subjects_of_terms(self._subjects, terms)}
        await self._stream_api("UPDATE", wanted)

    async def _stream_api(self, verb: str, query: object = None) -> dict[str, Any]:
        stream = self._subjects.journal_stream
        try:
            return await self._connection.api(f"STREAM.{verb}.{stream}", query)
        except ApiError as error:
            raise Failed("SERVER_UNREACHABLE", f"{stream} does not answer: {error}") from None


def _term_number(term: str) -> int:
    number = term.partition("-")[0]
    return int(number) if number.isdecimal() else 0
