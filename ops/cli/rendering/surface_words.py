"""The words for facts of surfaces, for lines of people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from rookery.schemas.codec import fact_name
from rookery.schemas.envelope import Fact
from rookery.schemas.facts import surface

__all__ = ["SURFACE_WORDS"]

_Words = Callable[[dict[str, Any]], str]
_OF_ROWS: Final[Mapping[str, str]] = {
    "ApplyBoundaryAdd": "is being added",
    "ApplyBoundaryReload": "is being reloaded",
    "ApplyBoundaryRemoveDraining": "takes no new calls",
    "ApplyBoundaryRemoveNoop": "was not there to be removed",
    "CallStartedRejectRemoving": "refused a call: it is being removed",
    "CallStartedRejectUnavailable": "refused a call: it is not there",
}


def _of(words: str) -> _Words:
    return lambda fields: f"{fields['surface_id']} {words}"


def _of_row(words: str) -> _Words:
    return lambda fields: f"{fields['surface_id']} {_OF_ROWS.get(fields.get('row', ''), words)}"


def _catalogued(fields: dict[str, Any]) -> str:
    what = "reloaded" if fields.get("reload") else "added"
    kind = fields["origin"]["kind"]
    return f"{fields['surface_id']} is {what}, of kind {kind}, change {fields['sequence']}"


def _failed(fields: dict[str, Any]) -> str:
    return f"{fields['surface_id']} has no connection: {fields.get('error') or 'no reason given'}"


_OF_SURFACES: Final[Mapping[type[Fact], _Words]] = {
    surface.Catalogued: _catalogued,
    surface.Dropped: lambda fields: (
        f"{fields['surface_id']} is removed, change {fields['sequence']}"
    ),
    surface.Registered: _of("is registered"),
    surface.AddStaged: _of("is to be added at the next boundary"),
    surface.RemoveStaged: _of("is to be removed at the next boundary"),
    surface.ReloadStaged: _of("is to be reloaded at the next boundary"),
    surface.BoundaryApplied: _of_row("has reached a boundary"),
    surface.PendingSucceeded: _of("is active"),
    surface.PendingFailed: _failed,
    surface.CallStarted: _of_row("has a call in flight"),
    surface.CallFinished: _of("has finished a call"),
    surface.RemovalFinalized: _of("is removed"),
    surface.RemovalForced: _of("is removed with calls in flight"),
    surface.SnapshotAligned: lambda fields: f"the tools are those of epoch {fields['epoch']}",
    surface.ShutDown: lambda _: "no surface changes any more",
}
"""Of the surfaces; facts of MCP servers are shown by their fields."""
SURFACE_WORDS: Final = {fact_name(kind): words for kind, words in _OF_SURFACES.items()}
