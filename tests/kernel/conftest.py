from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kernel.world import World


@pytest.fixture
def world() -> Iterator[World]:
    """A world on the virtual clock, without real waiting."""
    with World() as made:
        yield made
