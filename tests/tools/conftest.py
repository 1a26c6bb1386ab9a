from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.tools.tool_fixtures import ToolWorld


@pytest.fixture
def world() -> Iterator[ToolWorld]:
    """A world with a virtual clock: no scenario takes longer than its steps."""
    with ToolWorld() as made:
        yield made
