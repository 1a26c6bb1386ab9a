"""The ports: what the rest of Rookery may ask of a bus, in words that are not NATS's.

Two buses implement them: JetStream (``rookery.bus.*``) and memory (``rookery.bus.memory``); one
suite of contract tests holds for both. Everything here lives on the bus's event loop: methods are
called there, callbacks are called there, in batches. Threads hand work over with ``LoopThread``.

An outage is not an error here: ``append`` and the followers wait it out. ``Failed`` is raised for
requests that want an answer now (reads, claims, blobs), ``Refused`` for what can never work.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

from rookery.bus.ports.journal import (
    Appended,
    AppendOutcome,
    AppendRejected,
    AppendRequest,
    Backpressure,
    Conflict,
    Feed,
    Filter,
    Journal,
    StoredMessage,
    Superseded,
)
from rookery.schemas.envelope import EntityId
from rookery.schemas.worker_protocol import Job, JobOutcome, WorkerCatalogue, WorkerReports

__all__ = [
    "BLOB_BYTES_MAX",
    "IN_FACT_BYTES_MAX",
    "AppendOutcome",
    "AppendRejected",
    "AppendRequest",
    "Appended",
    "Backpressure",
    "Blobs",
    "Bus",
    "BusLoop",
    "Claim",
    "Claims",
    "Conflict",
    "DeadLetter",
    "Delivery",
    "EntitySnapshot",
    "EntitySnapshots",
    "ExternalService",
    "Feed",
    "Filter",
    "Inbox",
    "InboxPosition",
    "Journal",
    "ReplyMessage",
    "RequestEndpoint",
    "Secrets",
    "StoredMessage",
    "Superseded",
    "Timer",
    "Timers",
    "ToolWorkers",
    "WorkerEndpoint",
]

T = TypeVar("T")

PARTITIONS = 16
"""Sessions are spread over this many partitions; it is part of the inbox's stored subjects."""

# --- commands -----------------------------------------------------------------------------------


class InboxPosition(msgspec.Struct, frozen=True, gc=False):
    """Where a delivery stands in the inbox or among the fired timers."""

    partition: int
    sequence: int
    source: str = "inbox"
    """``inbox`` or ``timers``."""


class Delivery(msgspec.Struct, eq=False, gc=False):
    """A command as it came through a door: nothing decoded, nothing trusted."""

    verb: str
    key: str
    id: str
    """``Nats-Msg-Id``, or one made at the door that stays the same on redelivery."""
    body: bytes
    content_type: str = ""
    mode: str = ""
    reply_to: str = ""
    """Request-reply: the requester's inbox. Inbox stream: the header ``Rookery-Reply``."""
    traceparent: str = ""
    position: InboxPosition | None = None
    """``None`` for request-reply: nothing to acknowledge."""
    arrived_ms: int = 0
    """When the inbox took it in, by the server's clock; 0 at a door, where nobody stamps it."""
    attempt: int = 1
    """1 at first delivery."""


class ReplyMessage(msgspec.Struct, eq=False, gc=False):
    """Something to say to whoever asked."""

    reply_to: str
    body: bytes
    code: str = ""
    """Set if the answer is an error: also sent as headers, where stock tools look for it."""


class RequestEndpoint(Protocol):
    """Request-reply: the client keeps the command until the durable answer and may repeat it."""

    @property
    def reply_bytes_max(self) -> int:
        """A larger answer cannot be sent: its requester is told so instead."""

    async def open(self, deliver: Callable[[list[Delivery]], None]) -> None:
        """Take requests of the realm; those of partitions owned elsewhere are passed on."""

    async def serve_partitions(self, partitions: frozenset[int]) -> None:
        """From now on take the requests of exactly these partitions."""

    def reply(self, answers: Sequence[ReplyMessage]) -> None:
        """Send answers. It never raises: what cannot be sent is dropped, the client asks again."""

    async def close(self) -> None:
        """Take no more requests."""


