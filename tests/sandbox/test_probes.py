"""Probes: each ends as listed, changes nothing outside, and affects no other session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import wasmtime

from rookery.actors.sandbox import Sandbox
from rookery.actors.sandbox.python.build import GuestCache
from rookery.actors.sandbox.python.fallback.component_guest import ComponentGuest
from rookery.actors.sandbox.python.python_guest import PythonGuest
from rookery.actors.sandbox.typescript.guest import JavaScriptGuest
from rookery.schemas.errors import Refused
from tests.sandbox.checked_guest import CheckedGuest
from tests.sandbox.probes.canary import Canary, canary
from tests.sandbox.probes.catalogue import COMPONENT, PYTHON, TYPESCRIPT
from tests.sandbox.probes.probe import Probe
from tests.sandbox.probes.probe_runner import Range
from tests.sandbox.probes.tampered_snapshots import FOREIGN, HOSTILE, sealed_with
from tests.sandbox.session_fixture import KEY, TOOLS, Stage

KINDS = {
    "calls", "decompression", "environment", "file", "forgery", "fuel", "import", "memory",
    "network", "output", "pickle", "recursion", "reflection", "request", "result", "sleep",
    "source",
}  # fmt: skip
OUTSIDE = {"environment", "file", "network", "sleep"}
"""The probes of host functions; the fallback has another implementation of these."""
PATIENCE_MS = 20_000
"""Enough for any machine: ``python -m tests.sandbox.probes`` measures how late probes end."""


@pytest.fixture(scope="module")
def target() -> Iterator[Canary]:
    with canary() as target:
        yield target


@pytest.fixture(scope="module")
def both(engine: wasmtime.Engine, checked: tuple[CheckedGuest, CheckedGuest]) -> Iterator[Sandbox]:
    with Sandbox(engine, checked, KEY) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def checked(
    guest: PythonGuest, javascript_guest: JavaScriptGuest
) -> tuple[CheckedGuest, CheckedGuest]:
    return CheckedGuest(guest), CheckedGuest(javascript_guest)


@pytest.fixture(scope="module")
def shooting(both: Sandbox, target: Canary) -> Range:
    return Range(both, target)


def test_there_are_probes_of_every_kind_and_no_two_are_the_same():
    kinds = Counter(probe.kind for probe in PYTHON)
    assert set(kinds) == KINDS
    assert kinds.total() >= 120
    assert len({probe.id for probe in PYTHON}) == len(PYTHON)
    assert len({probe.id for probe in TYPESCRIPT}) == len(TYPESCRIPT) >= 30


@pytest.mark.parametrize("probe", PYTHON + TYPESCRIPT, ids=lambda probe: probe.id[:60])
def test_a_probe_ends_as_listed_and_harms_no_other_session(
    shooting: Range, probe: Probe, checked: tuple[CheckedGuest, CheckedGuest]
):
    """Nor does it leave anything in the instance that the next session gets."""
    shot = shooting.shoot(probe)
    assert shot.faults == []
    assert [guest.found for guest in checked] == [[], []]
    assert shot.late_ms < PATIENCE_MS


@pytest.fixture(scope="module")
def shooting_the_fallback(
    engine: wasmtime.Engine, cache: GuestCache, target: Canary
) -> Iterator[Range]:
    with Sandbox(engine, [ComponentGuest(engine, cache)], KEY) as sandbox:
        yield Range(sandbox, target)


@pytest.mark.parametrize(
    "probe",
    [probe for probe in COMPONENT if probe.kind in OUTSIDE],
    ids=lambda probe: probe.id[:60],
)
def test_probes_end_as_listed_in_the_fallback(shooting_the_fallback: Range, probe: Probe):
    shot = shooting_the_fallback.shoot(probe)
    assert shot.faults == []
    assert shot.late_ms < PATIENCE_MS


def test_the_canary_notices():
    with canary() as target:
        assert target.harm() == []
        target.file.write_text("sung")
        assert target.harm() == ["file"]


@pytest.fixture(scope="module")
def taken(sandbox: Sandbox) -> Iterator[bytes]:
    stage = Stage(sandbox, "taken")
    stage.run("x = list(range(999))")
    yield sandbox.snapshot("taken").data
    stage.end()


@pytest.mark.parametrize("change", FOREIGN)
def test_a_tampered_snapshot_is_refused_before_use(sandbox: Sandbox, taken: bytes, change: str):
    changed = FOREIGN[change](taken)
    assert changed != taken
    with pytest.raises(Refused) as refused:
        sandbox.restore(changed, tools=TOOLS)
    assert refused.value.code == "SNAPSHOT_CORRUPT"
    assert Stage(sandbox, "taken", create=False).value("len(x)") == 999


@pytest.mark.parametrize("change", HOSTILE)
def test_a_memory_image_with_wrong_sizes_is_refused_when_it_is_loaded(
    sandbox: Sandbox, taken: bytes, change: str
):
    hostile = sealed_with(sandbox, taken, HOSTILE[change])
    sandbox.restore(hostile, tools=TOOLS, session_id="hostile")
    stage = Stage(sandbox, "hostile", create=False)
    for _ in range(2):
        with pytest.raises(Refused) as refused:
            stage.run("1")
        assert refused.value.code == "SNAPSHOT_CORRUPT"
    stage.end()
    assert Stage(sandbox, "taken", create=False).value("len(x)") == 999
