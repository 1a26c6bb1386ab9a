"""``Mailbox``: an actor's queue; ``LoopActor``: the pykka actor that empties it; and messages."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple

import pykka

from rookery.bus.ports import BusLoop, Delivery, EntitySnapshot, StoredMessage
from rookery.schemas.envelope import EntityId, Fact
from rookery.schemas.errors import CodedError

if TYPE_CHECKING:
    from rookery.actors.kernel.effect_runner import WatermarkHold
    from rookery.actors.kernel.entities.entity import Entity, PendingCommand
    from rookery.actors.kernel.entities.unit_of_work import UnitOfWork

__all__ = [
    "BodyStored",
    "CommandsArrived",
    "CommitHeld",
    "DrainActor",
    "FactsCaughtUp",
    "FactsCommitted",
    "HistoryLoaded",
    "InFlightLimit",
    "LoadFailed",
    "LoopActor",
    "Mailbox",
    "Passivate",
    "ReleaseEntities",
    "ReloadBroken",
    "ResumeEffects",
    "wait_quiet",
]

# --- mailbox --------------------------------------------------------------------------------------

# ``Mailbox``: an actor's queue, with at most one pykka wake-up in flight.
#
# A pykka ``tell`` costs several microseconds; one per batch instead of one per message makes that
# negligible.


REQUESTS_MAX = 16_384
REQUESTS_BYTES_MAX = 64 << 20


class _InFlight:
    """Requests that have entered and not exited. They enter on the loop and exit in the actor's
    handler; each side has counters of its own, so no lock is needed."""

    __slots__ = ("_entered", "_entered_bytes", "_exited", "_exited_bytes")

    def __init__(self) -> None:
        self._entered = self._entered_bytes = 0
        self._exited = self._exited_bytes = 0

    @property
    def requests(self) -> int:
        return self._entered - self._exited

    @property
    def size_bytes(self) -> int:
        return self._entered_bytes - self._exited_bytes

    def enter(self, size_bytes: int) -> None:
        self._entered += 1
        self._entered_bytes += size_bytes

    def exit(self, size_bytes: int) -> None:
        self._exited += 1
        self._exited_bytes += size_bytes


class InFlightLimit:
    """Limits the requests that one actor has accepted and not finished. A credential has a share:
    as many as are still free, so one that floods the actor leaves half of the room to the others,
    and two of them a third. Inbox commands have a limit in the inbox, and the node's own commands
    have none."""

    def __init__(self) -> None:
        self._all = _InFlight()
        self._by: dict[str, _InFlight] = {}
        """By the names of the realm's credentials; requests without a proof share one."""

    def try_enter(self, by: str, size_bytes: int) -> bool:
        """Accept a request of this credential, if the limit allows."""
        every, own = self._all, self._by.get(by)
        if own is None:
            own = self._by[by] = _InFlight()
        if (
            own.requests >= REQUESTS_MAX - every.requests
            or own.size_bytes >= REQUESTS_BYTES_MAX - every.size_bytes
        ):
            return False
        every.enter(size_bytes)
        own.enter(size_bytes)
        return True

    def exit(self, by: str, size_bytes: int) -> None:
        """Count an accepted request as finished."""
        self._all.exit(size_bytes)
        self._by[by].exit(size_bytes)

    def refusal(self, by: str) -> str:
        """Why no request of this credential is accepted now."""
        every, own = self._all, self._by[by]
        return (
            f"credential {by or 'unsigned'} has {own.requests} unfinished requests of "
            f"{own.size_bytes} bytes here, all have {every.requests} of {every.size_bytes} bytes; "
            f"the limit is {REQUESTS_MAX} of {REQUESTS_BYTES_MAX} bytes, and one credential's "
            "share is what is left of it"
        )


class Mailbox:
    """Many threads post, one actor drains. The mailbox outlives an actor that fails and serves its
    successor."""

    def __init__(self) -> None:
        self._items: deque[object] = deque()
        self._woken = False
        self.in_flight_limit = InFlightLimit()
        self._actor: pykka.ActorRef[Any] | None = None
        self.entities: Collection[str] = ()
        """The keys that the actor holds in memory."""

    def __len__(self) -> int:
        return len(self._items)

    def attach(self, actor: pykka.ActorRef[Any]) -> None:
        """Wake this actor from now on, at once if messages are waiting."""
        self._actor = actor
        self._woken = False
        self.in_flight_limit = InFlightLimit()  # The previous actor's requests are lost with it.
        if self._items:
            self._wake()

    def post(self, item: object) -> None:
        """Append ``item`` and wake the actor. Any thread."""
        self._items.append(item)
        if not self._woken:
            self._wake()

    def post_quietly(self, item: object) -> None:
        """Append ``item`` for the actor's next wake. Any thread."""
        self._items.append(item)

    def drain(self) -> list[object]:
        """Remove and return everything posted so far; the woken actor calls it."""
        self._woken = False  # Cleared before draining, so that a later post wakes the actor again.
        items = []
        while self._items:
            items.append(self._items.popleft())
        return items

    def _wake(self) -> None:
        if self._actor is None:
            return
        self._woken = True
        try:
            self._actor.tell(None)
        except pykka.ActorDeadError:
            self._woken = False  # ``attach`` wakes the successor.


# --- loop actor -----------------------------------------------------------------------------------

# ``LoopActor``: a pykka actor that runs on the bus's event loop instead of a thread of its own.
#
# A hand-over to a thread and back costs five switches, which is more than a decision. So a message
# is handled on the loop, in the next turn of the loop after it was sent. Reference, registry,
# ``tell``, ``ask``, failure and stop are pykka's; only the inbox and the place where it is emptied
# are ours.


class LoopInbox:
    """pykka's inbox; ``get`` raises ``IndexError`` instead of waiting."""

    def __init__(self) -> None:
        self._envelopes: deque[Any] = deque()
        self.get = self._envelopes.popleft
        self.on_put: Callable[[], None] = lambda: None

    def put(self, envelope: Any, /) -> None:
        self._envelopes.append(envelope)
        self.on_put()

    def empty(self) -> bool:
        return not self._envelopes


class LoopActor(pykka.Actor):
    """One message at a time, on the loop, and never inside the handler of another actor."""

    def __init__(self, run_soon: Callable[[Callable[[], None]], None]) -> None:
        """``run_soon`` schedules a call on the loop, from any thread."""
        super().__init__()
        self._run_soon = run_soon
        self._is_scheduled = False

    @staticmethod
    def _create_actor_inbox() -> LoopInbox:
        return LoopInbox()

    @staticmethod
    def _create_future() -> pykka.Future[Any]:
        return pykka.ThreadingFuture()

    def _start_actor_loop(self) -> None:
        self._actor_loop_setup()
        assert isinstance(self.actor_inbox, LoopInbox)
        self.actor_inbox.on_put = self._schedule
        if not self.actor_inbox.empty():
            self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._run_soon(self._handle_all)

    def _handle_all(self) -> None:
        """Handle what the inbox holds; pykka's own loop returns when the actor has stopped."""
        self._is_scheduled = False  # Cleared first, so that a later message is scheduled again.
        try:
            self._actor_loop_running()
        except IndexError:
            return  # The inbox is empty; pykka catches what a handler raises.
        self._actor_loop_teardown()


# --- messages -------------------------------------------------------------------------------------

# The messages of an actor's mailbox, apart from the committer's ``CommitResults``.


class CommandsArrived(list[Delivery]):
    """Commands from the bus, in order."""

    def __init__(self, limit: InFlightLimit) -> None:
        super().__init__()
        self.in_flight_limit = limit
        """The limit that the requests among them exit when they end."""


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
