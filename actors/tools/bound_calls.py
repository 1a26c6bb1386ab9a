"""Calls of tools with the credential of a binding, and what follows if their service refuses it.

The lease is refreshed. A call of an idempotent tool is made once more with the next credential, any
other fails: its tool may have acted before the refusal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.tools.attempts import CallNotifier
from rookery.actors.tools.authoring.credential import (
    CredentialSource,
    ToolCredential,
    read_credential,
    read_newer,
    read_past,
    report_rejected,
)
from rookery.actors.tools.authoring.registry import ToolCallContext
from rookery.actors.tools.capability_checks import fault, fault_of
from rookery.actors.tools.hosts.host import OutcomeUnknown, ToolHost
from rookery.actors.tools.state import ToolCall
from rookery.bus.ports import wait_first
from rookery.schemas.calls import CallOutcome, ToolFault
from rookery.schemas.errors import CODES, CodedError, Failed

__all__ = ["BoundCall", "past_credentials"]


class BoundCall(NamedTuple):
    """One attempt of a call."""

    call: ToolCall
    binding: str
    context: ToolCallContext
    host: ToolHost
    may_act: Callable[[], bool]

    async def run(
        self, source: CredentialSource, notifier: CallNotifier, left_ms: int
    ) -> CallOutcome:
        """The outcome, within the time that the call has left."""
        call, loop = self.call, asyncio.get_running_loop()
        end_s = loop.time() + left_ms / 1_000
        unwanted: asyncio.Future[None] = loop.create_future()
        refused: ToolCredential | None = None

        def cancel() -> None:
            if not unwanted.done():
                unwanted.set_result(None)
            self.host.cancel(call.operation_id)

        with notifier.cancel_scope(call.run, call.operation_id, cancel):
            while True:
                try:
                    if refused is None:
                        credential = await read_credential(source, self.binding)
                    else:
                        left_s = end_s - loop.time()
                        credential = await self._newer(source, refused, unwanted, left_s)
                        left_ms = max(1, round(1_000 * (end_s - loop.time())))
                except CodedError as error:
                    return CallOutcome(error=fault_of(error))
                given = replace(self.context, credential=credential)
                outcome = await self.host.call(given, left_ms, self.may_act)
                await report_rejected(source, self.binding, credential)
                if not credential.is_rejected or unwanted.done():
                    return outcome
                if refused is not None or not call.idempotent:
                    return CallOutcome(error=self._refusal(outcome))
                refused = credential

    async def _newer(
        self,
        source: CredentialSource,
        refused: ToolCredential,
        unwanted: asyncio.Future[None],
        left_s: float,
    ) -> ToolCredential:
        """The credential after a refused one; a coded error if there is none in time, or if the run
        ends first."""
        name = self.call.name
        reading = asyncio.ensure_future(read_newer(source, self.binding, refused))
        try:
            await wait_first((reading, unwanted), left_s)
            if unwanted.done():
                raise Failed("CANCELLED", f"{name} waited for a credential of {self.binding}")
            if reading.done():
                return reading.result()
        finally:
            reading.cancel()
        text = f"a service refused the credential of the lease {self.binding}"
        raise Failed("CREDENTIAL_REJECTED", f"{text}, which got no newer one in the time of {name}")

    def _refusal(self, outcome: CallOutcome) -> ToolFault:
        """The fault of the call; what the tool said of the refusal follows."""
        why = "also after its refresh" if self.call.idempotent else "and the tool is not idempotent"
        text = f"a service refused the credential of the lease {self.binding}, {why}"
        if outcome.error is not UNSET:
            text = f"{text}: {outcome.error.message}"
        return fault("CREDENTIAL_REJECTED", text)


async def past_credentials(
    source: CredentialSource, call: ToolCall, binding: str, since_ms: int
) -> tuple[ToolCredential, ...]:
    """The credentials that an attempt may have had. If one of them is deleted, its answer cannot be
    scrubbed, and so is not read."""
    if not binding:
        return ()
    try:
        return await read_past(source, binding, since_ms)
    except CodedError as error:
        if CODES[error.code].retryable:
            raise
        reason = f"the answer to {call.name} may have a credential: {error.message}"
        raise OutcomeUnknown(reason) from None
