"""The doctor: checks everything a node needs, with a verdict and a hint for each.

The doctor creates no stream, no directory, and no message but pings of paired realms. A check fails
where data could be lost, above all if the server acks before data is on disk, and warns where the
doctor cannot find out.
``durability_of`` is the same verdict for a node that is about to serve.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec

from rookery.bus.client import Client
from rookery.bus.jetstream_api import ApiError
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.nats import Connection
from rookery.bus.ports import Journal
from rookery.bus.roles import Role
from rookery.bus.server import Store
from rookery.bus.subjects import Subjects
from rookery.ops import checks
from rookery.ops.checks import CheckVerdict, Finding, check_host, check_store, failed
from rookery.ops.config import Config, NodeConfig, address_of
from rookery.ops.hooks import check_hooks
from rookery.ops.keys import ConfiguredKeys, TrustRoots
from rookery.ops.node_tools import registry_of
from rookery.ops.peer_pings import check_peers
from rookery.ops.server import ConfiguredServer, RealmServer
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.facts.surface import REALM_KEY
from rookery.schemas.machines.surface import McpServerState
from rookery.schemas.protection.policy import PolicySettings, RuleDecision
from rookery.schemas.surfaces import CatalogueQuery, ListedSurface, SurfaceList

__all__ = ["Report", "durability_of", "examine", "read_durability"]

_REPLICAS_THAT_SURVIVE = 3
_WORTH = {
    "always": "always: an ack follows an fsync",
    "replicated": "replicated: an ack follows a majority",
}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The doctor's findings."""

    ok: bool
    realm: str
    url: str
    """Without its credential; empty if no server was found."""
    findings: tuple[Finding, ...]


async def examine(config: Config, now_ms: Callable[[], int]) -> Report:
    """Run every check; one that cannot run fails, and the next one runs."""
    findings = [*check_host(), check_tools(config.node), check_policy(config)]
    server: RealmServer | None = None
    try:
        if is_embedded(config):
            findings += check_store(ConfiguredServer(config).store)
        server = ConfiguredServer(config).require(Role.NODE)
        findings += [finding async for finding in _check_server(config, server, now_ms)]
    except CodedError as error:
        findings.append(failed("server", error))
    return Report(
        ok=all(finding.verdict is not CheckVerdict.FAIL for finding in findings),
        realm=config.realm,
        url=address_of(server.url if server else ""),
        findings=tuple(findings),
    )


def check_tools(node: NodeConfig) -> Finding:
    """Check the tools of the configuration: its module, folders and rules."""
    try:
        names = registry_of(node).names()
    except CodedError as error:
        return failed("tools", error)
    return Finding(check="tools", detail=", ".join(names) or "none configured")


def check_policy(config: Config) -> Finding:
    """Say which policy holds, and whether its questions reach an approver."""
    policy = config.policy
    if policy == PolicySettings():
        return Finding(check="policy", detail="policy.host_default: every tool is allowed")
    detail = f"{len(policy.rules)} rules, else {policy.default}; undeclared: {policy.undeclared}"
    decisions = (policy.default, policy.undeclared, *(rule.decision for rule in policy.rules))
    if RuleDecision.ASK in decisions and not config.approvals.dispatchers:
        return Finding(
            check="policy",
            verdict=CheckVerdict.WARN,
            detail=f"{detail}; nothing carries its questions, so they are denials",
            hint="approvals.dispatchers",
        )
    return Finding(check="policy", detail=detail)


def durability_of(config: Config, *, embedded: bool, replicas: int) -> str:
    """What an ack guarantees: ``always`` (on disk), ``replicated`` or ``unknown_accepted``.

    ``Refused`` if it may guarantee nothing and the configuration does not accept that. ``replicas``
    is the number of copies of the journal; an embedded server already runs.
    """
    if embedded and _syncs_always(ConfiguredServer(config).store):
        return "always"
    if replicas >= _REPLICAS_THAT_SURVIVE:
        return "replicated"
    if config.server.accept_unknown_durability:
        return "unknown_accepted"
    if embedded:
        raise Refused(
            "DURABILITY_UNSAFE",
            "the embedded server does not sync: a power cut loses facts that were acknowledged",
            hint="start it with server.sync = 'always', or accept it for a bench with "
            "--accept-unknown-durability",
        )
    raise Refused(
        "DURABILITY_UNKNOWN",
        f"the journal has {replicas} of {_REPLICAS_THAT_SURVIVE} copies, and a server does not "
        "say whether it syncs before it acks",
        hint="set sync_interval: always in its jetstream block, then --accept-unknown-durability",
    )


async def read_durability(connection: Connection, config: Config, *, embedded: bool) -> str:
    """As ``durability_of``, for a server that runs; ``embedded``: this node started it."""
    info = await connection.api(f"STREAM.INFO.{Subjects(config.realm).journal_stream}")
    replicas = info["config"].get("num_replicas", 1)
    return durability_of(config, embedded=embedded or is_embedded(config), replicas=replicas)


def is_embedded(config: Config) -> bool:
    """Whether the server is the one on the configured store, even if a URL names it."""
    if not config.url:
        return True
    try:
        store = ConfiguredServer(config).store
    except Refused:
        return False
    server = store.running_server() if store.is_locked() else None
    return server is not None and config.url.endswith(server.address.removeprefix("nats://"))


def _syncs_always(store: Store) -> bool:
    """Read the server's configuration file, which every start of the server writes."""
    path = store.path / "server.conf"
    return path.exists() and "sync_interval: always" in path.read_text(encoding="utf-8")


