"""``rookery nodes``: list the nodes of a realm, drain one, and vouch for its key."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from rookery.actors.keys.ed25519 import SigningKey
from rookery.actors.projections.reports import NodeView, nodes_of
from rookery.bus.clock import wait_until
from rookery.bus.credentials import Credential
from rookery.bus.ports import Filter
from rookery.bus.roles import Role
from rookery.bus.server import Store
from rookery.ops.cli.access.realm_access import OfflineRealm, local_server, open_realm
from rookery.ops.cli.arguments import read_signer
from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import clock_time, print_danger, print_json, print_line, print_table
from rookery.ops.config import Config
from rookery.ops.keys import NodeKey, TrustRoots
from rookery.ops.server import ConfiguredServer
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.run import Language

__all__ = ["app"]

app = App(name="nodes", help_format="plaintext")

DRAIN_REQUEST_S = 15
POLL_S = 0.5
SERVER_END_S = 20.0
"""How long an embedded server may take to stop."""
_CREDENTIAL_SUFFIX = ".json"
_COLUMNS = [
    "NODE",
    "STATE",
    "PARTITIONS",
    "VERSION",
    "GUEST",
    "HOST",
    "PIDS",
    "KEY",
    "STARTED",
    "STOPPED",
]


@app.command(name="list")
def list_(
    *,
    all_: Annotated[
        bool, Parameter(name="--all", help="Include nodes that have left.", negative="")
    ] = False,
    options: Options = NO_OPTIONS,
) -> int:
    """List the live nodes, each with its processes. A restarted node is a new node, unless it has
    a configured name."""
    with local_server(options):
        found = asyncio.run(_nodes(options))
    nodes = [node for node in found if all_ or node.state == "alive"]
    if options.json:
        print_json(nodes)
        return 0
    print_table(
        _COLUMNS,
        [_row(node) for node in nodes],
        empty="no nodes",
    )
    return 0


@app.command
def drain(
    node: Annotated[str, Parameter(help="The node's name, as `nodes list` shows it.")],
    /,
    *,
    wait: Annotated[bool, Parameter(help="Wait until it has left.")] = True,
    timeout_s: Annotated[float, Parameter(help="Time limit of the wait.")] = 60.0,
    options: Options = NO_OPTIONS,
) -> int:
    """Ask a node to finish its runs and leave; other nodes take over its sessions.

    Runs that have not finished in the node's drain time continue on another node from their
    journaled state. For a rolling upgrade, start the new node, then drain the old one."""
    left = asyncio.run(_drain(options, node, wait=wait, timeout_s=timeout_s))
    if options.json:
        print_json({"node": node, "left": left})
    elif left:
        print_line(f"{node} has left")
    else:
        print_line(f"{node} was asked to leave")
    return 0 if left or not wait else 1


@app.command
def vouch(
    *,
    as_: Annotated[
        Path | None,
        Parameter(
            name="--as",
            help="The realm's private root key, or a credential of an operator; default: the "
            "local operator's credential.",
        ),
    ] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Sign the key of the node on this store, or beside this credential.

    The node's checkpoints then count without trust at first sight. It takes effect at the node's
    next start."""
    config = options.load().config
    key = _voucher_key(as_, config)
    voucher = NodeKey.vouch(config, key)
    if options.json:
        print_json(voucher)
    else:
        print_line(f"{NodeKey.path(config)} is vouched for: restart the node")
        if isinstance(key, SigningKey) and not TrustRoots.root_key_of(config.approvals):
            print_danger(f'it counts only with approvals.root_key = "{key.public_key}"')
    return 0


def _voucher_key(path: Path | None, config: Config) -> SigningKey | Credential:
    """The key in a file, or the local operator's."""
    if path is None:
        found = ConfiguredServer(config).local_credential(Role.OPERATOR)
    elif path.suffix == _CREDENTIAL_SUFFIX:
        found = Credential.read(path)
    else:
        root = read_signer(path)
        if (known := TrustRoots.root_key_of(config.approvals)) and known != root.public_key:
            text = f"{path} is not the realm's root key, approvals.root_key"
            raise Refused("INVALID_ARGUMENT", text)
        return root
    if found is None:
        raise Refused(
            "CREDENTIAL_NOT_FOUND",
            f"there is no credential of an operator of realm {config.realm} here",
            hint="rookery nodes vouch --as FILE, an operator's credential or the root key",
        )
    if found.realm != config.realm:
        raise Refused("INVALID_ARGUMENT", f"the credential {found.name} is of realm {found.realm}")
    return found


async def _drain(options: Options, node: str, *, wait: bool, timeout_s: float) -> bool:
    """Ask the node to leave, and return whether it has left."""
    async with open_realm(options, current=True) as realm:
        if node not in (alive := await realm.nodes()):
            known = ", ".join(sorted(alive)) or "none"
            raise Refused("NODE_NOT_FOUND", f"no live node {node}", hint=f"live nodes: {known}")
        try:
            return await _left(realm, node, wait=wait, timeout_s=timeout_s)
        except Failed as error:
            # The server of the only node ends with it.
            if error.code != "SERVER_UNREACHABLE" or not await _has_server_ended(options):
                raise
            return True


async def _left(realm: OfflineRealm, node: str, *, wait: bool, timeout_s: float) -> bool:
    """Ask the node to drain, again and again; whether it has left."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + timeout_s
    while True:
        await realm.claims.acquire(f"drain.{node}", "operator", DRAIN_REQUEST_S)
        if not wait:
            return False
        await asyncio.sleep(POLL_S)
        if node not in await realm.nodes():
            return True
        if loop.time() > end_s:
            return False


async def _has_server_ended(options: Options) -> bool:
    """Whether the embedded server that the command used is gone for good."""
    config = options.load().config
    if config.url:
        return False
    is_free = partial(_is_free, ConfiguredServer(config).store)
    return bool(await asyncio.to_thread(wait_until, is_free, SERVER_END_S))


def _is_free(store: Store) -> bool:
    return not store.is_locked()


async def _nodes(options: Options) -> list[NodeView]:
    async with open_realm(options) as realm:
        pages = [page async for page in realm.journal.scan(Filter(family="node"))]
        partitions = await realm.claims.list("partition.")
        messages = [stored for page in pages for stored in page]
        voucher_of = TrustRoots.of(options.load().config).voucher_of
        return nodes_of(messages, await realm.processes(), partitions, voucher_of)


def _row(node: NodeView) -> tuple[object, ...]:
    stopped = node.stopped_at_ms
    return (
        node.node,
        node.state,
        node.partitions,
        node.version,
        node.builds.get(Language.PYTHON, "")[:8],
        node.host,
        _pids(node),
        f"{node.key_id[:8]} {node.vouched_by or 'at first sight'}" if node.key_id else "none",
        clock_time(node.started_at_ms),
        "" if stopped is None else f"{clock_time(stopped)} {node.reason}",
    )


def _pids(node: NodeView) -> str:
    """The live processes, else the last ones."""
    alive = [one.pid for one in node.processes if one.state == "alive"]
    return " ".join(map(str, alive or [one.pid for one in node.processes]))
