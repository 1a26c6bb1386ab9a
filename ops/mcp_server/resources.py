"""Results, output and artifacts of runs as MCP resources, for what is too long for an answer.

One read returns at most ``PIECE_BYTES``; ``?offset=N`` continues.
"""

from __future__ import annotations

import base64
import re
from typing import Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import mcp_types as types
import msgspec

from rookery.bus.client import Client
from rookery.ops.mcp_server.run_follower import find_run, read_result
from rookery.ops.mcp_server.run_report import PATIENCE_S, resource_uri
from rookery.schemas.codec import encode_json
from rookery.schemas.commands import RunsQuery
from rookery.schemas.errors import Refused
from rookery.schemas.replies import RunAnswer, RunList

__all__ = ["RESOURCE_TEMPLATES", "list_results", "read_resource"]

PIECE_BYTES: Final = 1 << 20
LISTED_MAX: Final = 20
_OFFSET_DIGITS: Final = 12
_CHARACTER_BYTES_MAX: Final = 4
_PATH: Final = re.compile(r"/([^/]+)/(result|stdout|stderr|artifacts/.+)")
_JSON, _TEXT = "application/json", "text/plain"
_TEXTUAL: Final = re.compile(
    r"text/.*|application/(json|javascript|xml|x-ndjson|toml|yaml)|.*\+xml"
)

RESOURCE_TEMPLATES: Final = (
    types.ResourceTemplate(
        name="result",
        uri_template="rookery://runs/{run_id}/result{?offset}",
        description="The result of a run as JSON.",
        mime_type=_JSON,
    ),
    types.ResourceTemplate(
        name="output",
        uri_template="rookery://runs/{run_id}/{stream}{?offset}",
        description="What a run printed; stream: stdout or stderr.",
        mime_type=_TEXT,
    ),
    types.ResourceTemplate(
        name="artifact",
        uri_template="rookery://runs/{run_id}/artifacts/{+path}{?offset}",
        description="A file that a run wrote to /work/out.",
    ),
)


class _Address(NamedTuple):
    run_id: str
    part: str
    offset: int

    @classmethod
    def of(cls, uri: str) -> _Address:
        url = urlsplit(uri)
        found = _PATH.fullmatch(url.path)
        offset = parse_qs(url.query).get("offset", ["0"])[-1]
        is_number = offset.isdecimal() and len(offset) <= _OFFSET_DIGITS
        if url.scheme != "rookery" or url.netloc != "runs" or found is None or not is_number:
            raise Refused(
                "INVALID_ARGUMENT",
                f"no resource has the address {uri[:200]!r}",
                hint="as in rookery://runs/RUN/result?offset=0",
            )
        return cls(unquote(found[1]), unquote(found[2]), int(offset))


async def list_results(client: Client, session: str) -> types.ListResourcesResult:
    """The results of the session's newest runs that have ended."""
    query = RunsQuery(session=session, limit=LISTED_MAX)
    found = msgspec.convert(await client.ask("runs", "all", query, timeout_s=PATIENCE_S), RunList)
    listed = [
        types.Resource(
            name=f"result of run {view.run_id}",
            uri=resource_uri(view.run_id, "result"),
            mime_type=_JSON,
        )
        for view in found.runs
        if view.status.is_end
    ]
    return types.ListResourcesResult(resources=listed)


async def read_resource(client: Client, uri: str) -> types.ReadResourceResult:
    """A piece of a resource; its ``_meta`` has its size, and the address of the next piece."""
    address = _Address.of(uri)
    view = await find_run(client, address.run_id)
    if not view.status.is_end:
        raise Refused(
            "GUARD_REJECTED",
            f"run {view.run_id} has no result yet: it is {view.status.value.replace('_', ' ')}",
            hint=f"runs_result with run_id {view.run_id}",
        )
    content, mime = await _content(client, await read_result(client, view), address.part)
    piece = content[address.offset : address.offset + PIECE_BYTES]
    if _TEXTUAL.fullmatch(mime):
        piece = _whole_characters(piece, is_last=address.offset + len(piece) == len(content))
    end = address.offset + len(piece)
    meta: dict[str, object] = {"size_bytes": len(content)}
    if end < len(content):
        meta["next"] = f"{resource_uri(address.run_id, address.part)}?offset={end}"
    return types.ReadResourceResult(contents=[_contents(uri, mime, piece, meta)])


async def _content(client: Client, answer: RunAnswer, part: str) -> tuple[bytes, str]:
    match part:
        case "result":
            return encode_json(answer.result), _JSON
        case "stdout":
            return answer.stdout.encode(), _TEXT
        case "stderr":
            return answer.stderr.encode(), _TEXT
    path = part.removeprefix("artifacts/")
    for one in answer.artifacts or ():
        if one.artifact_ref.lstrip("/") == path:
            return await client.artifact(one), one.mime
    known = ", ".join(one.artifact_ref for one in answer.artifacts or ()) or "none"
    raise Refused(
        "FILE_NOT_FOUND",
        f"run {answer.run_id} has no artifact {path[:200]!r}",
        hint=f"it has {known}"[:500],
    )


def _whole_characters(piece: bytes, *, is_last: bool) -> bytes:
    """The piece without a character of UTF-8 that is cut at its end."""
    if is_last or not piece:
        return piece
    start = len(piece) - 1
    while start > 0 and len(piece) - start < _CHARACTER_BYTES_MAX and piece[start] & 0xC0 == 0x80:
        start -= 1
    is_multi_byte = piece[start] & 0xC0 == 0xC0
    return piece[:start] if is_multi_byte else piece


def _contents(
    uri: str, mime: str, piece: bytes, meta: dict[str, object]
) -> types.TextResourceContents | types.BlobResourceContents:
    try:
        text = piece.decode() if _TEXTUAL.fullmatch(mime) else None
    except UnicodeDecodeError:
        text = None
    if text is None:
        encoded = base64.b64encode(piece).decode()
        return types.BlobResourceContents(uri=uri, mime_type=mime, blob=encoded, _meta=meta)
    return types.TextResourceContents(uri=uri, mime_type=mime, text=text, _meta=meta)
