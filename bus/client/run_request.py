"""Encoding of a run's request and decoding of its result.

Only values without JSON are refused here; the node validates the rest, with the same errors for
every client.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypedDict, Unpack

import msgspec
from msgspec import UNSET

from rookery.schemas.agents import Compaction, ModelSettings
from rookery.schemas.codec import encode_json
from rookery.schemas.digest import canonical_json
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.protection.rights import Rights
from rookery.schemas.replies import RunAnswer
from rookery.schemas.run import FileInput, Language, RunRequest, SessionLimits

__all__ = [
    "RunOptions",
    "RunSpec",
    "decode_result",
    "encode_body",
    "encode_large_run",
    "encode_run",
    "not_executed_here",
]

FILE_BYTES_MAX: Final = 64 << 10
"""A larger file is stored as a blob."""

RunSpec = RunRequest | Mapping[str, Any] | str
"""A request, its fields, or only the code."""


class RunOptions(TypedDict, total=False):
    """Options of a run beside its code; the node has the defaults."""

    language: Language | str
    inputs: Mapping[str, Any]
    """Variables the program begins with."""
    limits: SessionLimits | Mapping[str, int]
    timeout_ms: int
    snapshot: bool
    """Whether to store a snapshot of the session after the run."""
    rights: Rights | Mapping[str, Any]
    """What the run may call, beside the rights of its session."""
    files: Mapping[str, FileInput | bytes | str | None]
    """Files of the session to write first, by path: content, or ``None`` to remove one."""
    prompt: str
    """What a model is asked, instead of code; the options below are for it."""
    model: str
    """Alias in the node's configuration."""
    instructions: str
    settings: ModelSettings | Mapping[str, Any]
    tools: Sequence[str]
    """The tools that the model sees."""
    agent: str
    """A registered agent, with ``inputs`` as its arguments; a prompt may be left out."""
    compact: Compaction | Mapping[str, Any]
    """Replaces older messages of the conversation, in the place of a prompt: ``keep``, ``drop``."""


def encode_run(session: str, run: RunSpec, **options: Unpack[RunOptions]) -> bytes:
    """The body of the command ``run``; options override the fields of ``run``."""
    fields = _fields(session, run)
    named: dict[str, Any] = dict(options)
    if "snapshot" in named:
        named["return_snapshot"] = named.pop("snapshot")
    if "rights" in fields:
        fields["grants"] = fields.pop("rights")
    if "rights" in named:
        named["grants"] = named.pop("rights")
    if "files" in named:
        named["files"] = {path: _file_input(file) for path, file in named["files"].items()}
    fields |= named
    try:
        canonical_json(fields.get("inputs"))
    except Refused as refusal:
        raise Refused("INVALID_ARGUMENT", f"the inputs are not JSON: {refusal.message}") from None
    return encode_body(fields)


async def encode_large_run(
    store: Callable[[bytes], Awaitable[str]],
    bytes_max: int,
    session: str,
    run: RunSpec,
    **options: Unpack[RunOptions],
) -> bytes:
    """``encode_run``; ``store`` gets the large files, and the inputs if the body has more than
    ``bytes_max`` bytes, and returns their digests."""
    body = encode_run(session, run, **options)
    if len(body) <= FILE_BYTES_MAX:
        return body
    fields = msgspec.json.decode(body)
    for path, file in (fields.get("files") or {}).items():
        content = _content(file)
        if len(content) > FILE_BYTES_MAX:
            fields["files"][path] = {"blob": await store(content)}
    if (
        len(encode_body(fields)) > bytes_max
        and fields.get("inputs")
        and "inputs_blob" not in fields
    ):
        fields["inputs_blob"] = await store(encode_body(fields.pop("inputs")))
    return encode_body(fields)


def _file_input(file: FileInput | bytes | str | None) -> FileInput | None:
    match file:
        case bytes():
            return FileInput(data=file)
        case str():
            return FileInput(text=file)
        case _:
            return file


def _content(file: dict[str, Any] | None) -> bytes:
    found = {} if file is None else file
    return b64decode(found.get("data", "")) or found.get("text", "").encode()


def _fields(session: str, run: object) -> dict[str, Any]:
    match run:
        case str():
            return {"session_id": session, "code": run}
        case RunRequest():
            given = msgspec.structs.asdict(run)
            fields = {name: value for name, value in given.items() if value is not UNSET}
            if run.session_id == RunRequest().session_id:
                fields["session_id"] = session
            return fields
        case Mapping():
            return dict(run)
        case _:
            kind = type(run).__name__
            raise Refused("INVALID_ARGUMENT", f"a run is code, fields or a request, not {kind}")


def encode_body(body: object) -> bytes:
    """The body of any command."""
    try:
        return encode_json(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise Refused("INVALID_ARGUMENT", f"the body has no JSON: {error}") from None


def decode_result(reply: Mapping[str, Any]) -> RunAnswer:
    """The result of a run that a node drove."""
    if "status" not in reply:
        raise not_executed_here(str(reply.get("state")))
    try:
        return msgspec.convert(reply, RunAnswer)
    except msgspec.ValidationError as error:
        raise Failed("INVALID_JSON", f"the reply is not a run's result: {error}") from None


def not_executed_here(state: str) -> Refused:
    """The error for the result of a run that no node drives."""
    return Refused(
        "UNSUPPORTED_FEATURE",
        f"the run is {state} and has no result: a client takes its turn's steps",
        hint="`reply` returns its progress",
    )
