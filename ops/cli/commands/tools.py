"""``rookery tools``: list and describe the tools of a node, and serve tools as a worker.
``rookery agents``: list and show its agents, and run one."""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import replace
from typing import Annotated

import msgspec
from cyclopts import App, Parameter
from cyclopts.validators import Number
from msgspec import UNSET

from rookery.actors.tools import ToolRegistry
from rookery.ops.cli.access.realm_access import open_realm
from rookery.ops.cli.arguments import (
    NO_PROGRAM_OPTIONS,
    NO_PROMPT_OPTIONS,
    NO_RIGHTS_OPTIONS,
    ProgramOptions,
    PromptOptions,
    RightsOptions,
)
from rookery.ops.cli.commands.run import run
from rookery.ops.cli.options import NO_OPTIONS, NO_TOOLS, NodeTools, Options
from rookery.ops.cli.output import print_json, print_line, print_table
from rookery.ops.config import Format, Level
from rookery.ops.logs import configure, scrub_output
from rookery.ops.node_tools import WorkerProcess
from rookery.ops.processes import stop_signals
from rookery.schemas.agent_tools import AgentList, AgentsQuery, AgentView
from rookery.schemas.calls import AutoApproval, Capability, RecordMode
from rookery.schemas.codec import encode_json
from rookery.schemas.commands import ToolsQuery
from rookery.schemas.errors import Refused
from rookery.schemas.replies import ToolList, ToolView

__all__ = ["agents", "app", "serve"]

app = App(name="tools", help_format="plaintext")
agents = App(name="agents", help_format="plaintext")
app.command(
    "rookery.ops.cli.commands.tools:serve",
    name="serve",
    help="Serve tools from a worker process to nodes started with --workers SURFACE.",
)


@app.command(name="list")
def list_(*, options: Options = NO_OPTIONS) -> int:
    """List the tools of a node, by name."""
    found = asyncio.run(_ask(ToolsQuery(), options))
    if options.json:
        print_json(found)
        return 0
    print_table(
        ["TOOL", "SURFACE", "EFFECT", "AWAITED", "IDEMPOTENT", "APPROVAL", "DESCRIPTION"],
        [_row(tool) for tool in found.tools],
        empty="no tools: start a node with `rookery up --tools MODULE:OBJECT`",
    )
    return 0


@app.command
def describe(
    name: Annotated[str, Parameter(help="The tool's name in programs.")],
    *,
    options: Options = NO_OPTIONS,
) -> int:
    """Show the declaration of a tool."""
    found = asyncio.run(_ask(ToolsQuery(name=name), options)).tools
    if not found:
        raise Refused("UNKNOWN_TOOL", f"no tool {name[:80]!r} here", hint="rookery tools list")
    if options.json:
        print_json(found[0])
        return 0
    for label, value in _lines(found[0]):
        print_line(f"{label:13}{value}")
    return 0


async def _ask(query: ToolsQuery, options: Options) -> ToolList:
    async with open_realm(options) as realm:
        return await realm.ask("tools", "all", query, ToolList)


def _row(tool: ToolView) -> tuple[object, ...]:
    capability = tool.capability
    return (
        capability.name,
        tool.surface,
        capability.side_effect,
        _yes(tool.awaited),
        _yes(capability.idempotent),
        _approval(tool),
        capability.description.strip().partition("\n")[0],
    )


def _lines(tool: ToolView) -> list[tuple[str, object]]:
    capability, limits = tool.capability, tool.capability.limits
    return [
        ("tool", capability.name),
        ("description", " ".join(capability.description.split())),
        ("surface", tool.surface),
        ("effect", capability.side_effect),
        ("awaited", _yes(tool.awaited)),
        ("idempotent", _yes(capability.idempotent)),
        ("recorded", _recorded(capability)),
        ("approval", _approval(tool)),
        *_attempt_lines(tool),
        ("bytes", f"{limits.max_request_bytes} in, {limits.max_response_bytes} out, per call"),
        ("takes", encode_json(capability.input_schema).decode()),
        ("answers", encode_json(capability.output_schema).decode()),
        ("schemas", tool.schema_digest),
    ]


def _recorded(capability: Capability) -> str:
    after = capability.record is RecordMode.AFTER
    return "after the call, with its outcome" if after else "before the call"


def _attempt_lines(tool: ToolView) -> list[tuple[str, object]]:
    """The limits of attempts; a call that ends by an event has no attempt."""
    limits = tool.capability.limits
    if tool.waits_for:
        return [("waits for", tool.waits_for)]
    rate = "" if limits.rate_per_min is None else f", {limits.rate_per_min} a minute per node"
    return [
        ("time limit", f"{limits.timeout_ms} ms per attempt"),
        ("at once", f"{limits.concurrency} per node{rate}"),
    ]


def _approval(tool: ToolView) -> str:
    match tool.capability.approval_policy:
        case AutoApproval(auto=auto):
            return f"by rule {auto.rule}"
        case mode:
            return str(msgspec.to_builtins(mode))


