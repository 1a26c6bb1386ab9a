"""``rookery up``: run a node until a signal or a drain request."""

from __future__ import annotations

import logging
import sys
from contextlib import ExitStack
from typing import Annotated

from cyclopts import App, Parameter

from rookery.ops.cli.options import NO_OPTIONS, NO_TOOLS, NodeTools, Options
from rookery.ops.cli.output import print_json, print_line
from rookery.ops.config import Config, Driver, Format, Level, address_of
from rookery.ops.http_server import HealthServer, probe_page
from rookery.ops.logs import configure, scrub_output
from rookery.ops.memory_tuning import tune_memory, tune_memory_for_start
from rookery.ops.node import Node
from rookery.ops.processes import ProcessGroup, StopEvent, stop_signals

__all__ = ["app"]

log = logging.getLogger(__name__)

app = App(name="up", help_format="plaintext")


@app.default
def up(
    *,
    metrics_port: Annotated[
        int | None, Parameter(help="Port of /metrics, /livez and /readyz; 0 for a free one.")
    ] = None,
    accept_unknown_durability: Annotated[
        bool | None,
        Parameter(help="Start although the server hides whether it syncs.", negative=""),
    ] = None,
    tools: NodeTools = NO_TOOLS,
    workers: Annotated[
        list[str] | None,
        Parameter(
            help="Surface on workers that the realm shall have; may be repeated.", negative=""
        ),
    ] = None,
    processes: Annotated[
        int | None, Parameter(help="Processes of the node; each owns partitions of its own.")
    ] = None,
    driver: Annotated[
        Driver | None,
        Parameter(help="Driver of runs: the node's sandbox, or an external client."),
    ] = None,
    mesh_link: Annotated[
        str | None, Parameter(help="File of `peers link`: joins the server to other realms'.")
    ] = None,
    publish: Annotated[
        list[str] | None,
        Parameter(
            help="Session to publish by the Synadia agent protocol; may be repeated.", negative=""
        ),
    ] = None,
    log_level: Annotated[Level | None, Parameter(help="Lowest level of log lines.")] = None,
    log_format: Annotated[
        Format | None, Parameter(help="auto: text on a terminal, JSON lines elsewhere.")
    ] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Serve until SIGTERM or SIGINT, then drain and stop; a second SIGINT does not wait."""
    flags = {
        "metrics.port": metrics_port,
        "server.accept_unknown_durability": accept_unknown_durability,
        "node.workers": workers,
        "node.processes": processes,
        "node.driver": driver,
        "mesh.link_file": mesh_link,
        "peers.published": publish,
        "log.level": log_level,
        "log.format": log_format,
    }
    config = options.load(**flags, **tools.flags).config
    scrub_output()
    configure(config.log.level, config.log.format, sys.stderr)
    tune_memory_for_start()
    with stop_signals() as stopped, ExitStack() as resources:
        kind = Node if config.node.processes == 1 else ProcessGroup
        node = kind(config, stopped.drain, stopped.fail, stopping=stopped)
        health = _health(config, node)
        if health:
            resources.enter_context(health)
        if not node.start():
            return 0
        tune_memory()
        resources.callback(_stop, node, stopped)
        _print_ready(node, health, json=options.json)
        stopped.wait_for_signal()
    if stopped.error is not None:
        raise stopped.error
    return 0


def _stop(node: Node | ProcessGroup, stopped: StopEvent) -> None:
    log.info("node stopping", extra={"node": node.name, "reason": stopped.reason})
    drained = node.stop(stopped.reason)
    log.info("node stopped", extra={"node": node.name, "drained": drained})


def _health(config: Config, node: Node | ProcessGroup) -> HealthServer | None:
    if config.metrics.port is None:
        return None
    pages = {
        "/metrics": node.page,
        "/livez": probe_page(node.alive),
        "/readyz": probe_page(node.ready),
    }
    return HealthServer(config.metrics.host, config.metrics.port, pages)


def _print_ready(node: Node | ProcessGroup, health: HealthServer | None, *, json: bool) -> None:
    """Print the line that says the node is ready; scripts wait for it. ``rookery auth url`` prints
    the credential."""
    address = address_of(node.url)
    if json:
        callback = node.callback_url or None
        urls = {"health": health.url if health else None, "callback": callback}
        print_json({"ready": True, "url": address, **urls})
        return
    callback = f" callback {node.callback_url}" if node.callback_url else ""
    print_line(f"ready {address}" + (f" health {health.url}" if health else "") + callback)
