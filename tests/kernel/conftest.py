from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kernel.world import World


@pytest.fixture
def world() -> Iterator[World]:
    """On the clockwork: no story takes longer than its steps."""
    with World() as made:
        yield made
