"""A parked run has no driver, so the outcome of its call is recorded at once."""

from __future__ import annotations

from typing import Any

from tests.execution.node_remains import LeftWorld


class WatchedWorld(LeftWorld):
    """Nodes whose notifiers of calls the test can see."""

    boards: list[Any]

    def _bind(self, node: Any, kernel: Any, reader: Any, *rest: Any) -> Any:
        board, runner = super()._bind(node, kernel, reader, *rest)
        self.boards = [*getattr(self, "boards", []), board]
        return board, runner


def test_a_run_that_parks_or_ends_leaves_no_future_of_its_calls():
    with WatchedWorld() as world:
        world.begin()
        world.play("ask_first")
        world.until(lambda: world.rest)
        world.settle()
        assert [list(board._futures) for board in world.boards] == [[]]
        world.allow_what_waits()
        world.until_over()
        assert [list(board._futures) for board in world.boards] == [[]]
