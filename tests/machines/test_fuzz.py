"""Random histories of whole sessions, judged by the model, until every row has fired often.

The long form, four times as much of it: ``python -m tests.machines.fuzzer``, of ``make chaos``.
"""

from __future__ import annotations

import pytest

from rookery.actors.kernel.machines.machine import Edition
from rookery.actors.machine_catalogue import MACHINE_CATALOGUE
from tests.machines.fuzzer import FIRED_MIN, FIRED_MIN_LONG, STEPS_A_FIRING, Fuzz


@pytest.mark.parametrize("name", MACHINE_CATALOGUE)
@pytest.mark.parametrize("edition", Edition)
def test_random_histories_go_the_way_of_the_model(name: str, edition: Edition) -> None:
    Fuzz(name, edition).run().expect_thorough()


def test_all_histories_together_are_long_enough() -> None:
    machines = len(MACHINE_CATALOGUE) * len(Edition)
    assert FIRED_MIN * STEPS_A_FIRING * machines >= 5_000
    assert FIRED_MIN_LONG * STEPS_A_FIRING * machines >= 20_000
