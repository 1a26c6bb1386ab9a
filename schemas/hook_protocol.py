"""What an executor outside of the node is asked, and what it answers: by NATS, and by HTTP.

An invocation has the same id whenever it is repeated, after a crash too, so that a service can
recognise it. The answer echoes it: one to another invocation, or to one of another run, counts for
nothing.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from rookery.schemas.codec import nested_too_deeply
from rookery.schemas.errors import Refused
from rookery.schemas.ids import decode_typed_text
from rookery.schemas.seed.hook_invocation import AnyHookResponse, HookInput, HookResponse

__all__ = [
    "ANSWER_BYTES_MAX",
    "HookAnswer",
    "HookFault",
    "HookInvocation",
    "decode_answer",
    "decode_invocation",
    "invocation_id",
]

ANSWER_BYTES_MAX: Final = 256 << 10
ANSWER_DEPTH_MAX: Final = 32


class HookInvocation(msgspec.Struct, frozen=True, kw_only=True):
    """What a service is asked."""

    invocation_id: str
    realm: str
    dry_run: bool = False
    """A trial: the answer is not applied, and the service must change nothing."""
    due_ms: int
    """When the node stops waiting, by its clock."""
    input: HookInput


class HookFault(msgspec.Struct, frozen=True, kw_only=True):
    """Why a service has no response."""

    code: str
    message: str = ""


class HookAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a service answers: a response, or an error, which makes the invocation fail."""

    invocation_id: str
    response: AnyHookResponse | UnsetType = UNSET
    error: HookFault | UnsetType = UNSET


def invocation_id(hook_input: HookInput) -> str:
    """``<run>/<point>/<operation or 0>/<hook>``."""
    subjects = hook_input.view.subject_refs
    operation = subjects[0].id.as_str() if subjects else "0"
    run, hook = hook_input.run_id.as_str(), hook_input.hook_id.as_str()
    return f"{run}/{hook_input.point}/{operation}/{hook}"


_invocations: Final[msgspec.json.Decoder[HookInvocation]] = msgspec.json.Decoder(
    HookInvocation, dec_hook=decode_typed_text
)
_answers: Final[msgspec.json.Decoder[HookAnswer]] = msgspec.json.Decoder(
    HookAnswer, dec_hook=decode_typed_text
)


def decode_invocation(body: bytes) -> HookInvocation:
    """Raises ``msgspec.MsgspecError`` or ``ValueError``."""
    return _invocations.decode(body)


def decode_answer(body: bytes, invocation: str) -> HookResponse:
    """The response to this invocation. Raises ``HOOK_ANSWER_INVALID`` for anything else, and
    ``HOOK_FAILED`` for an error that the service reports."""
    if len(body) > ANSWER_BYTES_MAX:
        raise _invalid(f"it has {len(body)} bytes, {ANSWER_BYTES_MAX} are the limit")
    if nested_too_deeply(body, ANSWER_DEPTH_MAX):
        raise _invalid(f"it is deeper than {ANSWER_DEPTH_MAX} levels")
    try:
        answer = _answers.decode(body)
    except (ValueError, RecursionError) as error:
        raise _invalid(str(error)[:400]) from None
    if answer.invocation_id != invocation:
        raise _invalid("it answers another invocation")
    if answer.error is not UNSET:
        fault = answer.error
        raise Refused("HOOK_FAILED", f"{fault.code[:80]}: {fault.message[:400]}")
    if answer.response is UNSET:
        raise _invalid("it has neither a response nor an error")
    return answer.response


def _invalid(reason: str) -> Refused:
    return Refused("HOOK_ANSWER_INVALID", f"the answer of the hook: {reason}")
