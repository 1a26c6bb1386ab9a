"""What hosts say of attempts whose call has returned, or whose process has ended: the reports of
workers, and the tasks by which calls go on at their surfaces. Lives on the bus loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from msgspec.structs import replace

from rookery.actors.credentials import CredentialSource
from rookery.actors.tools.attempts.attempts import CallNotifier, past_credentials
from rookery.actors.tools.calls.call_rules import acts_until_ms
from rookery.actors.tools.catalogue.catalogue import ToolCatalogue
from rookery.actors.tools.hosts.host import OutcomeUnknown, PastAttempt, ToolHost, query_host
from rookery.actors.tools.state import ToolCall
from rookery.schemas.calls import CallOutcome
from rookery.schemas.errors import CODES, Failed

__all__ = ["PastAttempts"]

FOLLOW_AGAIN_S: Final = 1.0
"""After a surface could not be reached."""


class PastAttempts:
    """One per node."""

    def __init__(
        self,
        *,
        hosts: Mapping[str, ToolHost],
        board: CallNotifier,
        catalogue: ToolCatalogue,
        credentials: CredentialSource,
        now_ms: Callable[[], int],
    ) -> None:
        self._hosts, self._notifier, self._catalogue = hosts, board, catalogue
        self._credentials, self._now_ms = credentials, now_ms
        self._followed: dict[str, ToolHost] = {}
        """By operation that goes on as a task: the host that follows it."""

    async def worker_outcome(self, call: ToolCall) -> CallOutcome:
        """The outcome that the tool's workers report; raises ``OutcomeUnknown``. Workers store no
        times, so its duration counts from the intent."""
        host = self._hosts.get(call.surface)
        if host is None:
            raise OutcomeUnknown
        past = await self._attempt(call, acts_until_ms(call))
        with self._notifier.cancel_scope(
            call.run, call.operation_id, lambda: host.cancel(call.operation_id)
        ):
            outcome = await query_host(host, past)
        return replace(outcome, duration_ms=max(0, self._now_ms() - _since_ms(call)))

    async def task_outcome(
        self, call: ToolCall, is_awaited: Callable[[], Awaitable[bool]]
    ) -> CallOutcome:
        """The outcome of a call that goes on as a task; raises ``OutcomeUnknown``. While its
        surface cannot be reached, it is asked again until the time of the call is over. It counts
        no time: nothing of it runs here."""
        operation = call.operation_id
        while (host := self._hosts.get(call.surface)) is not None:
            past = await self._attempt(call, call.task_until_ms or call.deadline_at_ms)
            following = asyncio.ensure_future(host.follow_task(past, call.task))
            self._followed[operation] = host
            try:
                with self._notifier.cancel_scope(
                    call.run, operation, partial(self.cancel_task, operation)
                ):
                    if not await is_awaited():
                        self.cancel_task(operation)
                    return replace(await following, duration_ms=0)
            except Failed as failure:
                is_over = past.left_ms <= 0 or not await is_awaited()
                if is_over or not CODES[failure.code].retryable:
                    raise OutcomeUnknown(failure.message) from None
            finally:
                following.cancel()  # If this node does not own the session any more.
                del self._followed[operation]
            await asyncio.sleep(FOLLOW_AGAIN_S)
        raise OutcomeUnknown(f"{call.surface} was removed")

    def cancel_task(self, operation_id: str) -> None:
        """End the task of a call that its run no longer waits for."""
        if (host := self._followed.get(operation_id)) is not None:
            host.cancel(operation_id)

    async def _attempt(self, call: ToolCall, until_ms: int) -> PastAttempt:
        binding = self._catalogue.binding_of(call.name)
        return PastAttempt(
            name=call.name,
            call_id=call.operation_id,
            attempt=call.attempt,
            schema_digest=call.schema_digest,
            left_ms=until_ms - self._now_ms(),
            credentials=await past_credentials(self._credentials, call, binding, _since_ms(call)),
        )


def _since_ms(call: ToolCall) -> int:
    """When the attempt was intended."""
    return call.deadline_at_ms - call.timeout_ms
