"""What can be said of a request before any guest sees it. The source is the guest's to check."""

from __future__ import annotations

import msgspec

from rookery.schemas.digest import canonical_json
from rookery.schemas.errors import Refused
from rookery.schemas.ids import check_session_id
from rookery.schemas.run import RunRequest, SessionLimits

__all__ = ["check_request", "limits_in_force"]


def limits_in_force(request: RunRequest, session: SessionLimits) -> SessionLimits:
    """The request's over the session's, for this run only; ``timeout_ms`` replaces ``wall_ms``."""
    limits = request.limits or session
    if request.timeout_ms is not None:
        limits = msgspec.structs.replace(limits, wall_ms=request.timeout_ms)
    for name in SessionLimits.__struct_fields__:
        if getattr(limits, name) < 0:
            raise Refused("INVALID_ARGUMENT", f"{name} is {getattr(limits, name)}, below 0")
    return limits


def check_request(request: RunRequest) -> None:
    """Refuse what could not travel into a guest as it is."""
    check_session_id(request.session_id)
    try:
        request.code.encode()
    except UnicodeEncodeError:
        raise Refused("SYNTAX_ERROR", "the source is not Unicode text") from None
    for name in request.inputs:
        if not name.isidentifier() or name.startswith("__"):
            raise Refused("INVALID_ARGUMENT", f"{name[:80]!r} cannot be the name of an input")
    try:
        canonical_json(request.inputs)
    except Refused as refusal:
        raise Refused("INVALID_ARGUMENT", f"the inputs are not JSON: {refusal.message}") from None
