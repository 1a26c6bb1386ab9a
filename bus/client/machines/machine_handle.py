"""What every typed face of a live machine shares: input, request and typed view; observers.

A machine lives in the actor that owns its key. A face sends each input to it through the client, as
any other request, and reads the reply: the machine's view, or its rejection, which is raised.

An observer is given a baseline, then every later fact, each once and in order. The baseline is a
view together with the journal sequence at which it was true. A node says how many facts of the
entity its view contains, so the view finds its place in the journal, whichever node sent it and
however many facts were appended meanwhile. The feed continues from there; it reconnects by itself.
A destroyed session resets its machines without a fact of theirs: that is a fact of the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from types import UnionType
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from rookery.bus.client.client import Client
from rookery.bus.ports import Filter, StoredMessage
from rookery.schemas.codec import FactCodec
from rookery.schemas.commands import HandleInput
from rookery.schemas.envelope import EntityId, Fact
from rookery.schemas.errors import Failed
from rookery.schemas.ids import parse_fact_id
from rookery.schemas.machines.transition import RejectionKind, TransitionRejected
from rookery.schemas.machines.views import RequestedEffect

__all__ = [
    "Baseline",
    "MachineHandle",
    "ObservedFact",
    "SessionMachineHandle",
    "effects_of",
    "observe_facts",
]

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


class MachineHandle:
    """Sends inputs to the machines behind one verb."""

    verb: ClassVar[str]

    def __init__(self, client: Client) -> None:
        self._client = client

    async def _apply(self, key: str, view: type[V], on: str, /, **params: Any) -> V:
        """The view after an input, or for a read; raises ``TransitionRejected``."""
        body = HandleInput(input=on, params=params)
        return msgspec.convert(await self._client.ask(self.verb, key, body), view)


class SessionMachineHandle(MachineHandle):
    """Sends inputs to the machines of one session."""

    codec: ClassVar[FactCodec[Any]]
    """Of the facts that the machines leave; needed where they are observed."""

    def __init__(self, client: Client, session: str) -> None:
        super().__init__(client)
        self.session = session

    async def _put(self, view: type[V], on: str, /, **params: Any) -> V:
        return await self._apply(self.session, view, on, **params)

    async def _try(self, view: type[msgspec.Struct], on: str, /, **params: Any) -> bool:
        """Whether the machine's present state accepts the input."""
        try:
            await self._put(view, on, **params)
        except TransitionRejected as rejected:
            if rejected.kind is not RejectionKind.GUARD_REJECTED:
                raise
            return False
        return True

    def _observe(
        self, kinds: type[Fact] | UnionType, view: type[V], on: str, /, **params: Any
    ) -> AsyncGenerator[Any, None]:
        """The view that the read ``on`` gives, as a baseline, then the later facts of ``kinds``."""
        body = HandleInput(input=on, params=params)
        family = next(iter(self.codec.names)).partition(".")[0]

        async def read() -> tuple[V, int]:
            found, count = await self._client.ask_with_count(self.verb, self.session, body)
            return msgspec.convert(found, view), count

        entity = EntityId(family, self.session)
        return observe_facts(self._client, entity, self.codec, kinds, read)


def effects_of(effects: tuple[RequestedEffect, ...] | None, on: str) -> list[dict[str, Any]]:
    """The effects of an accepted input, each with its ``name``, to be converted to their types.

    A machine reports them once. If that reply was lost, the repeated request has none.
    """
    if effects is None:
        raise Failed(
            "NO_ANSWER",
            f"{on} was accepted, but the reply with its effects was lost",
            hint="read the view: the input is not to be sent again",
        )
    return [{"name": effect.name, **effect.fields} for effect in effects]
