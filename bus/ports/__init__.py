"""The ports: what the rest of Rookery may ask of a bus, in words that are not NATS's.

Two buses implement them: JetStream (``rookery.bus.*``) and memory (``rookery.bus.memory``); one
suite of contract tests holds for both. Everything here lives on the bus's event loop: methods are
called there, callbacks are called there, in batches. Threads hand work over with ``LoopThread``.

An outage is not an error here: ``append`` and the followers wait it out. ``Failed`` is raised for
requests that want an answer now (reads, claims, blobs), ``Refused`` for what can never work.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from rookery.bus.backoff import Backoff
from rookery.bus.ports.commands import (
    DeadLetter,
    Delivery,
    Inbox,
    InboxPosition,
    ReplyMessage,
    RequestEndpoint,
    Timer,
    Timers,
)
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
from rookery.bus.ports.storage import (
    BLOB_BYTES_MAX,
    IN_FACT_BYTES_MAX,
    Blobs,
    Claim,
    Claims,
    EntitySnapshot,
    EntitySnapshots,
    Secrets,
)
from rookery.bus.ports.workers import ExternalService, ToolWorkers, WorkerEndpoint
from rookery.bus.task_set import TaskSet

__all__ = [
    "BLOB_BYTES_MAX",
    "IN_FACT_BYTES_MAX",
    "AppendOutcome",
    "AppendRejected",
    "AppendRequest",
    "Appended",
    "Backoff",
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
    "TaskSet",
    "Timer",
    "Timers",
    "ToolWorkers",
    "WorkerEndpoint",
]

T = TypeVar("T")

PARTITIONS = 16
"""Sessions are spread over this many partitions; it is part of the inbox's stored subjects."""

# --- commands -----------------------------------------------------------------------------------


# --- timers, blobs, claims, snapshots -----------------------------------------------------------


# --- tool workers -----------------------------------------------------------------------------


# --- services outside ---------------------------------------------------------------------------


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
