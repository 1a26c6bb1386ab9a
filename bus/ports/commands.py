"""Ports of commands and of calls: the request endpoint, inbox and timers; workers and services."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from rookery.schemas.seed.refs import PrivacyClass
from rookery.schemas.worker_protocol import Job, JobOutcome, WorkerCatalogue, WorkerReports

__all__ = [
    "NO_PROOF",
    "DeadLetter",
    "Delivery",
    "EnvelopeProof",
    "ExternalService",
    "HookEndpoint",
    "HookHandler",
    "HookServices",
    "Inbox",
    "InboxPosition",
    "ReplyMessage",
    "RequestEndpoint",
    "Timer",
    "Timers",
    "ToolWorkers",
    "WorkerEndpoint",
    "at_once_ms",
]

# --- commands -------------------------------------------------------------------------------------


class InboxPosition(msgspec.Struct, frozen=True, gc=False):
    """Position of a delivery in the inbox or among the fired timers."""

    partition: int
    sequence: int
    source: str = "inbox"
    """``inbox`` or ``timers``."""


class EnvelopeProof(NamedTuple):
    """The headers that prove who sent an envelope, as they arrived."""

    signature: str = ""
    vouch: str = ""


NO_PROOF: Final = EnvelopeProof()


class Delivery(msgspec.Struct, eq=False, gc=False):
    """A command as it arrived: not decoded, not trusted."""

    verb: str
    key: str
    id: str
    """``Nats-Msg-Id``, or an id made on arrival that is the same on redelivery."""
    body: bytes
    content_type: str = ""
    mode: str = ""
    input_source: str = ""
    """How its client got it, as the client says."""
    reply_to: str = ""
    """Request-reply: the requester's inbox. Inbox stream: the header ``Rookery-Reply``."""
    traceparent: str = ""
    identity: str = ""
    """The client's proof of its credential's name, as it arrived."""
    by: str = ""
    """The name that it proves, or ``unsigned``; empty for timers."""
    privacy_max: PrivacyClass = PrivacyClass.CONTENT_REFS_ONLY
    """The highest class of content that the sender's role is answered with."""
    proof: EnvelopeProof = NO_PROOF
    """Of an envelope."""
    position: InboxPosition | None = None
    """``None`` for request-reply, which needs no acknowledgement."""
    arrived_ms: int = 0
    """Time of arrival in the inbox, by the server's clock; 0 for request-reply."""
    attempt: int = 1
    """1 at first delivery."""

    @property
    def is_from_timer(self) -> bool:
        """Whether a timer of the realm sent it, which no client can pretend."""
        return self.position is not None and self.position.source == "timers"


class ReplyMessage(msgspec.Struct, eq=False, gc=False):
    """A reply to a client."""

    reply_to: str
    body: bytes
    code: str = ""
    """Set if the reply is an error; also sent as headers, where stock tools look for it."""
    fact_count: int | None = None
    """How many facts of the entity a view contains; ``None`` if the reply is no such view."""


class RequestEndpoint(Protocol):
    """Request-reply: the client holds the command until the durable reply and may repeat it."""

    @property
    def reply_bytes_max(self) -> int:
        """Largest reply; a larger one is replaced by an error."""

    async def open(self, deliver: Callable[[list[Delivery]], None]) -> None:
        """Receive requests of the realm; requests of another node's partitions are forwarded."""

    async def serve_partitions(self, partitions: frozenset[int]) -> None:
        """From now on, receive the requests of exactly these partitions."""

    def reply(self, answers: Sequence[ReplyMessage]) -> None:
        """Send replies without raising: a reply that cannot be sent is dropped, and the client
        repeats its request."""

    async def close(self) -> None:
        """Stop receiving requests."""


class Inbox(Protocol):
    """Durable commands. Any client publishes; the owner processes them in order per key."""

    async def open(self, partition: int, deliver: Callable[[list[Delivery]], None]) -> None:
        """Deliver the commands and fired timers of a partition, one unacknowledged batch at a time.

        A command that was delivered before (its node died) is delivered alone, so that a poisonous
        command takes no other into the dead letters.
        """

    def done(self, positions: Sequence[InboxPosition]) -> None:
        """Acknowledge commands that are committed, refused or dead letters."""

    async def close(self, partition: int) -> None:
        """Stop delivery of this partition; unacknowledged commands are delivered again."""

    def partitions_taken_over(self) -> frozenset[int]:
        """Open partitions that another node has opened since; they deliver nothing more."""

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
        identity: str = "",
        proof: EnvelopeProof = NO_PROOF,
        realm: str = "",
    ) -> int:
        """Publish a durable command and return its sequence. The client's side of the inbox.
        ``realm``: another one, by the name that the server has for it here."""

    async def give_to_client(
        self, client: str, body: bytes, *, message_id: str, proof: EnvelopeProof
    ) -> None:
        """Publish an envelope to a client that is a peer and listens now; ``Failed`` if none
        does."""

    async def dead_letter(self, delivery: Delivery, code: str, message: str) -> int:
        """Store a copy as a dead letter and return its number."""

    async def dead_letters(self) -> list[DeadLetter]:
        """All dead letters, oldest first."""

    async def retry_dead_letter(self, number: int) -> None:
        """Submit a dead letter again under its own id, and remove it."""

    async def drop_dead_letter(self, number: int) -> None:
        """Remove a dead letter for good."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A command that failed permanently, with the reason."""

    number: int
    verb: str
    key: str
    id: str
    code: str
    message: str
    body: bytes
    content_type: str = ""
    mode: str = ""
    input_source: str = ""
    reply_to: str = ""
    traceparent: str = ""
    identity: str = ""
    proof: EnvelopeProof = NO_PROOF
    buried_at_ms: int = 0


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


