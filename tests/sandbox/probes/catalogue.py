"""The list: every probe with its expected status and code."""

from __future__ import annotations

from msgspec.structs import replace

from tests.sandbox.probes import (
    access_probes,
    bombs,
    javascript,
    library,
    reflection_probes,
    sources,
)
from tests.sandbox.probes.probe import RAISES, Probe

__all__ = ["COMPONENT", "PYTHON", "TYPESCRIPT"]

PYTHON: tuple[Probe, ...] = (
    *access_probes.PROBES,
    *reflection_probes.PROBES,
    *bombs.PROBES,
    *sources.PROBES,
    *library.PROBES,
)

TYPESCRIPT: tuple[Probe, ...] = javascript.PROBES

_SEVERAL = "import select; select.select([], [1, 2], [1], 10 ** 6)"
"""wasmtime 50 stops a guest that passes a list with two lent handles."""
_GIVES_UP = "async def f():\n    while True: fetch(1)\nawait f()"
"""The interpreter aborts; only the linked guest can tell that it was out of memory."""

COMPONENT: tuple[Probe, ...] = tuple(
    replace(probe, end=RAISES) if probe.name in (_SEVERAL, _GIVES_UP) else probe for probe in PYTHON
)
"""The probes for the fallback, two of which end with another code."""
