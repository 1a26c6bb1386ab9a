"""``rookery surfaces``: list, show, add, remove and reload surfaces of a realm while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from rookery.actors.projections.reports import nodes_of
from rookery.actors.protection.sensitive_values import NO_SEAL
from rookery.bus.ports import Filter
from rookery.ops.cli.access.realm_access import open_realm
from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import print_json, print_line, print_table
from rookery.ops.keys import NodeSecrets
from rookery.ops.mcp_client import require_mcp, sources_of
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
    SurfaceTool,
)

__all__ = ["app"]

app = App(name="surfaces", help_format="plaintext")

CHANGE_TIMEOUT_S = 60.0
"""A server may take half a minute to connect."""
LOCAL = SurfaceKind.LOCAL.value
"""The surface of the functions in the nodes' own processes."""
_COLUMNS = ["SURFACE", "KIND", "FOR", "TOOLS", "STATE", "CHANGE", "WHY"]
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
            empty="no surfaces: rookery surfaces add NAME --worker, or add --mcp FILE",
        )
    return 0


@app.command
def show(name: Name, *, options: Options = NO_OPTIONS) -> int:
    """Show a surface: where its tools come from, and their names."""
    (surface,) = _require(name, asyncio.run(_ask(CatalogueQuery(surface=name), options)).surfaces)
    functions = asyncio.run(_functions(options)) if name == LOCAL else {}
    if options.json:
        print_json({**msgspec.to_builtins(surface), "nodes": functions} if functions else surface)
        return 0
    for label, value in zip(_COLUMNS, _row(surface), strict=True):
        print_line(f"{label.lower():<10} {value}")
    for tool in surface.tools:
        print_line(f"{'tool':<10} {tool}")
    for node, tools in functions.items():
        print_line(f"{'node':<10} {node}: {', '.join(tools)}")
    for tool, why in surface.problems.items():
        print_line(f"{'not':<10} {tool}: {why}")
    if surface.error:
        print_line(f"try again: rookery surfaces reload {surface.surface}")
    return 0


@app.command
def add(
    *names: Annotated[str, Parameter(help="The surfaces' names; of a file, all by default.")],
    worker: Annotated[
        bool, Parameter(help="Its tools are served by `rookery tools serve`.", negative="")
    ] = False,
    mcp: Annotated[
        Path | None, Parameter(help="MCP servers, in a JSON file with `mcpServers`.")
    ] = None,
    session: Annotated[
        str | None, Parameter(help="Only this session sees their tools; default: all.")
    ] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Add surfaces: the next runs of all sessions, or of one, see their tools. `surfaces add local`
    returns the functions of the nodes, if they were removed."""
    if names == (LOCAL,) and not worker and mcp is None:
        returned = ChangeCatalogue(add={LOCAL: SurfaceSource(kind=SurfaceKind.LOCAL)})
        return _print_receipt(asyncio.run(_change(returned, options)), "added", options)
    if worker == (mcp is not None) or (worker and not names):
        raise Refused(
            "INVALID_ARGUMENT",
            "nothing says where the tools come from, or two things do",
            hint=f"rookery surfaces add {' '.join(names) or 'NAME'} --worker, or --mcp FILE",
        )
    if mcp is None:
        sources = dict.fromkeys(names, SurfaceSource(kind=SurfaceKind.WORKER))
        change = ChangeCatalogue(add=sources, session=session or "")
        return _print_receipt(asyncio.run(_change(change, options)), "added", options)
    receipt = asyncio.run(_add_servers(mcp, names, session or "", options))
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


@app.command
def logs(name: Name, *, options: Options = NO_OPTIONS) -> int:
    """Print what a surface's server wrote beside its messages, and what became of its connection,
    as the node has it that answers."""
    query = CatalogueQuery(surface=name, log=True)
    found = asyncio.run(_ask(query, options)).surfaces
    (surface,) = _require(name, found)
    if options.json:
        print_json(surface.log)
        return 0
    for line in surface.log:
        print_line(line)
    return 0


# --- requests -------------------------------------------------------------------------------------


async def _ask(query: CatalogueQuery, options: Options) -> SurfaceList:
    async with open_realm(options) as realm:
        return await realm.ask("catalogued", REALM_KEY, query, SurfaceList)


async def _change(change: ChangeCatalogue, options: Options) -> CatalogueReceipt:
    async with open_realm(options) as realm:
        return await realm.ask(
            "catalogue", REALM_KEY, change, CatalogueReceipt, patience_s=CHANGE_TIMEOUT_S
        )


async def _add_servers(
    path: Path, names: Sequence[str], session: str, options: Options
) -> CatalogueReceipt:
    """Add the servers of a file, or those of these names."""
    require_mcp()
    async with open_realm(options) as realm:
        try:
            sealed = realm.sealed_secrets(realm.keys)
            seal = await NodeSecrets.read_value_seal(sealed, realm.subjects.realm)
        except Refused:  # A file without values to hide needs no key.
            seal = NO_SEAL
        sources = sources_of(path, seal)
        for name in names:
            if name not in sources:
                known = ", ".join(sources) or "none"
                text = f"{path} has no server {name[:80]!r} that is not disabled"
                raise Refused("SURFACE_NOT_FOUND", text, hint=f"there are: {known[:400]}")
        chosen = {name: sources[name] for name in names or sources}
        change = ChangeCatalogue(add=chosen, session=session)
        return await realm.ask(
            "catalogue", REALM_KEY, change, CatalogueReceipt, patience_s=CHANGE_TIMEOUT_S
        )


async def _read_session(session: str, options: Options) -> SurfacesView:
    async with open_realm(options) as realm:
        query = HandleInput(input="diagnostic_snapshot")
        return await realm.ask("surfaces", session, query, SurfacesView)


def _require(name: str, found: Sequence[ListedSurface]) -> Sequence[ListedSurface]:
    if not found:
        raise Refused(
            "SURFACE_NOT_FOUND",
            f"the realm's catalogue has no surface {name[:80]!r}",
            hint="rookery surfaces list",
        )
    return found


async def _functions(options: Options) -> dict[str, list[str]]:
    """By live node, the names of the functions in its process."""
    async with open_realm(options) as realm:
        pages = [page async for page in realm.journal.scan(Filter(family="node"))]
        messages = [stored for page in pages for stored in page]
        found = nodes_of(messages, await realm.processes(), (), lambda _: "")
        nodes = [node for node in found if node.state == "alive"]
        digests = {node.functions for node in nodes if node.functions}
        tools = {
            digest: msgspec.json.decode(await realm.blobs.get(digest), type=list[SurfaceTool])
            for digest in digests
        }
    return {
        node.node: [tool.capability.name for tool in tools.get(node.functions, ())]
        for node in nodes
    }


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
        surface.session or "all",
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
