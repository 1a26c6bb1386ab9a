"""Which limits make sense: the door's judgement, told alike wherever a limit is named.

Ranges stand at the fields (``run``). A limit above the realm's maximum is in range: it is capped
where a run is given its limits. What stands in facts is never judged again.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from rookery.schemas.errors import Refused
from rookery.schemas.run import RunRequest, SessionLimits
from rookery.schemas.validation_hints import range_of

__all__ = ["check_limits", "check_run_limits", "limit_hint", "unset_if_default"]

_RANGES: Final = {
    field.name: told
    for kind in (SessionLimits, RunRequest)
    for field in msgspec.structs.fields(kind)
    if (told := range_of(field.type)) is not None
}


def check_limits(limits: SessionLimits) -> SessionLimits:
    """The limits, or ``INVALID_ARGUMENT`` about the first that makes no sense."""
    for name, value in asdict(limits).items():
        _check(name, value)
    return limits


def check_run_limits(request: RunRequest) -> None:
    """The same for what a run asks for."""
    if request.limits is not None:
        check_limits(request.limits)
    if request.timeout_ms is not None:
        _check("timeout_ms", request.timeout_ms)


def unset_if_default(limits: SessionLimits) -> SessionLimits | UnsetType:
    """What is to be written of a session's limits: nothing of one that was given none."""
    return UNSET if limits == SessionLimits() else limits


def limit_hint(name: str) -> str:
    """What a limit may be."""
    return _RANGES[name].hint(name)


def _check(name: str, value: Any) -> None:
    told = _RANGES[name]
    if type(value) is not int or not told.least <= value <= told.most:
        raise Refused("INVALID_ARGUMENT", f"{name} is {value!r}", hint=told.hint(name))
