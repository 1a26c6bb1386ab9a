"""Ports: the interface between the bus and the rest of Rookery, free of NATS's terms.

JetStream (``rookery.bus.*``) and memory (``rookery.bus.memory``) implement them; one suite of
contract tests holds for both. Methods and callbacks run on the bus's event loop, callbacks in
batches. Threads hand work over with ``LoopThread``.

``append`` and the followers wait during an outage. Requests that need an answer at once (reads,
claims, blobs) raise ``Failed``; requests that can never succeed raise ``Refused``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from rookery.bus.event_loop import Backoff, TaskSet, wait_first
from rookery.bus.ports.commands import (
    DeadLetter,
    Delivery,
    EnvelopeProof,
    ExternalService,
    HookServices,
    Inbox,
    InboxPosition,
    ReplyMessage,
    RequestEndpoint,
    Timer,
    Timers,
    ToolWorkers,
    WorkerEndpoint,
    at_once_ms,
)
from rookery.bus.ports.entity_follower import EntityFollower
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
    JournalReads,
    StoredMessage,
    Superseded,
)
from rookery.bus.ports.storage import (
    BLOB_BYTES_MAX,
    IN_FACT_BYTES_MAX,
    BlobMark,
    BlobReader,
    Blobs,
    Claim,
    Claims,
    EntitySnapshot,
    EntitySnapshots,
    Secrets,
    ValueSeal,
)

__all__ = [
    "BLOB_BYTES_MAX",
    "IN_FACT_BYTES_MAX",
    "AppendOutcome",
    "AppendRejected",
    "AppendRequest",
    "Appended",
    "Backoff",
    "Backpressure",
    "BlobMark",
    "BlobReader",
    "Blobs",
    "Bus",
    "BusLoop",
    "Claim",
    "Claims",
    "Conflict",
    "DeadLetter",
    "Delivery",
    "EntityFollower",
    "EntitySnapshot",
    "EnvelopeProof",
    "ExternalService",
    "Feed",
    "Filter",
    "HookServices",
    "InboxPosition",
    "Journal",
    "JournalReads",
    "ReplyMessage",
    "RequestEndpoint",
    "Secrets",
    "StoredMessage",
    "Superseded",
    "TaskSet",
    "Timer",
    "Timers",
    "ToolWorkers",
    "ValueSeal",
    "WorkerEndpoint",
    "at_once_ms",
    "wait_first",
]


T = TypeVar("T")

PARTITIONS = 16
"""Number of partitions of sessions. It is part of the inbox's stored subjects."""


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
    def images(self) -> Blobs:
        """Memory images of sessions."""

    @property
    def claims(self) -> Claims: ...
    @property
    def snapshots(self) -> EntitySnapshots: ...
    @property
    def secrets(self) -> Secrets: ...
    @property
    def tool_workers(self) -> ToolWorkers: ...
    @property
    def hook_services(self) -> HookServices: ...

    async def start(self) -> None:
        """Connect, and create or check the streams of the realm."""

    async def stop(self) -> None:
        """Close all ports; nothing is delivered afterwards."""

    @property
    def connected(self) -> bool:
        """Whether the server is reachable at present."""

    def partition(self, key: str) -> int:
        """The partition of a key."""

    def send_output(self, session: str, body: bytes) -> None:
        """Send output of a session's run to those that follow it now, without raising: what cannot
        be sent is dropped, and the result has it."""

    def reset(self) -> None:
        """Discard what this node sent before its claims expired.

        Messages that the network has not taken are dropped. Appends without an ack end as
        ``Superseded``, except those of the family ``node``.
        """


class BusLoop(Protocol):
    """The bus's event loop, for other threads."""

    def call_soon(self, call: Callable[..., object], *args: object) -> None:
        """Schedule a call on the loop."""

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run ``work`` on the loop and wait for it; never called on the loop itself."""
