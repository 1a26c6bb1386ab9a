"""The list: every probe with its expected status and code."""

from __future__ import annotations

from tests.sandbox.probes import bombs, inside, javascript, outside, sources
from tests.sandbox.probes.probe import Probe

__all__ = ["PYTHON", "TYPESCRIPT"]

PYTHON: tuple[Probe, ...] = (
    *outside.PROBES,
    *inside.PROBES,
    *bombs.PROBES,
    *sources.PROBES,
)

TYPESCRIPT: tuple[Probe, ...] = javascript.PROBES
