"""``rookery tools serve``: a worker, from its first call to its last answer."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from rookery.actors.tools.authoring.loader import load_registry
from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import print_json, print_line
from rookery.ops.cli.signals import stop_signals
from rookery.ops.config import Format, Level
from rookery.ops.logs import configure
from rookery.ops.worker import WorkerProcess

__all__ = ["serve"]

log = logging.getLogger(__name__)


def serve(
    place: Annotated[str, Parameter(name="MODULE:OBJECT", help="A registry, a tool or a list.")],
    /,
    *,
    surface: Annotated[str, Parameter(help="Nodes offer the tools as SURFACE_<tool>.")],
    concurrency: Annotated[
        int,
        Parameter(
            help="So many calls at once; more are offered to others.", validator=Number(gte=1)
        ),
    ] = 16,
    log_level: Annotated[Level | None, Parameter(help="What is worth a line.")] = None,
    log_format: Annotated[
        Format | None, Parameter(help="auto: text on a terminal, JSON lines elsewhere.")
    ] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Until SIGTERM or SIGINT; then take no more calls and finish those under way, for as long as
    ``node.drain_timeout_s`` allows. A second SIGINT does not wait."""
    config = options.load(**{"log.level": log_level, "log.format": log_format}).config
    configure(config.log.level, config.log.format, sys.stderr)
    registry = load_registry(place)
    with stop_signals() as stopped:
        worker = WorkerProcess(config, registry, surface=surface, concurrency=concurrency)
        worker.start()
        if options.json:
            told = {"worker": worker.name, "surface": surface, "tools": registry.names()}
            print_json({"ready": True} | told)
        else:
            print_line(f"ready {surface} {' '.join(registry.names())}")
        stopped.wait_for_signal()
        log.info("worker stopping", extra={"worker": worker.name, "reason": stopped.reason})
        drained = worker.stop()
        log.info("worker stopped", extra={"worker": worker.name, "drained": drained})
    return 0
