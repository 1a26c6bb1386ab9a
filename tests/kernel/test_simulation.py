"""The short form of the simulation: the same seeds every time, in a few seconds."""

from __future__ import annotations

import pytest

from tests.kernel.simulation import run
from tests.kernel.world import World

SOON, LATER = (0, 10, 20), (30, 40, 50)
"""Where ten seeds begin; a quick run leaves the later ones out."""


@pytest.mark.parametrize(
    "first", [*SOON, *(pytest.param(first, marks=pytest.mark.long_form) for first in LATER)]
)
def test_no_seed_breaks_a_promise(first: int):
    for seed in range(first, first + 10):
        run(seed)


def test_a_seed_always_gives_the_same_run():
    def told(seed: int) -> list[str]:
        story = run(seed)
        return [stored.chain for stored in story.world.stored()]

    assert told(7) == told(7)
    assert told(7) != told(8)


def test_a_broken_promise_names_the_command_that_shows_it_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tests.kernel.simulation.Simulation.check", lambda story: 1 / 0)
    with pytest.raises(ZeroDivisionError) as broken:
        run(5)
    assert broken.value.__notes__ == ["again: python -m tests.kernel.simulation --seed 5"]


def test_an_error_on_the_loop_fails_the_simulation():
    def story() -> None:
        with World() as world:
            world.loop.call_soon(lambda: 1 / 0)
            world.settle()

    with pytest.raises(ZeroDivisionError):
        story()
