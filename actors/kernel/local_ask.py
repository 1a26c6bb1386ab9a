"""``LocalAsk``: a request from an executor to an actor of the same node.

The request goes through the actor's mailbox like any command, and its reply follows the commit.
Each ask has a fresh id, so the decider must recognise a repeated one by its body. Lives on the
bus's loop.
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
    """Send ``body`` to the entity (family, key) and wait for its reply of type ``answer``."""

    async def __call__(self, family: str, key: str, body: msgspec.Struct, answer: type[T]) -> T: ...


class _ErrorReply(msgspec.Struct):
    error: ErrorObject


class LocalAsk:
    """One per node."""

    def __init__(self, mailboxes: Mapping[str, Mailbox]) -> None:
        self._mailboxes = mailboxes
        self._numbers = count(1)
        self._pending: dict[str, tuple[str, asyncio.Future[ReplyMessage]]] = {}

    async def ask(self, family: str, key: str, body: msgspec.Struct, answer: type[T]) -> T:
        """Wait for the actor's reply; raises its ``Refused`` or ``Failed``. When the node stops,
        the waiting task is cancelled."""
        reply_to = f"{VERB}/{next(self._numbers)}"
        command = Command(verb=VERB, key=key, id=reply_to, body=body, reply_to=reply_to)
        delivery = Delivery(verb=VERB, key=key, id=reply_to, body=b"", reply_to=reply_to)
        reply: asyncio.Future[ReplyMessage] = asyncio.get_running_loop().create_future()
        self._pending[reply_to] = key, reply
        try:
            self._mailboxes[family].post(LocalCommand(command, delivery))
            return _decode_reply(await reply, answer)
        finally:
            self._pending.pop(reply_to, None)

    def resolve_replies(self, answers: Sequence[ReplyMessage]) -> list[ReplyMessage]:
        """Resolve the replies to local asks; the others are returned."""
        outside = []
        for answer in answers:
            if not answer.reply_to.startswith(f"{VERB}/"):
                outside.append(answer)
                continue
            _, reply = self._pending.get(answer.reply_to, ("", None))
            if reply is not None and not reply.done():
                reply.set_result(answer)
        return outside

    def cancel_keys(self, is_lost: Callable[[str], bool]) -> None:
        """Fail the asks about keys that moved to another node."""
        for key, reply in self._pending.values():
            if is_lost(key) and not reply.done():
                reply.set_exception(Refused("PARTITION_UNOWNED", f"{key} moved to another node"))


def is_local(delivery: Delivery) -> bool:
    return delivery.verb == VERB and delivery.reply_to == delivery.id


def _decode_reply(answer: ReplyMessage, kind: type[T]) -> T:
    if not answer.code:
        return msgspec.json.decode(answer.body, type=kind)
    error = msgspec.json.decode(answer.body, type=_ErrorReply).error
    raises = Failed if CODES[error.code].retryable else Refused
    raise raises(error.code, error.message, hint=error.hint or "")
