"""Ports of calls between a node, its tool workers and outside services."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rookery.schemas.worker_protocol import Job, JobOutcome, WorkerCatalogue, WorkerReports

__all__ = ["ExternalService", "ToolWorkers", "WorkerEndpoint"]


class ToolWorkers(Protocol):
    """The tool workers of other processes, grouped by surface, for the node that calls them."""

    async def call(self, job: Job) -> JobOutcome:
        """Send a job to one worker, once, and return its outcome soon after its deadline. Raises a
        coded error if the job cannot be sent or the answer cannot be read."""

    async def query_attempt(self, surface: str, call_id: str, attempt: int) -> WorkerReports:
        """The report of each worker that replies on an attempt. The attempt is cancelled there."""

    def cancel(self, call_id: str) -> None:
        """Send the cancellation of a call to its worker."""

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


class ExternalService(Protocol):
    """A service outside of the realm that answers requests."""

    async def ask(self, request_id: str, body: bytes, *, silence_s_max: float) -> bytes:
        """Return the reply; ``Failed`` NO_ANSWER after that long with a connection and no reply.

        The request waits during outages and is repeated under its id, so the service may receive it
        twice.
        """
