"""``rookery surfaces``: list, show, add, remove and reload surfaces of a realm while it runs."""

from __future__ import annotations

import asyncio
from typing import Annotated

from cyclopts import App, Parameter

from rookery.ops.cli.access.realm_access import open_realm
from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import print_json, print_line, print_table
from rookery.schemas.commands import HandleInput
from rookery.schemas.errors import Refused
from rookery.schemas.facts.surface import REALM_KEY
from rookery.schemas.machines.surface import SurfaceSnapshot
from rookery.schemas.machines.views import SurfacesView
from rookery.schemas.surfaces import (
    CatalogueQuery,
    CatalogueReceipt,
    ChangeCatalogue,
    ListedSurface,
    SurfaceKind,
    SurfaceList,
    SurfaceSource,
)

__all__ = ["app"]

app = App(name="surfaces", help_format="plaintext")

CHANGE_TIMEOUT_S = 60.0
"""A server may take half a minute to connect."""
_COLUMNS = ["SURFACE", "KIND", "TOOLS", "STATE", "CHANGE", "WHY"]
_SESSION_COLUMNS = ["SURFACE", "STATE", "STAGED", "PENDING", "CALLS", "LAST CHANGE"]
Name = Annotated[str, Parameter(help="The surface's name in the realm.")]
SessionOption = Annotated[str | None, Parameter(help="As this session has taken the catalogue up.")]


@app.command(name="list")
def list_(*, session: SessionOption = None, options: Options = NO_OPTIONS) -> int:
    """List the surfaces of the realm and of its node, or what a session has of the realm's."""
    if session is not None:
        return _list_session(session, options)
    found = asyncio.run(_ask(CatalogueQuery(), options))
    if options.json:
        print_json(found)
    else:
        print_table(
            _COLUMNS,
            map(_row, found.surfaces),
            empty="no surfaces: rookery surfaces add NAME --worker",
        )
    return 0


@app.command
def show(name: Name, *, options: Options = NO_OPTIONS) -> int:
    """Show a surface: where its tools come from, and their names."""
    found = asyncio.run(_ask(CatalogueQuery(surface=name), options)).surfaces
    if not found:
        raise Refused(
            "SURFACE_NOT_FOUND",
            f"the realm's catalogue has no surface {name[:80]!r}",
            hint="rookery surfaces list",
        )
    (surface,) = found
    if options.json:
        print_json(surface)
        return 0
    for label, value in zip(_COLUMNS, _row(surface), strict=True):
        print_line(f"{label.lower():<10} {value}")
    for tool in surface.tools:
        print_line(f"{'tool':<10} {tool}")
    if surface.error:
        print_line(f"try again: rookery surfaces reload {surface.surface}")
    return 0


@app.command
def add(
    name: Annotated[str, Parameter(help="The surface's name in the realm.")],
    *,
    worker: Annotated[
        bool, Parameter(help="Its tools are served by `rookery tools serve`.", negative="")
    ] = False,
    options: Options = NO_OPTIONS,
) -> int:
    """Add a surface: the next runs of all sessions see its tools."""
    if not worker:
        raise Refused(
            "INVALID_ARGUMENT",
            f"nothing says where the tools of {name} come from",
            hint=f"rookery surfaces add {name} --worker",
        )
    source = SurfaceSource(kind=SurfaceKind.WORKER)
    receipt = asyncio.run(_change(ChangeCatalogue(add={name: source}), options))
    return _print_receipt(receipt, "added", options)


@app.command
def remove(*names: Name, options: Options = NO_OPTIONS) -> int:
    """Remove surfaces: programs in progress may not call them any more after their next step, and
    calls in flight end."""
    receipt = asyncio.run(_change(ChangeCatalogue(remove=names), options))
    if options.json:
        print_json(receipt)
    else:
        print_line(f"removed {', '.join(names)}, change {receipt.sequence} of the catalogue")
    return 0


@app.command
def reload(*names: Name, options: Options = NO_OPTIONS) -> int:
    """Connect to surfaces anew, and list their tools again."""
    receipt = asyncio.run(_change(ChangeCatalogue(reload=names), options))
    return _print_receipt(receipt, "reloaded", options)


# --- requests -------------------------------------------------------------------------------------


async def _ask(query: CatalogueQuery, options: Options) -> SurfaceList:
    async with open_realm(options) as realm:
        return await realm.ask("catalogued", REALM_KEY, query, SurfaceList)


async def _change(change: ChangeCatalogue, options: Options) -> CatalogueReceipt:
    async with open_realm(options) as realm:
        return await realm.ask(
            "catalogue", REALM_KEY, change, CatalogueReceipt, patience_s=CHANGE_TIMEOUT_S
        )


async def _read_session(session: str, options: Options) -> SurfacesView:
    async with open_realm(options) as realm:
        query = HandleInput(input="diagnostic_snapshot")
        return await realm.ask("surfaces", session, query, SurfacesView)


# --- output ---------------------------------------------------------------------------------------


def _list_session(session: str, options: Options) -> int:
    view = asyncio.run(_read_session(session, options))
    if options.json:
        print_json(view)
    else:
        rows = map(_session_row, view.entries)
        print_table(_SESSION_COLUMNS, rows, empty=f"{session} has taken up no surface")
    return 0


def _row(surface: ListedSurface) -> tuple[object, ...]:
    return (
        surface.surface,
        surface.source.kind,
        len(surface.tools),
        surface.state,
        surface.sequence,
        surface.error,
    )


def _session_row(entry: SurfaceSnapshot) -> tuple[object, ...]:
    last = [word for word in (entry.last_delta_operation, entry.last_delta_phase) if word]
    return (
        entry.surface_id,
        entry.base_state or "",
        entry.staged_op,
        entry.pending_op,
        entry.inflight_calls,
        " ".join(last),
    )


def _print_receipt(receipt: CatalogueReceipt, what: str, options: Options) -> int:
    if options.json:
        print_json(receipt)
        return 0
    for surface in receipt.surfaces:
        tools = f"{len(surface.tools)} tools: {', '.join(surface.tools[:8])}"
        more = ", ..." if len(surface.tools) > 8 else ""
        print_line(f"{what} {surface.surface}, {tools}{more}")
    return 0
