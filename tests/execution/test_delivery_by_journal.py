"""The delivery of facts inside the process is only faster: actors that get each other's facts from
the journal alone leave the same journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from rookery.bus.ports import Filter
from tests.execution.node_remains import ALL_CODECS, STORIES, LeftWorld
from tests.execution.scripted_driver import SESSION
from tests.execution.test_scripted_driver import ENDS

OF_NODES = "node"


class JournalOnlyWorld(LeftWorld):
    """Nodes whose actors get the facts of others by following the journal, as stored."""

    def begin(self) -> Any:
        node: Any = super().begin()
        router = node.kernel._committer._fact_router
        publish, router.publish = router.publish, lambda *_: None

        async def follow() -> None:
            async for page in node.bus.feed.follow(Filter()):
                for stored in page:
                    if stored.entity.family != OF_NODES:
                        facts = ALL_CODECS[stored.entity.family].decode(stored.body)
                        publish(stored.entity, stored.sequence, facts)

        node._context.copy().run(self._loop.create_task, follow())
        return node


def journal_left(world: LeftWorld) -> Mapping[str, Sequence[tuple[str, Any]]]:
    """Per family, the facts in order, by type and transition."""
    return {
        family: [
            (str(fact.__struct_config__.tag), getattr(fact, "row", ""))
            for one in world.stored(family, SESSION)
            for fact in ALL_CODECS[family].decode(one.body)
        ]
        for family in ("session", "turn", "approval")
    }


def played(kind: type[LeftWorld], story: Callable[[LeftWorld], None]) -> Any:
    with kind() as world:
        world.begin()
        story(world)
        world.pass_s(1)
        return journal_left(world)


def of_script(script: str) -> Callable[[LeftWorld], None]:
    def play(world: LeftWorld) -> None:
        world.backend.hold = script == "call_in_vain"
        world.play(script)
        world.until_over()

    return play


@pytest.mark.parametrize("script", ENDS)
def test_a_run_leaves_the_same_facts_by_the_journal_alone(script: str):
    assert played(JournalOnlyWorld, of_script(script)) == played(LeftWorld, of_script(script))


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_a_session_leaves_the_same_facts_by_the_journal_alone(
    story: Callable[[LeftWorld], None],
):
    assert played(JournalOnlyWorld, story) == played(LeftWorld, story)
