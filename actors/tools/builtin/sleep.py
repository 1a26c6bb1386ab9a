"""The built-in tool ``sleep``: a program waits for seconds or months while its run is parked.

It has no handler: its call is awaited, and a timer of the bus ends it. Every node offers it, unless
the node's registry has a tool of that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any, Final

from rookery.actors.tools.authoring.registry import ToolRegistry
from rookery.actors.tools.catalogue.catalogue import CatalogueTool
from rookery.schemas.calls import WAITING_FOR_TIMER, Capability
from rookery.schemas.surfaces import LOCAL

__all__ = ["SECONDS_MAX", "built_in_tools", "sleep_ms"]

SECONDS_MAX: Final = 366 * 24 * 3_600
"""A year."""
SLEEP: Final = Capability(
    name="sleep",
    description=(
        "Wait for some seconds, at most a year.\n\n"
        "The run is parked meanwhile: it needs no process, "
        "its time limit stops, and any node continues it."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "seconds": {"type": "number", "minimum": 0, "maximum": SECONDS_MAX},
        },
        "required": ["seconds"],
        "additionalProperties": False,
    },
    output_schema={"type": "null"},
)


def built_in_tools(registry: ToolRegistry) -> tuple[CatalogueTool, ...]:
    """The tools that every node offers; a tool of the registry replaces the one of its name, so
    that programs that call it do not change."""
    if registry.contains(SLEEP.name):
        return ()
    return (CatalogueTool.of(LOCAL, SLEEP, awaited=True)._replace(waits_for=WAITING_FOR_TIMER),)


def sleep_ms(bound: Mapping[str, Any]) -> int:
    """How long a sleep with these checked arguments takes, rounded up."""
    seconds: float = bound["seconds"]
    return ceil(seconds * 1_000)
