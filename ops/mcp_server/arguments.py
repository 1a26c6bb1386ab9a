"""The arguments of Rookery's own MCP tools, and JSON schemas as MCP clients need them."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from rookery.ops.mcp_server.run_report import ErrorReport
from rookery.schemas.codec import decode_command, encode_json
from rookery.schemas.protection.rights import Rights
from rookery.schemas.replies import RunState
from rookery.schemas.run import Language, PositiveLimit, SessionLimits

__all__ = [
    "ApproveArguments",
    "CreateSessionArguments",
    "DenyArguments",
    "DestroySessionArguments",
    "ListApprovalsArguments",
    "ListRunsArguments",
    "ListSessionsArguments",
    "RunCancelArguments",
    "RunCodeArguments",
    "RunIdArguments",
    "RunResultArguments",
    "ShowApprovalArguments",
    "ValidateArguments",
    "decode_arguments",
    "hoist_definitions",
    "object_schema",
    "reply_schema",
]

WAIT_S_MAX: Final = 86_400.0
ARGUMENT_BYTES_MAX: Final = 8 << 20
"""Large values of ``inputs`` go into the blob store."""

Session = Annotated[
    str, Meta(description="Name of the session; its variables last from run to run.")
]
RunId = Annotated[str, Meta(description="Id of the run, as run_code and runs_list return it.")]
WaitSeconds = Annotated[
    float,
    Meta(
        ge=0,
        le=WAIT_S_MAX,
        description="Answer after so many seconds even if the run goes on; 0: at once. Without it: "
        "when the run ends or waits for a person.",
    ),
]
Limit = Annotated[int, Meta(ge=1, le=200, description="Largest number of entries.")]
Before = Annotated[str, Meta(description="`next` of the page before.")]
Reason = Annotated[str, Meta(max_length=500, description="Why, for the record.")]


class ToolArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of one tool."""


class ValidateArguments(ToolArguments, frozen=True, kw_only=True):
    code: Annotated[str, Meta(description="The program. Its last expression is the result.")]
    language: Language = Language.PYTHON
    session: Session | None = None
    inputs: Annotated[
        dict[str, Any], Meta(description="Variables that the program begins with.")
    ] = {}


class RunCodeArguments(ValidateArguments, frozen=True, kw_only=True):
    rights: Annotated[
        Rights | None,
        Meta(description="What the program may call, of what its session may. Without it: all."),
    ] = None
    timeout_ms: Annotated[
        PositiveLimit | None,
        Meta(description="Time limit of the program, without the time that it is parked."),
    ] = None
    wait_s: WaitSeconds | None = None
    message_id: Annotated[
        str | None, Meta(description="Repeating a call with the same id starts no second run.")
    ] = None


class CreateSessionArguments(ToolArguments, frozen=True, kw_only=True):
    session: Session
    language: Language = Language.PYTHON
    limits: Annotated[
        SessionLimits | None, Meta(description="Limits of runs that name none of their own.")
    ] = None
    rights: Annotated[Rights | None, Meta(description="What its programs may call.")] = None


class DestroySessionArguments(ToolArguments, frozen=True, kw_only=True):
    session: Session


class ListSessionsArguments(ToolArguments, frozen=True, kw_only=True):
    limit: Limit = 50
    before: Before | None = None


class ListRunsArguments(ToolArguments, frozen=True, kw_only=True):
    session: Session | None = None
    status: RunState | None = None
    limit: Limit = 20
    before: Before | None = None


class RunIdArguments(ToolArguments, frozen=True, kw_only=True):
    run_id: RunId


class RunResultArguments(RunIdArguments, frozen=True, kw_only=True):
    wait_s: WaitSeconds | None = None


class RunCancelArguments(RunIdArguments, frozen=True, kw_only=True):
    after_boundary: Annotated[
        bool, Meta(description="End it at its next boundary, instead of now.")
    ] = False
    reason: Reason = ""


class ListApprovalsArguments(ToolArguments, frozen=True, kw_only=True):
    session: Session | None = None
    ended: Annotated[bool, Meta(description="Also those that were answered or withdrawn.")] = False
    limit: Limit = 50


class ShowApprovalArguments(ToolArguments, frozen=True, kw_only=True):
    approval_id: Annotated[str, Meta(description="Id of the approval.")]


class DenyArguments(ShowApprovalArguments, frozen=True, kw_only=True):
    reason: Reason = ""


class ApproveArguments(DenyArguments, frozen=True, kw_only=True):
    for_session: Annotated[
        bool, Meta(description="Approve the tool for the rest of the session.")
    ] = False


A = TypeVar("A", bound=msgspec.Struct)


def decode_arguments(kind: type[A], arguments: dict[str, Any]) -> A:
    """The arguments of a call, or a coded refusal that names the wrong one."""
    return decode_command(encode_json(arguments), kind, bytes_max=ARGUMENT_BYTES_MAX)


# --- schemas --------------------------------------------------------------------------------------


def object_schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The schema of a struct in one piece: its root is an object, and it has no references, which
    many hosts cannot follow."""
    (root,), parts = msgspec.json.schema_components((kind,), ref_template="{name}")
    found: dict[str, Any] = _without_references(root, parts)
    return found | {"required": found.get("required", [])}


def reply_schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The schema of a tool's answers: the struct, or an error in its place."""
    schema = object_schema(kind)
    error = {"error": object_schema(ErrorReport)}
    return schema | {"properties": error | schema["properties"], "required": []}


def _without_references(schema: Any, parts: dict[str, Any]) -> Any:
    match schema:
        case {"$ref": str(name), **rest}:
            described = {key: value for key, value in rest.items() if key != "title"}
            return _without_references(parts[name], parts) | described
        case dict():
            return {
                key: " ".join(value.split())
                if key == "description" and isinstance(value, str)
                else _without_references(value, parts)
                for key, value in schema.items()
                if key != "title" or not isinstance(value, str)
            }
        case list():
            return [_without_references(one, parts) for one in schema]
        case _:
            return schema


_DEFINITIONS: Final = ("$defs", "definitions")


def hoist_definitions(schema: Any) -> tuple[Any, dict[str, Any]]:
    """A tool's schema for use inside another one, and the definitions for its root. A schema whose
    references would lead elsewhere there is replaced by one that says nothing."""
    if not isinstance(schema, dict):
        return {}, {}
    inner = {key: value for key, value in schema.items() if key not in (*_DEFINITIONS, "$schema")}
    hoisted = {key: schema[key] for key in _DEFINITIONS if key in schema}
    if any(not _is_hoisted(reference) for reference in _references(schema)):
        return {}, {}
    return inner, hoisted


def _references(schema: Any) -> list[str]:
    match schema:
        case dict():
            own = [str(schema[key]) for key in ("$ref", "$dynamicRef") if key in schema]
            return own + [found for value in schema.values() for found in _references(value)]
        case list():
            return [found for value in schema for found in _references(value)]
        case _:
            return []


def _is_hoisted(reference: str) -> bool:
    return reference.startswith(tuple(f"#/{name}/" for name in _DEFINITIONS))
