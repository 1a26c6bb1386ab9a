"""The calls that an answer wants: those to be made, and those refused at once.

A model's mistakes are answers to it, not failures of its run.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.execution.agents.conversation import ModelRun
from rookery.actors.execution.agents.model_port import ModelCall, ModelTool
from rookery.schemas.agents import CallPart
from rookery.schemas.calls import CallArguments, ToolFault
from rookery.schemas.digest import canonical_json, digest_bytes, digest_json
from rookery.schemas.errors import Refused

__all__ = ["CALLS_MAX", "CheckArguments", "JudgedCall", "judge_calls", "storable"]

CALLS_MAX: Final = 512
"""An answer that wants more is none: the message of its facts would be too large."""
BATCH_CALLS_MAX: Final = 128
NAME_MAX: Final = 128
TEXT_MAX: Final = 4 << 10
"""Of arguments that are no JSON object, in the message."""

CheckArguments = Callable[[str, CallArguments], None]
"""Raises ``Refused`` for arguments that the tool of this name does not accept."""


class JudgedCall(NamedTuple):
    """A call that a model wants."""

    part: CallPart
    arguments: CallArguments
    digest: str
    fault: ToolFault | None = None
    """Why it is refused."""


def judge_calls(
    wanted: Sequence[ModelCall],
    run: ModelRun,
    tools: Mapping[str, ModelTool],
    check: CheckArguments,
    *,
    calls_max: int,
    operation_id: Callable[[int], str],
) -> list[JudgedCall]:
    """The calls of an answer in their order; their numbers continue those of the run.
    ``calls_max``: of the run."""
    judged: list[JudgedCall] = []
    made = run.made
    for position, call in enumerate(wanted):
        number = run.number + position + 1
        part = _part(call, number, operation_id(number))
        try:
            if position >= BATCH_CALLS_MAX:
                text = f"one answer may want {BATCH_CALLS_MAX} calls, this one wants {len(wanted)}"
                raise Refused("TOO_MANY_CALLS", text)
            if made >= calls_max:
                raise Refused("EXTERNAL_CALLS_EXCEEDED", f"the run may make {calls_max} calls")
            arguments = _bind(part, tools, check)
        except Refused as refusal:
            judged.append(_refused(part, refusal))
            continue
        made += 1
        judged.append(JudgedCall(part, arguments, digest_json(arguments)))
    return judged


def _part(call: ModelCall, number: int, operation_id: str) -> CallPart:
    arguments, text = _readable(call.arguments)
    return CallPart(
        operation_id=operation_id,
        number=number,
        name=storable(call.name)[:NAME_MAX],
        arguments=arguments,
        text=text,
        provider_id=storable(call.id)[:NAME_MAX] or UNSET,
    )


def _readable(arguments: Any) -> tuple[Any, str | UnsetType]:
    """The object that the model wrote; else nothing, and its text."""
    try:
        found = msgspec.json.decode(arguments) if isinstance(arguments, str) else arguments
        canonical_json(found)
    except (msgspec.DecodeError, UnicodeEncodeError, Refused):
        found = None
    if isinstance(found, dict):
        return found, UNSET
    return None, storable(arguments if isinstance(arguments, str) else repr(arguments))[:TEXT_MAX]


def storable(text: str) -> str:
    """The text as UTF-8 can have it."""
    return text.encode("utf-8", "replace").decode()


def _bind(part: CallPart, tools: Mapping[str, ModelTool], check: CheckArguments) -> CallArguments:
    tool = tools.get(part.name)
    if tool is None:
        near = difflib.get_close_matches(part.name, tools, n=3, cutoff=0.0)
        known = f"the nearest are {', '.join(near)}" if near else "there is none"
        raise Refused("UNKNOWN_TOOL", f"no tool is called {part.name!r}: {known}")
    if not isinstance(part.arguments, dict):
        raise Refused("INVALID_JSON", f"the arguments of {part.name} are no JSON object")
    arguments = tool.bind(part.arguments)
    check(part.name, arguments)
    return arguments


def _refused(part: CallPart, refusal: Refused) -> JudgedCall:
    hint = f" ({refusal.hint})" if refusal.hint else ""
    text = storable(f"{refusal.message}{hint}")
    written = part.arguments if part.text is UNSET else part.text
    digest = digest_bytes(msgspec.json.encode(written))
    return JudgedCall(part, CallArguments(), digest, ToolFault(refusal.code, text[:2_000]))
