"""``LocalAsk``: a request from an executor to an actor of the same node.

The request goes through the actor's mailbox like any command, and its reply follows the commit; it
is the value itself, for it does not leave the process.
Each ask has a fresh id, so the decider must recognise a repeated one by its body. Lives on the
bus's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Protocol, TypeVar

import msgspec

from rookery.actors.kernel.messaging.mailbox import Mailbox
from rookery.actors.kernel.messaging.messages import LocalCommand
from rookery.actors.kernel.messaging.replies import LOCAL_VERB, LocalReply, Reply
from rookery.bus.ports import Delivery, ReplyMessage
from rookery.schemas.envelope import Command
from rookery.schemas.errors import CodedError, Refused

__all__ = ["AskActor", "LocalAsk"]

T = TypeVar("T")


class AskActor(Protocol):
    """Send ``body`` to the entity (family, key) and wait for its reply of type ``answer``."""

    async def __call__(self, family: str, key: str, body: msgspec.Struct, answer: type[T]) -> T: ...


class LocalAsk:
    """One per node."""

    def __init__(self, mailboxes: Mapping[str, Mailbox]) -> None:
        self._mailboxes = mailboxes
        self._numbers = count(1)
        self._pending: dict[str, tuple[str, asyncio.Future[LocalReply]]] = {}

    async def ask(self, family: str, key: str, body: msgspec.Struct, answer: type[T]) -> T:
        """Wait for the actor's reply; raises its ``Refused`` or ``Failed``. When the node stops,
        the waiting task is cancelled."""
        reply_to = f"{LOCAL_VERB}/{next(self._numbers)}"
        command = Command(verb=LOCAL_VERB, key=key, id=reply_to, body=body, reply_to=reply_to)
        delivery = Delivery(verb=LOCAL_VERB, key=key, id=reply_to, body=b"", reply_to=reply_to)
        reply: asyncio.Future[LocalReply] = asyncio.get_running_loop().create_future()
        self._pending[reply_to] = key, reply
        try:
            self._mailboxes[family].post(LocalCommand(command, delivery))
            value = (await reply).value
        finally:
            self._pending.pop(reply_to, None)
        if isinstance(value, CodedError):
            raise value
        assert isinstance(value, answer), f"{family} replied {type(value).__name__} to {body}"
        return value

    def resolve_replies(self, answers: Sequence[Reply]) -> list[ReplyMessage]:
        """Resolve the replies to local asks; the others are returned."""
        outside = []
        for answer in answers:
            if isinstance(answer, ReplyMessage):
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
