"""The messages of an actor's mailbox, replies, and asks from inside the node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec.structs import asdict

from rookery.actors.kernel.effect_runner import WatermarkHold
from rookery.actors.kernel.entity import Entity, PendingCommand
from rookery.actors.kernel.mailbox import InFlightLimit, Mailbox
from rookery.bus.ports import BusLoop, Delivery, EntitySnapshot, ReplyMessage, StoredMessage
from rookery.schemas.codec import encode_json
from rookery.schemas.envelope import Command, EntityId, Fact
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.run import ErrorObject

if TYPE_CHECKING:
    from rookery.actors.kernel.unit_of_work import UnitOfWork

__all__ = [
    "LOCAL_VERB",
    "AskActor",
    "BodyStored",
    "CommandsArrived",
    "CommitHeld",
    "DrainActor",
    "FactsCaughtUp",
    "FactsCommitted",
    "HistoryLoaded",
    "LoadFailed",
    "LocalAsk",
    "LocalCommand",
    "LocalReply",
    "Passivate",
    "ReleaseEntities",
    "ReloadBroken",
    "Reply",
    "ResumeEffects",
    "error_reply",
    "is_local",
    "reply_of",
    "wait_quiet",
]

# --- messages -------------------------------------------------------------------------------------

# The messages of an actor's mailbox, apart from the committer's ``CommitResults``.


class CommandsArrived(list[Delivery]):
    """Commands from the bus, in order."""

    def __init__(self, limit: InFlightLimit) -> None:
        super().__init__()
        self.in_flight_limit = limit
        """The limit that the requests among them exit when they end."""


class LocalCommand(NamedTuple):
    """A command from inside the node."""

    command: Command[Any]
    delivery: Delivery | None = None
    """Set if a task waits for the reply."""


class FactsCommitted(NamedTuple):
    """Facts that another family committed under a key; each may cause a reaction."""

    source: EntityId
    sequence: int
    numbered: list[tuple[int, Fact, WatermarkHold]]
    """The facts that matter to the actor's decider, each with its number in its family and a
    watermark hold."""
    first: int
    """The numbers of the message's first and last fact."""
    last: int


class HistoryLoaded(NamedTuple):
    """An entity's history has been read."""

    entity: Entity
    """The entity that requested the read. Its actor may have evicted it since, and hold another
    under the same key."""
    snapshot: EntitySnapshot | None
    tail: list[StoredMessage]


class FactsCaughtUp(NamedTuple):
    """Facts that other families committed under a key since the last ones handled."""

    entity: Entity
    missed: list[FactsCommitted]
    key_sequence: int
    """The last sequence of all the key's families."""


class ResumeEffects(NamedTuple):
    """Facts whose effects may be unfinished because the partition's owner changed."""

    key: str
    sequence: int
    facts: list[Fact]
    hold: WatermarkHold
    """Released when the effects have watermark holds of their own."""


class CommitHeld(NamedTuple):
    """Commit held facts now, unless they are committed."""

    unit: UnitOfWork


class BodyStored(NamedTuple):
    """A large body is stored as a blob."""

    entity: Entity
    pending: PendingCommand
    digest: str


class LoadFailed(NamedTuple):
    """A read for an entity, or for one of its commands, has failed for good."""

    entity: Entity
    pending: PendingCommand | None
    error: CodedError


class DrainActor(NamedTuple):
    """Call ``on_quiet`` once nothing is pending or in flight, and store snapshots."""

    on_quiet: Callable[[int], None]
    """Called with the number of messages the actor has processed."""


class ReleaseEntities(NamedTuple):
    """Evict keys that another node owns or may have owned meanwhile."""

    is_lost: Callable[[str], bool]
    on_done: Callable[[], None]
    """Called when the commits decided before have been passed to the committer."""


class ReloadBroken(NamedTuple):
    """Fold an entity again, since a damaged message under its key was quarantined."""

    key: str
    family: str
    """Of the message; other families of the key are folded again if they are broken, too."""


class Passivate(NamedTuple):
    """Evict entities that were last used before ``before_ms``."""

    before_ms: int


async def wait_quiet(mailbox: Mailbox, loop: BusLoop) -> int:
    """Wait until the mailbox's actor is idle; the number of messages it has processed."""
    quiet: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def resolve(processed: int) -> None:
        if not quiet.done():
            quiet.set_result(processed)

    mailbox.post(DrainActor(lambda processed: loop.call_soon(resolve, processed)))
    return await quiet


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