class Inbox(Protocol):
    """Durable commands: published by anybody, worked off in order per key by the owner."""

    async def open(self, partition: int, deliver: Callable[[list[Delivery]], None]) -> None:
        """Take the commands and fired timers of a partition, one batch unacknowledged at a time.
        What was delivered before (its node died) comes alone: a poisonous one takes no others with
        it into the dead letters."""

    def done(self, positions: Sequence[InboxPosition]) -> None:
        """These are committed (or refused, or dead letters) and need not come again."""

    async def close(self, partition: int) -> None:
        """Take no more of this partition; what is not done comes again, here or elsewhere."""

    def partitions_taken_over(self) -> frozenset[int]:
        """Open partitions that somebody else has opened since: nothing comes of them any more."""

    async def submit(
        self,
        verb: str,
        key: str,
        body: bytes,
        *,
        message_id: str,
        content_type: str = "",
        mode: str = "",
        reply_to: str = "",
        traceparent: str = "",
    ) -> int:
        """Publish a command durably; its sequence. The client's side of the inbox."""

    async def dead_letter(self, delivery: Delivery, code: str, message: str) -> int:
        """Keep a copy among the dead letters; its number there."""

    async def dead_letters(self) -> list[DeadLetter]:
        """All dead letters, oldest first."""

    async def retry_dead_letter(self, number: int) -> None:
        """Submit a dead letter again, under its own id, and remove it."""

    async def drop_dead_letter(self, number: int) -> None:
        """Remove a dead letter for good."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A command that could not be worked off, with the reason."""

    number: int
    verb: str
    key: str
    id: str
    code: str
    message: str
    body: bytes
    content_type: str = ""
    mode: str = ""
    reply_to: str = ""
    traceparent: str = ""
    buried_at_ms: int = 0


# --- timers, blobs, claims, snapshots -----------------------------------------------------------


class Timer(msgspec.Struct, frozen=True, kw_only=True):
    """A command to be delivered through the inbox of ``key``'s partition when it is due.

    ``id`` names the timer: arming it again replaces it. The delivery's command id is
    ``timer/<id>/<due_ms>``, so a timer that fires twice is handled once.
    """

    id: str
    due_ms: int
    verb: str
    key: str
    body: bytes


class Timers(Protocol):
    """Wake-ups that survive everybody."""

    async def arm(self, timer: Timer) -> None:
        """Deliver at ``due_ms`` or, if that is past, at once. Idempotent."""

    async def cancel(self, timer_id: str) -> None:
        """Never deliver it. No error if it has fired or was never armed."""


IN_FACT_BYTES_MAX: Final = 64 << 10
"""Larger values and bodies stand in the blob store, and facts name them by digest."""
BLOB_BYTES_MAX: Final = 64 << 20
"""Of a value, for whoever reads it holds it several times over."""


class Blobs(Protocol):
    """Bytes named by their SHA3-256."""

    async def put(self, data: bytes, bytes_max: int = BLOB_BYTES_MAX) -> str:
        """Store ``data``; its digest. Storing it twice costs one look. ``PAYLOAD_TOO_LARGE`` for
        what is larger than values are, unless it may be."""

    async def get(self, digest: str) -> bytes:
        """The bytes, checked against the digest; ``BLOB_NOT_FOUND`` or ``BLOB_CORRUPT``."""


class Claim(msgspec.Struct, frozen=True):
    """A name held for a while."""

    name: str
    holder: str
    token: int
    """Grows with every change of the claim: a holder with a lower one has lost it."""
    value: bytes = b""


class Claims(Protocol):
    """Exclusive names with a time to live (whole seconds, at least one). Acquiring, renewing and
    seizing fail if no answer comes within a quarter of that time: a holder has to know in time."""

    async def acquire(self, name: str, holder: str, ttl_s: int, value: bytes = b"") -> Claim | None:
        """The claim, or ``None`` if somebody else holds it. Taking one's own again renews it."""

    async def renew(self, claim: Claim, ttl_s: int, value: bytes = b"") -> Claim:
        """The claim with a higher token and a fresh time to live; ``CLAIM_LOST`` if it is gone."""

    async def take_from_dead(
        self, claim: Claim, holder: str, ttl_s: int, value: bytes = b""
    ) -> Claim | None:
        """Take over a claim whose holder is known to be dead; ``None`` if it changed meanwhile."""

    async def release(self, claim: Claim) -> None:
        """Free the name if the claim still stands; no error if it does not."""

    async def list(self, prefix: str = "") -> list[Claim]:
        """All claims alive whose name starts with ``prefix``."""


class EntitySnapshot(msgspec.Struct, frozen=True):
    """An entity's state as of ``sequence``."""

    sequence: int
    body: bytes


