"""What executors and queries share with the actors of their node: asks, and replies to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec.structs import asdict

from rookery.actors.kernel.entities.mailbox import Mailbox
from rookery.bus.ports import Delivery, ReplyMessage
from rookery.schemas.codec import encode_json
from rookery.schemas.envelope import Command
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.run import ErrorObject

__all__ = [
    "LOCAL_VERB",
    "AskActor",
    "EffectHandler",
    "LocalAsk",
    "LocalCommand",
    "LocalReply",
    "NotExecutableHere",
    "QueryHandler",
    "Reply",
    "error_reply",
    "is_local",
    "reply_of",
]

T = TypeVar("T")

QueryHandler = Callable[[Delivery], Awaitable[msgspec.Struct]]
"""Answers a query over many entities; leaves no fact."""

EffectHandler = Callable[[Any], Awaitable[None] | None]
"""A coroutine function, or a plain one for effects that are instant."""


class NotExecutableHere(Exception):
    """This node lacks something the effect needs; ``str`` says what. The effect was not started and
    waits for another owner of the key."""


# --- replies --------------------------------------------------------------------------------------

# Replies of commands: to clients as JSON, to executors of this node as the values themselves.
#
# A local ask is addressed by a subject that no client can have. Its reply never leaves the process,
# so it is not encoded.


LOCAL_VERB: Final = "inside"


class LocalReply(NamedTuple):
    """A reply to an executor of this node."""

    reply_to: str
    value: msgspec.Struct | CodedError

    @property
    def code(self) -> str:
        return self.value.code if isinstance(self.value, CodedError) else ""


Reply = ReplyMessage | LocalReply


def is_local(reply_to: str) -> bool:
    """Whether an executor of this node waits for the reply."""
    return reply_to.startswith(f"{LOCAL_VERB}/")


def reply_of(reply_to: str, value: msgspec.Struct, fact_count: int | None = None) -> Reply:
    """The reply with this value; ``fact_count`` as in ``ReplyMessage``."""
    if is_local(reply_to):
        return LocalReply(reply_to, value)
    return ReplyMessage(reply_to, encode_json(value), fact_count=fact_count)


def error_reply(reply_to: str, error: CodedError) -> Reply:
    """The reply for a refusal or a failure."""
    if is_local(reply_to):
        return LocalReply(reply_to, error)
    shown: dict[str, Any] = asdict(
        ErrorObject(code=error.code, message=error.message, hint=error.hint or None)
    )
    return ReplyMessage(reply_to, encode_json({"error": {**shown, **error.details}}), error.code)


# --- local ask ------------------------------------------------------------------------------------

# ``LocalAsk``: a request from an executor to an actor of the same node.
#
# The request goes through the actor's mailbox like any command, and its reply follows the commit;
# it is the value itself, for it does not leave the process. Each ask has a fresh id, so the decider
# must recognise a repeated one by its body. Lives on the bus's loop.


class AskActor(Protocol):
    """Send ``body`` to the entity (family, key) and wait for its reply of type ``answer``."""

    async def __call__(self, family: str, key: str, body: msgspec.Struct, answer: type[T]) -> T: ...


class LocalCommand(NamedTuple):
    """A command from inside the node."""

    command: Command[Any]
    delivery: Delivery | None = None
    """Set if a task waits for the reply."""


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
