"""Validation of limits at the request endpoint, with the same message for every command.

The fields in ``run`` declare the ranges. A limit above the realm's maximum is in range: it is
capped when the run starts. Limits in facts are not validated again.
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
    field.name: allowed
    for kind in (SessionLimits, RunRequest)
    for field in msgspec.structs.fields(kind)
    if (allowed := range_of(field.type)) is not None
}


def check_limits(limits: SessionLimits) -> SessionLimits:
    """The limits, or ``INVALID_ARGUMENT`` for the first one out of range."""
    for name, value in asdict(limits).items():
        _check(name, value)
    return limits


def check_run_limits(request: RunRequest) -> None:
    """Validate the limits of a run's request."""
    if request.limits is not None:
        check_limits(request.limits)
    if request.timeout_ms is not None:
        _check("timeout_ms", request.timeout_ms)


def unset_if_default(limits: SessionLimits) -> SessionLimits | UnsetType:
    """The session's limits as facts store them: unset if they are the defaults."""
    return UNSET if limits == SessionLimits() else limits


def limit_hint(name: str) -> str:
    """The valid range of a limit, in words."""
    return _RANGES[name].hint(name)


def _check(name: str, value: Any) -> None:
    valid = _RANGES[name]
    if type(value) is not int or not valid.least <= value <= valid.most:
        raise Refused("INVALID_ARGUMENT", f"{name} is {value!r}", hint=valid.hint(name))