class EntitySnapshots(Protocol):
    """States of entities: a shortcut, never the truth. Losing them all loses nothing."""

    async def save(self, entity: EntityId, schema: int, snapshot: EntitySnapshot) -> None:
        """Replace the entity's snapshot; an older sequence never replaces a newer one."""

    async def load(self, entity: EntityId, schema: int) -> EntitySnapshot | None:
        """The snapshot, or ``None`` if there is none written under exactly this ``schema``."""


class Secrets(Protocol):
    """What the nodes of a realm share and keep to themselves."""

    async def get_or_create(self, name: str, proposed: bytes) -> bytes:
        """What stands under ``name``: ``proposed``, from now on, if nothing did."""


# --- tool workers -----------------------------------------------------------------------------


class ToolWorkers(Protocol):
    """Workers in other processes, a crew a surface, as who has work for them sees them."""

    async def call(self, job: Job) -> JobOutcome:
        """What comes of a job that some worker is given, soon after its time. It is sent once.
        Raises a coded error where it cannot be sent, or where an answer cannot be read."""

    async def query_attempt(self, surface: str, call_id: str, attempt: int) -> WorkerReports:
        """What became of an attempt, of each worker that answers. It is called off there."""

    def cancel(self, call_id: str) -> None:
        """Tell whoever works on this call that nobody wants the answer."""

    async def catalogues(self, surface: str, patience_s: float) -> list[bytes]:
        """The ``WorkerCatalogue`` of every worker of the surface that tells it. Waits for the first
        one so long, for others a moment; empty if there is none."""


class WorkerEndpoint(Protocol):
    """Where one worker takes the jobs of its surface."""

    async def open(
        self, catalogue: WorkerCatalogue, take: Callable[[Job], None], cancel: Callable[[str], None]
    ) -> None:
        """From now on jobs come, one to one worker; ``cancel`` names one nobody wants."""

    async def reply(self, job: Job, body: bytes) -> None:
        """The job has come to this ``JobAnswer``."""

    def reject(self, job: Job, reason: str) -> None:
        """It was not begun: somebody else may be asked."""

    def report_unknown(self, job: Job, reason: str) -> None:
        """Nobody will know what it has come to."""

    async def drain(self) -> None:
        """Let no more jobs come; what was on its way is given to ``take`` before this returns."""

    async def close(self) -> None:
        """Say nothing more."""


# --- services outside ---------------------------------------------------------------------------


class ExternalService(Protocol):
    """Somebody outside of the realm who answers requests."""

    async def ask(self, request_id: str, body: bytes, *, silence_s_max: float) -> bytes:
        """The answer; ``Failed`` NO_ANSWER if there was a connection for so long and none came.

        Outages are waited out and the request is repeated under its id, so whoever answers may see
        it twice.
        """


class Bus(Protocol):
    """All ports of one realm, open between ``start`` and ``stop``."""

    @property
    def realm(self) -> str: ...
    @property
    def journal(self) -> Journal: ...
    @property
    def feed(self) -> Feed: ...
    @property
    def request_endpoint(self) -> RequestEndpoint: ...
    @property
    def inbox(self) -> Inbox: ...
    @property
    def timers(self) -> Timers: ...
    @property
    def blobs(self) -> Blobs: ...
    @property
    def claims(self) -> Claims: ...
    @property
    def snapshots(self) -> EntitySnapshots: ...
    @property
    def secrets(self) -> Secrets: ...
    @property
    def tool_workers(self) -> ToolWorkers: ...

    async def start(self) -> None:
        """Connect, and make or check the streams of the realm."""

    async def stop(self) -> None:
        """Let go of everything; nothing is delivered afterwards."""

    @property
    def connected(self) -> bool:
        """Whether the server can be reached just now."""

    def partition(self, key: str) -> int:
        """The partition of a key."""

    def reset(self) -> None:
        """This node's claims have run out. What it sent and the network has not yet taken is lost,
        and appends without an answer end as ``Superseded``, but for those of the family
        ``node``."""


class BusLoop(Protocol):
    """The event loop the bus lives on, as other threads see it."""

    def call_soon(self, call: Callable[..., object], *args: object) -> None:
        """Call on the loop soon."""

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run on the loop and wait; never called on the loop itself."""
