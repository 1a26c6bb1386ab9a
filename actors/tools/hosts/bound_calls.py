"""Calls of tools with the credential of a binding.

A call whose service refuses the credential fails, and its lease is refreshed for the next one. It
is not made again: its tool may have acted before the refusal, and an attempt is one execution.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import UNSET

from rookery.actors.credentials import CredentialSource, read_credential, read_past, report_rejected
from rookery.actors.tools.authoring.credential import ToolCredential
from rookery.actors.tools.hosts.host import OutcomeUnknown
from rookery.actors.tools.state import ToolCall
from rookery.actors.tools.validation.capability_checks import fault, fault_of
from rookery.schemas.calls import CallOutcome
from rookery.schemas.errors import CODES, CodedError

__all__ = ["call_with_credential", "past_credentials"]


async def call_with_credential(
    source: CredentialSource,
    binding: str,
    call: Callable[[ToolCredential], Awaitable[CallOutcome]],
) -> CallOutcome:
    """The outcome of a call whose intent is recorded."""
    try:
        credential = await read_credential(source, binding)
    except CodedError as error:
        return CallOutcome(error=fault_of(error))
    outcome = await call(credential)
    if not credential.is_rejected:
        return outcome
    await report_rejected(source, binding, credential)
    text = f"a service refused the credential of the lease {binding}, which is refreshed now"
    if outcome.error is not UNSET:  # What the tool said of the refusal.
        text = f"{text}: {outcome.error.message}"
    return CallOutcome(error=fault("CREDENTIAL_REJECTED", text))


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
