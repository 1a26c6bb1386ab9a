"""What every typed face of a live machine shares: one input, one request, one typed view.

A machine lives in the actor that owns its key. A face sends each input to it through the client, as
any other request, and reads the reply: the machine's view, or its rejection, which is raised.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import UnionType
from typing import Any, ClassVar, TypeVar

import msgspec

from rookery.bus.client.client import Client
from rookery.bus.client.machines.observation import observe_facts
from rookery.schemas.codec import FactCodec
from rookery.schemas.commands import HandleInput
from rookery.schemas.envelope import EntityId, Fact
from rookery.schemas.errors import Failed
from rookery.schemas.machines.transition import RejectionKind, TransitionRejected
from rookery.schemas.machines.views import RequestedEffect

__all__ = ["MachineHandle", "SessionMachineHandle", "effects_of"]

V = TypeVar("V", bound=msgspec.Struct)


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
