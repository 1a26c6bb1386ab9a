"""Ports of calls between a node, its tool workers and services outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rookery.schemas.worker_protocol import Job, JobOutcome, WorkerCatalogue, WorkerReports

__all__ = ["ExternalService", "ToolWorkers", "WorkerEndpoint"]


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


class ExternalService(Protocol):
    """Somebody outside of the realm who answers requests."""

    async def ask(self, request_id: str, body: bytes, *, silence_s_max: float) -> bytes:
        """The answer; ``Failed`` NO_ANSWER if there was a connection for so long and none came.

        Outages are waited out and the request is repeated under its id, so whoever answers may see
        it twice.
        """
