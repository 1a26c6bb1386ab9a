"""A run as a program words it, and its end as a program gets it.

Only what cannot be put into JSON is refused here; everything else is for the node to judge, so that
every door says the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

import msgspec

from rookery.schemas.codec import encode_json
from rookery.schemas.digest import canonical_json
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.replies import RunAnswer
from rookery.schemas.run import Language, RunRequest, SessionLimits

__all__ = [
    "RunOptions",
    "RunSpec",
    "decode_result",
    "encode_body",
    "encode_run",
    "not_executed_here",
]

RunSpec = RunRequest | Mapping[str, Any] | str
"""A request, its fields, or just the code."""


class RunOptions(TypedDict, total=False):
    """What may be said of a run beside its code; what is not said is the node's to choose."""

    language: Language | str
    inputs: Mapping[str, Any]
    """Variables the program begins with."""
    limits: SessionLimits | Mapping[str, int]
    timeout_ms: int
    snapshot: bool
    """Whether the session is to be kept as the run leaves it."""


def encode_run(session: str, run: RunSpec, **options: Unpack[RunOptions]) -> bytes:
    """The body of the command ``run``; options count over what ``run`` says itself."""
    fields = _fields(session, run)
    said: dict[str, Any] = dict(options)
    if "snapshot" in said:
        said["return_snapshot"] = said.pop("snapshot")
    fields |= said
    try:
        canonical_json(fields.get("inputs"))
    except Refused as refusal:
        raise Refused("INVALID_ARGUMENT", f"the inputs are not JSON: {refusal.message}") from None
    return encode_body(fields)


def _fields(session: str, run: object) -> dict[str, Any]:
    match run:
        case str():
            return {"session_id": session, "code": run}
        case RunRequest():
            fields = msgspec.structs.asdict(run)
            if run.session_id == RunRequest().session_id:
                fields["session_id"] = session
            return fields
        case Mapping():
            return dict(run)
        case _:
            kind = type(run).__name__
            raise Refused("INVALID_ARGUMENT", f"a run is code, fields or a request, and no {kind}")


def encode_body(body: object) -> bytes:
    """The body of any command."""
    try:
        return encode_json(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise Refused("INVALID_ARGUMENT", f"this cannot be put into JSON: {error}") from None


def decode_result(told: Mapping[str, Any]) -> RunAnswer:
    """What a run came to, where a node drove it."""
    if "status" not in told:
        raise not_executed_here(str(told.get("state")))
    try:
        return msgspec.convert(told, RunAnswer)
    except msgspec.ValidationError as error:
        raise Failed("INVALID_JSON", f"this is no result of a run: {error}") from None


def not_executed_here(state: str) -> Refused:
    """Of a run whose driver is outside."""
    return Refused(
        "UNSUPPORTED_FEATURE",
        f"the run is {state}, and has no result: its driver is not the node",
        hint="`reply` tells how far it has come",
    )
