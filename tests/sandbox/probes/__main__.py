"""``python -m tests.sandbox.probes`` runs all probes and prints how late each ended. The exit code
is 1 if a probe escaped or ended more than 250 ms after its limit. On a busy machine a computing
program ends later by the wall clock, because its limit is CPU time. ``--fallback`` uses the
component.
"""

from __future__ import annotations

import os
import sys

from rookery.actors.sandbox import Sandbox, open_sandbox
from rookery.actors.sandbox.python.build import GuestCache, cache_folder
from rookery.actors.sandbox.python.fallback.component_guest import ComponentGuest
from rookery.actors.sandbox.runtime.wasm import make_engine
from tests.sandbox.modes import HAS_FIBERS
from tests.sandbox.probes.canary import canary
from tests.sandbox.probes.catalogue import COMPONENT, PYTHON, TYPESCRIPT
from tests.sandbox.probes.probe_runner import Range
from tests.sandbox.session_fixture import KEY

__all__: list[str] = []

_LATE_MS_MAX = 250


def open_fallback() -> Sandbox:
    engine = make_engine()
    return Sandbox(engine, [ComponentGuest(engine, GuestCache(cache_folder(os.environ)))], KEY)


def main(*, fallback: bool) -> int:
    bad = 0
    probes = COMPONENT if fallback else PYTHON + TYPESCRIPT
    with (
        canary() as target,
        open_fallback() if fallback else open_sandbox(KEY, has_fibers=HAS_FIBERS) as sandbox,
    ):
        shooting = Range(sandbox, target)
        for probe in probes:
            shot = shooting.shoot(probe)
            faults = [*shot.faults]
            if shot.late_ms > _LATE_MS_MAX:
                faults.append(f"it ended {shot.late_ms} ms after its limit")
            bad += bool(faults)
            end = f"{probe.end.status} {probe.end.code or ''}"
            name = probe.id.replace("\n", "; ")[:70]
            print(f"{name:70} {end:40} {shot.late_ms:>7} ms  {'; '.join(faults) or 'held'}")
    print(f"{len(probes)} probes, {bad} with faults")
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main(fallback="--fallback" in sys.argv[1:]))
