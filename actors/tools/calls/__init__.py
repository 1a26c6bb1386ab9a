"""The rules of calls: their requests, waits and ends, and what an operator resolves. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.tools.calls.call_requests import RequestPolicy
    from rookery.actors.tools.calls.call_rules import CallRules
    from rookery.actors.tools.calls.resolutions import resolution_receipt, resolve
    from rookery.actors.tools.calls.wait_rules import end_wait

__all__ = ["CallRules", "RequestPolicy", "end_wait", "resolution_receipt", "resolve"]

__getattr__ = lazy_names(
    __name__,
    {
        "call_requests": ("RequestPolicy",),
        "call_rules": ("CallRules",),
        "resolutions": (
            "resolution_receipt",
            "resolve",
        ),
        "wait_rules": ("end_wait",),
    },
)
