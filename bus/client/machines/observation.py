"""Observers of live machines: a baseline, then every later fact, each once and in order.

The baseline is a view together with the journal sequence at which it was true. A node says how many
facts of the entity its view contains, so the view finds its place in the journal, whichever node
sent it and however many facts were appended meanwhile. The feed continues from there; it reconnects
by itself.

A destroyed session resets its machines without a fact of theirs: that is a fact of the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from types import UnionType
from typing import Final, Generic, TypeVar

import msgspec

from rookery.bus.client.client import Client
from rookery.bus.ports import Filter, StoredMessage
from rookery.schemas.codec import FactCodec
from rookery.schemas.envelope import EntityId, Fact
from rookery.schemas.ids import parse_fact_id

__all__ = ["Baseline", "ObservedFact", "observe_facts"]

V = TypeVar("V", bound=msgspec.Struct)
F = TypeVar("F", bound=Fact)
K = TypeVar("K", bound=Fact)

_PAUSE_S: Final = 0.1
"""Between two reads, while a node answers that has lost the key to another one."""


class Baseline(msgspec.Struct, Generic[V], frozen=True):
    """What an observer is given first."""

    sequence: int
    """Journal sequence of the last fact that the view contains; 0 if it contains none."""
    view: V


class ObservedFact(msgspec.Struct, Generic[F], frozen=True):
    """A fact after the baseline. Facts of one commit share a sequence."""

    sequence: int
    fact: F


async def observe_facts(
    client: Client,
    entity: EntityId,
    codec: FactCodec[K],
    kinds: type[F] | UnionType,
    read: Callable[[], Awaitable[tuple[V, int]]],
) -> AsyncGenerator[Baseline[V] | ObservedFact[F], None]:
    """The baseline that ``read`` gives, then the later facts of these kinds.

    ``read`` returns a view and how many facts of the entity it contains.
    """
    baseline, count = await _read_baseline(client, entity, codec, read)
    yield baseline
    after = max(baseline.sequence - 1, 0)  # The commit of the last fact may have further facts.
    follow = client.feed.follow(Filter(entity.family, entity.key), after)
    async with aclosing(follow) as pages:
        async for page in pages:
            for stored in page:
                for fact in codec.decode(stored.body):
                    if isinstance(fact, kinds) and _number(fact) > count:
                        yield ObservedFact(stored.sequence, fact)


async def _read_baseline(
    client: Client,
    entity: EntityId,
    codec: FactCodec[K],
    read: Callable[[], Awaitable[tuple[V, int]]],
) -> tuple[Baseline[V], int]:
    """A view and its place in the journal."""
    while True:
        last = await client.journal.last(entity)
        view, count = await read()
        if last is None and not count:
            return Baseline(0, view), 0
        if count >= (0 if last is None else _last_number(codec, last)):
            break
        await asyncio.sleep(_PAUSE_S)
    before = 0 if last is None else last.sequence - 1
    messages = await client.journal.read(entity, before)
    sequence = next(one.sequence for one in messages if _last_number(codec, one) >= count)
    return Baseline(sequence, view), count


def _last_number(codec: FactCodec[K], stored: StoredMessage) -> int:
    return _number(codec.decode(stored.body)[-1])


def _number(fact: Fact) -> int:
    return parse_fact_id(fact.id)[2]
