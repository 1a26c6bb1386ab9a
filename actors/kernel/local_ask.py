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
from rookery.actors.kernel.messages import Internal
from rookery.bus.ports import Answer, Delivery
from rookery.schemas.envelope import Command
from rookery.schemas.errors import CODES, Failed, Refused
from rookery.schemas.run import ErrorObject

__all__ = ["Ask", "Inside", "is_inside"]

VERB = "inside"
T = TypeVar("T")


class Ask(Protocol):
    """Put ``body`` to the entity (family, key) and wait for its answer, an ``answer``."""

    async def __call__(self, family: str, key: str, body: msgspec.Struct, answer: type[T]) -> T: ...


class _Refusal(msgspec.Struct):
    error: ErrorObject


class Inside:
    """One a node."""

    def __init__(self, mailboxes: Mapping[str, Mailbox]) -> None:
        self._mailboxes = mailboxes
        self._numbers = count(1)
        self._waiting: dict[str, tuple[str, asyncio.Future[Answer]]] = {}

    async def ask(self, family: str, key: str, body: msgspec.Struct, answer: type[T]) -> T:
        """``Refused`` or ``Failed`` as the actor says; a node that stops leaves the question
        unanswered and cancels whoever asks."""
        reply_to = f"{VERB}/{next(self._numbers)}"
        command = Command(verb=VERB, key=key, id=reply_to, body=body, reply_to=reply_to)
        delivery = Delivery(verb=VERB, key=key, id=reply_to, body=b"", reply_to=reply_to)
        told: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[reply_to] = key, told
        try:
            self._mailboxes[family].post(Internal(command, delivery))
            return _understood(await told, answer)
        finally:
            self._waiting.pop(reply_to, None)

    def take(self, answers: Sequence[Answer]) -> list[Answer]:
        """Give those from inside to whoever asked; the others."""
        outside = []
        for answer in answers:
            if not answer.reply_to.startswith(f"{VERB}/"):
                outside.append(answer)
                continue
            _, told = self._waiting.get(answer.reply_to, ("", None))
            if told is not None and not told.done():
                told.set_result(answer)
        return outside

    def give_up(self, gone: Callable[[str], bool]) -> None:
        """These keys are another node's; what was asked about them here is not answered."""
        for key, told in self._waiting.values():
            if gone(key) and not told.done():
                told.set_exception(Refused("PARTITION_UNOWNED", f"{key} moved to another node"))


def is_inside(delivery: Delivery) -> bool:
    return delivery.verb == VERB and delivery.reply_to == delivery.id


def _understood(answer: Answer, kind: type[T]) -> T:
    if not answer.code:
        return msgspec.json.decode(answer.body, type=kind)
    said = msgspec.json.decode(answer.body, type=_Refusal).error
    raises = Failed if CODES[said.code].retryable else Refused
    raise raises(said.code, said.message, hint=said.hint or "")