async def _check_server(
    config: Config, server: RealmServer, now_ms: Callable[[], int]
) -> AsyncIterator[Finding]:
    bus = JetStreamBus(server.url, server.access, realm=config.realm)
    await bus.connection.open()  # Not `start`, which creates streams.
    try:
        yield checks.check_version(bus.connection)
        yield checks.check_payload(bus.connection, config)
        async for finding in _check_jetstream(bus, config, now_ms):
            yield finding
    finally:
        await bus.connection.close()


async def _check_jetstream(
    bus: JetStreamBus, config: Config, now_ms: Callable[[], int]
) -> AsyncIterator[Finding]:
    try:
        account = await bus.connection.api("INFO")
        outdated = await checks.read_format(bus.connection, bus.subjects)
        specs = bus.specs()
        streams = await checks.existing_streams(bus.connection, specs)
    except (ApiError, CodedError) as error:
        yield Finding(
            check="jetstream",
            verdict=CheckVerdict.FAIL,
            detail=f"JetStream does not answer: {error}",
            hint="start the server with JetStream, in an account that may use it; name a node's "
            "credential",
            code="SERVER_UNREACHABLE",
        )
        return
    yield Finding(check="jetstream", detail=f"{account['streams']} streams in this account")
    if outdated is not None:
        yield outdated
    journal = streams.get(bus.subjects.journal_stream)
    for spec in () if outdated else specs:
        known = spec if journal else checks.without_subjects(spec)
        yield checks.check_stream(known, streams)
    yield _check_durability(config, journal)
    if streams and bus.connection.cluster_servers > 1:
        yield checks.check_replicas(bus.connection, config, streams)
    if journal:
        yield checks.check_clock(journal, now_ms())
        yield await checks.check_chain(bus.journal, journal["state"]["last_seq"])
        async for finding in _check_signatures(bus, config):
            yield finding
        yield await checks.check_leases(bus.journal, now_ms())
        operator = ConfiguredServer(config).require(Role.OPERATOR).client(config.realm)
        yield await _check_surfaces(bus.journal, operator)
        operator = ConfiguredServer(config).require(Role.OPERATOR).client(config.realm)
        yield await check_hooks(bus.journal, operator, now_ms())
        for finding in await check_peers(bus, config, now_ms):
            yield finding
    if bus.secrets.spec.name in streams:
        yield await checks.check_secrets(bus.secrets, config.realm, ConfiguredKeys.of(config))


async def _check_signatures(bus: JetStreamBus, config: Config) -> AsyncIterator[Finding]:
    roots = TrustRoots.of(config)
    yield await checks.check_approvers(bus.journal, config.realm, roots.root_key)
    yield await checks.check_approvals(bus.journal, config)
    yield await checks.check_node_keys(bus.journal, roots)


def _check_durability(config: Config, journal: dict[str, Any] | None) -> Finding:
    replicas = journal["config"]["num_replicas"] if journal else 1
    try:
        durability = durability_of(config, embedded=is_embedded(config), replicas=replicas)
    except Refused as refusal:
        return failed("durability", refusal)
    if durability != "unknown_accepted":
        return Finding(check="durability", detail=_WORTH[durability])
    return Finding(
        check="durability",
        verdict=CheckVerdict.WARN,
        detail="unknown and accepted: make sure the server says sync_interval: always",
        code="DURABILITY_UNKNOWN",
    )


# --- surfaces -------------------------------------------------------------------------------------


_NODE_TIMEOUT_S, _CONNECT_TIMEOUT_S = 2.0, 40.0
_DETAIL_MAX = 2_000
_UNANSWERED = ("NO_ANSWER", "PARTITION_UNOWNED")
_SURFACE_WORDS = {
    McpServerState.PENDING_CONNECT: "is not connected yet",
    McpServerState.DISCONNECTED: "is disconnected",
    McpServerState.FAILED: "failed",
}


async def _check_surfaces(journal: Journal, client: Client) -> Finding:
    """Check that a node can connect to each surface, if the realm has a catalogue of them, and that
    it offers all their tools."""
    if await journal.last(EntityId("surface", REALM_KEY)) is None:
        return Finding(check="surfaces", detail="none")
    try:
        async with client:
            surfaces = await _read_surfaces(client)
    except CodedError as error:
        if error.code not in _UNANSWERED:
            return failed("surfaces", error)
        return Finding(check="surfaces", detail="not checked: no node serves the realm")
    away = [one for one in surfaces if one.state is not McpServerState.CONNECTED]
    problems = [
        f"{one.surface} does not offer {name}: {why}"
        for one in surfaces
        for name, why in sorted(one.problems.items())
    ]
    if away or problems:
        first = (away or [one for one in surfaces if one.problems])[0].surface
        return Finding(
            check="surfaces",
            verdict=CheckVerdict.WARN,
            detail="; ".join([*map(_surface_words, away), *problems])[:_DETAIL_MAX],
            hint=f"rookery surfaces show {first}, then rookery surfaces reload {first}",
            code="SURFACE_UNAVAILABLE",
        )
    tools = sum(len(one.tools) for one in surfaces)
    return Finding(check="surfaces", detail=f"{len(surfaces)} connected, {tools} tools")


async def _read_surfaces(client: Client) -> Sequence[ListedSurface]:
    """The surfaces of a node, which tries once to connect to those without a connection."""
    found: Sequence[ListedSurface] = ()
    for connect, timeout_s in ((False, _NODE_TIMEOUT_S), (True, _CONNECT_TIMEOUT_S)):
        query = CatalogueQuery(connect=connect)
        reply = await client.ask("catalogued", REALM_KEY, query, timeout_s=timeout_s)
        found = msgspec.convert(reply, SurfaceList).surfaces
        if all(one.state is McpServerState.CONNECTED for one in found):
            break
    return found


def _surface_words(surface: ListedSurface) -> str:
    why = f": {surface.error}" if surface.error else ""
    return f"{surface.surface} {_SURFACE_WORDS[surface.state]}{why}"
