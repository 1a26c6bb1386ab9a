"""Asking an actor of one's own node: what performers do when an effect has come to something.

The question goes through the actor's mailbox like any command and is answered when what it left is
durable. It leaves no trace of its own: a repeat is recognised by what it asks, not by its id. Lives
on the bus's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Protocol, TypeVar

import msgspec

from rookery.actors.kernel.mailbox import Mailbox
from rookery.actors.kernel.messages import LocalCommand
from rookery.bus.ports import Delivery, ReplyMessage
from rookery.schemas.envelope import Command
from rookery.schemas.errors import CODES, Failed, Refused
from rookery.schemas.run import ErrorObject

__all__ = ["AskActor", "LocalAsk", "is_local"]

VERB = "inside"
T = TypeVar("T")


class AskActor(Protocol):
    """Put ``body`` to the entity (family, key) and wait for its answer, an ``answer``."""

    async def __call__(self, family: str, key: str, body: msgspec.Struct, answer: type[T]) -> T: ...


class _ErrorReply(msgspec.Struct):
    error: ErrorObject


class LocalAsk:
    """One a node."""

    def __init__(self, mailboxes: Mapping[str, Mailbox]) -> None:
        self._mailboxes = mailboxes
        self._numbers = count(1)
        self._pending: dict[str, tuple[str, asyncio.Future[ReplyMessage]]] = {}

    async def ask(self, family: str, key: str, body: msgspec.Struct, answer: type[T]) -> T:
        """``Refused`` or ``Failed`` as the actor says; a node that stops leaves the question
        unanswered and cancels whoever asks."""
        reply_to = f"{VERB}/{next(self._numbers)}"
        command = Command(verb=VERB, key=key, id=reply_to, body=body, reply_to=reply_to)
        delivery = Delivery(verb=VERB, key=key, id=reply_to, body=b"", reply_to=reply_to)
        told: asyncio.Future[ReplyMessage] = asyncio.get_running_loop().create_future()
        self._pending[reply_to] = key, told
        try:
            self._mailboxes[family].post(LocalCommand(command, delivery))
            return _decode_reply(await told, answer)
        finally:
            self._pending.pop(reply_to, None)

    def resolve_replies(self, answers: Sequence[ReplyMessage]) -> list[ReplyMessage]:
        """Give those from inside to whoever asked; the others."""
        outside = []
        for answer in answers:
            if not answer.reply_to.startswith(f"{VERB}/"):
                outside.append(answer)
                continue
            _, told = self._pending.get(answer.reply_to, ("", None))
            if told is not None and not told.done():
                told.set_result(answer)
        return outside

    def cancel_keys(self, gone: Callable[[str], bool]) -> None:
        """These keys are another node's; what was asked about them here is not answered."""
        for key, told in self._pending.values():
            if gone(key) and not told.done():
                told.set_exception(Refused("PARTITION_UNOWNED", f"{key} moved to another node"))


def is_local(delivery: Delivery) -> bool:
    return delivery.verb == VERB and delivery.reply_to == delivery.id


def _decode_reply(answer: ReplyMessage, kind: type[T]) -> T:
    if not answer.code:
        return msgspec.json.decode(answer.body, type=kind)
    said = msgspec.json.decode(answer.body, type=_ErrorReply).error
    raises = Failed if CODES[said.code].retryable else Refused
    raise raises(said.code, said.message, hint=said.hint or "")