CLOCK_ERROR_MS_MAX: Final = 3_600_000
"""How far the clock of a node may be ahead of the server's, which fires timers."""


def at_once_ms(now_ms: int) -> int:
    """The due time of a timer that the server fires at once. ``now_ms`` is of this node's clock."""
    return max(0, now_ms - CLOCK_ERROR_MS_MAX)


class Timers(Protocol):
    """Timers that survive restarts of all processes."""

    async def arm(self, timer: Timer) -> None:
        """Deliver at ``due_ms``, or at once if that is past. Idempotent."""

    async def cancel(self, timer_id: str) -> None:
        """Cancel the timer. A timer that has fired or was never armed is no error."""


# --- workers --------------------------------------------------------------------------------------

# Ports of calls between a node, its tool workers and outside services.


class ToolWorkers(Protocol):
    """The tool workers of other processes, grouped by surface, for the node that calls them."""

    async def call(self, job: Job) -> JobOutcome:
        """Send a job to one worker, once, and return its outcome soon after its deadline. Raises a
        coded error if the job cannot be sent or the answer cannot be read."""

    async def query_attempt(self, surface: str, call_id: str, attempt: int) -> WorkerReports:
        """The report of each worker that replies on an attempt. The attempt is cancelled there."""

    def cancel(self, call_id: str) -> None:
        """Send the cancellation of a call to its worker."""

    async def delete_answer(self, blob: str) -> None:
        """Delete the blob in which a worker stored an answer, because it has a credential."""

    async def catalogues(self, surface: str, patience_s: float) -> list[bytes]:
        """The ``WorkerCatalogue`` of every worker of the surface that replies. Waits up to
        ``patience_s`` for the first and a moment for others; empty without workers."""


class WorkerEndpoint(Protocol):
    """The endpoint at which a worker receives the jobs of its surface."""

    async def open(
        self, catalogue: WorkerCatalogue, take: Callable[[Job], None], cancel: Callable[[str], None]
    ) -> None:
        """Receive jobs, each at one worker only; ``cancel`` gets the id of a cancelled job."""

    async def reply(self, job: Job, body: bytes) -> None:
        """Reply with the job's ``JobAnswer``."""

    def reject(self, job: Job, reason: str) -> None:
        """Reply that the job was not started, so another worker may get it."""

    def report_unknown(self, job: Job, reason: str) -> None:
        """Reply that the job's outcome is unknown."""

    async def drain(self) -> None:
        """Stop receiving jobs; jobs in transit are delivered before this returns."""

    async def close(self) -> None:
        """Stop sending."""


HookHandler = Callable[[bytes], Awaitable[bytes]]
"""Answers an invocation; must not raise."""


class HookServices(Protocol):
    """The processes that serve hooks, as a node asks them."""

    @property
    def late(self) -> Mapping[str, int]:
        """By hook: answers that came after another one, or too late."""

    async def ask(self, hook: str, invocation: str, body: bytes, *, patience_s: float) -> bytes:
        """The first answer to an invocation; the caller limits its time. ``Failed`` NO_ANSWER if no
        process serves the hook for ``patience_s``. The id is that of the invocation, which a
        process may see twice."""


class HookEndpoint(Protocol):
    """The endpoint at which a process serves one hook."""

    async def open(self, handle: HookHandler) -> None:
        """Serve invocations, each at one process only."""

    async def close(self) -> None:
        """Answer what has arrived, and serve no more."""


class ExternalService(Protocol):
    """A service outside of the realm that answers requests."""

    async def ask(self, request_id: str, body: bytes, *, silence_s_max: float) -> bytes:
        """Return the reply; ``Failed`` NO_ANSWER after that long with a connection and no reply.

        The request waits during outages and is repeated under its id, so the service may receive it
        twice.
        """