def _yes(value: bool) -> str:
    return "yes" if value else "no"


log = logging.getLogger(__name__)


def serve(
    place: Annotated[
        str, Parameter(name="MODULE:OBJECT", help="A registry, a tool or a list of tools.")
    ],
    /,
    *,
    surface: Annotated[str, Parameter(help="Nodes offer the tools as SURFACE_<tool>.")],
    concurrency: Annotated[
        int,
        Parameter(
            help="Calls at once; further calls go to other workers.", validator=Number(gte=1)
        ),
    ] = 16,
    log_level: Annotated[Level | None, Parameter(help="Lowest level of log lines.")] = None,
    log_format: Annotated[
        Format | None, Parameter(help="auto: text on a terminal, JSON lines elsewhere.")
    ] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Serve tools until SIGTERM or SIGINT, then finish the running calls and stop.

    The worker waits for its calls ``node.drain_timeout_s`` at most. A second SIGINT does not
    wait."""
    config = options.load(**{"log.level": log_level, "log.format": log_format}).config
    scrub_output()
    configure(config.log.level, config.log.format, sys.stderr)
    registry = ToolRegistry.load(place)
    if registry.hooks:
        raise Refused(
            "HOOK_POINT_NOT_LIVE",
            f"{place[:200]} has hooks, and a worker invokes none",
            hint=f"load them into nodes: rookery up --tools {place[:200]}",
        )
    with stop_signals() as stopped:
        worker = WorkerProcess(config, registry, surface=surface, concurrency=concurrency)
        if not worker.start(stopped):
            return 0
        if options.json:
            ready = {"worker": worker.name, "surface": surface, "tools": registry.names()}
            print_json({"ready": True} | ready)
        else:
            print_line(f"ready {surface} {' '.join(registry.names())}")
        stopped.wait_for_signal()
        log.info("worker stopping", extra={"worker": worker.name, "reason": stopped.reason})
        drained = worker.stop()
        log.info("worker stopped", extra={"worker": worker.name, "drained": drained})
    return 0


# --- agents ---------------------------------------------------------------------------------------


AgentName = Annotated[str, Parameter(help="The agent's name.")]


@agents.command(name="list")
def list_agents(*, options: Options = NO_OPTIONS) -> int:
    """List the agents of a node, by name."""
    found = asyncio.run(_ask_agents(AgentsQuery(), options))
    if options.json:
        print_json(found)
        return 0
    print_table(
        ["AGENT", "MODEL", "TOOLS", "DESCRIPTION"],
        [
            (
                one.name,
                " ".join(one.model) or "default",
                _tool_words(one),
                one.description.strip().partition("\n")[0],
            )
            for one in found.agents
        ],
        empty="no agents: start a node with `rookery up --tools MODULE:OBJECT`",
    )
    return 0


@agents.command(name="show")
def show_agent(name: AgentName, *, options: Options = NO_OPTIONS) -> int:
    """Show the declaration of an agent."""
    found = asyncio.run(_ask_agents(AgentsQuery(name=name), options)).agents
    if not found:
        raise Refused("AGENT_NOT_FOUND", f"no agent {name[:80]!r} here", hint="rookery agents list")
    if options.json:
        print_json(found[0])
        return 0
    for label, value in _agent_lines(found[0]):
        print_line(f"{label:13}{value}")
    return 0


@agents.command(name="run")
def run_agent(
    name: AgentName,
    *,
    words: ProgramOptions = NO_PROGRAM_OPTIONS,
    ask: PromptOptions = NO_PROMPT_OPTIONS,
    may: RightsOptions = NO_RIGHTS_OPTIONS,
    tools: NodeTools = NO_TOOLS,
    options: Options = NO_OPTIONS,
) -> int:
    """Run an agent and print its result: `rookery run --agent NAME`."""
    return run(words=words, ask=replace(ask, agent=name), may=may, tools=tools, options=options)


async def _ask_agents(query: AgentsQuery, options: Options) -> AgentList:
    async with open_realm(options) as realm:
        return await realm.ask("agents", "all", query, AgentList)


def _tool_words(agent: AgentView) -> str:
    return "all but agents" if agent.tools is UNSET else " ".join(agent.tools) or "none"


def _agent_lines(agent: AgentView) -> list[tuple[str, object]]:
    limits = agent.limits
    named = {name: getattr(limits, name) for name in limits.__struct_fields__}
    set_ = [f"{name}={value:,}" for name, value in named.items() if value is not UNSET]
    returned = "text" if agent.output_schema is UNSET else encode_json(agent.output_schema).decode()
    return [
        ("agent", agent.name),
        ("description", " ".join(agent.description.split())),
        ("model", " ".join(agent.model) or "that of the session, or of the node"),
        ("tools", _tool_words(agent)),
        ("tool mode", agent.tool_mode),
        ("limits", " ".join(set_) or "those of the request"),
        ("reserves", f"{agent.share:.0%} of what its caller has left of a budget"),
        ("takes", encode_json(agent.input_schema).decode()),
        ("answers", returned),
    ]
