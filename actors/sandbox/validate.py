"""Checks of a request that need no guest; a guest checks the source."""

from __future__ import annotations

from collections.abc import Iterable
from keyword import iskeyword

import msgspec
from msgspec import UNSET

from rookery.actors.sandbox.contract import Tool, ToolTable
from rookery.actors.sandbox.runtime.introspection import INTROSPECTION
from rookery.schemas.digest import canonical_json
from rookery.schemas.errors import Refused
from rookery.schemas.ids import check_file_path, check_session_id
from rookery.schemas.run import FileInput, Language, RunRequest, SessionLimits, check_run_limits

__all__ = ["check_new_request", "check_request", "limits_in_force", "tools_by_name"]

TABLES_MAX = 64
_TABLES: dict[int, tuple[tuple[Tool, ...], ToolTable]] = {}
"""By the identity of a tuple, which its entry keeps alive."""
FILES_MAX = 256
"""Of one request."""


def limits_in_force(request: RunRequest, session: SessionLimits) -> SessionLimits:
    """The limits of one run: those of the request, else of the session; ``timeout_ms`` replaces
    ``wall_ms``."""
    limits = request.limits or session
    if request.timeout_ms is None:
        return limits
    return msgspec.structs.replace(limits, wall_ms=request.timeout_ms)


def check_request(request: RunRequest) -> None:
    """Refuse a request that cannot be passed to a guest."""
    check_session_id(request.session_id)
    check_run_limits(request)
    try:
        request.code.encode()
    except UnicodeEncodeError:
        raise Refused(
            "SYNTAX_ERROR", "the source is not Unicode text", hint="send it as UTF-8"
        ) from None
    if request.files:
        _check_files(request.files)
    for name in request.inputs:
        if not name.isidentifier() or name.startswith("__"):
            raise Refused(
                "INVALID_ARGUMENT",
                f"{name[:80]!r} cannot be the name of an input",
                hint="inputs are variables: letters, digits and '_', and no digit first",
            )
    try:
        canonical_json(request.inputs)
    except Refused as refusal:
        raise Refused("INVALID_ARGUMENT", f"the inputs are not JSON: {refusal.message}") from None


def _check_files(files: dict[str, FileInput | None]) -> None:
    if len(files) > FILES_MAX:
        raise Refused("INVALID_ARGUMENT", f"{len(files)} files, the limit is {FILES_MAX} a run")
    for path, file in files.items():
        if file is not None and sum(one is not UNSET for one in msgspec.structs.astuple(file)) != 1:
            text = f"the file {path[:80]!r} needs exactly one of text, data and blob"
            raise Refused("INVALID_ARGUMENT", text)
        try:
            path.encode()
        except UnicodeEncodeError:
            raise Refused("INVALID_ARGUMENT", f"{path[:80]!r} is not Unicode text") from None


def check_new_request(request: RunRequest) -> None:
    """Refuse names that are keywords, too. For new requests only: a recorded run is repeated
    unchanged."""
    check_request(request)
    for path, file in (request.files or {}).items():
        if file is not None:
            check_file_path(path)
    for name in request.inputs:
        if request.language is Language.PYTHON and iskeyword(name):
            raise Refused(
                "INVALID_ARGUMENT",
                f"{name!r} cannot be the name of an input",
                hint="it is a keyword of Python; choose another name",
            )


def tools_by_name(tools: Iterable[Tool]) -> ToolTable:
    """The tools of a run; ``Refused`` for an invalid name. The same tuple has the same table."""
    if not isinstance(tools, tuple):
        return _tools_by_name(tools)
    known = _TABLES.get(id(tools))
    if known is not None and known[0] is tools:
        return known[1]
    found = _tools_by_name(tools)
    if len(_TABLES) >= TABLES_MAX:
        _TABLES.clear()
    _TABLES[id(tools)] = tools, found
    return found


def _tools_by_name(tools: Iterable[Tool]) -> ToolTable:
    found = ToolTable()
    for tool in tools:
        if not tool.name.isidentifier() or tool.name in found or tool.name in INTROSPECTION:
            raise Refused("INVALID_TOOL_NAME", f"{tool.name[:80]!r} cannot be a tool's name here")
        found[tool.name] = tool
    return found
