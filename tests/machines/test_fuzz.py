"""Random histories of whole sessions, judged by the model, until every row has fired often."""

from __future__ import annotations

import pytest

from rookery.actors.kernel.machines.machine import Edition
from rookery.actors.machine_catalogue import MACHINE_CATALOGUE
from tests.machines.fuzzer import FIRED_MIN, STEPS_MIN, Fuzz


@pytest.mark.parametrize("name", MACHINE_CATALOGUE)
@pytest.mark.parametrize("edition", Edition)
def test_random_histories_go_the_way_of_the_model(name: str, edition: Edition) -> None:
    fuzz = Fuzz(name, edition).run()
    assert fuzz.steps >= STEPS_MIN
    assert fuzz.accepted >= 0.4 * fuzz.steps
    assert {row: fuzz.fired[row] for row in fuzz.rows if fuzz.fired[row] < FIRED_MIN} == {}


def test_all_histories_together_are_long_enough() -> None:
    assert STEPS_MIN * len(MACHINE_CATALOGUE) * len(Edition) >= 20_000
