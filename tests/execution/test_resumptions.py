"""A few runs resume at once, and the one whose approval was answered last comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rookery.actors.execution import run_execution as module
from rookery.actors.execution.run_execution import Resumptions


class Scene:
    """Runs that resume; the test says when each has executed."""

    def __init__(self) -> None:
        self.executing: set[str] = set()
        self.resumptions = Resumptions(self.executing.__contains__)
        self.admitted: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def answer(self, *run_ids: str) -> None:
        for run_id in run_ids:
            self.tasks[run_id] = asyncio.create_task(self._resume(run_id))
            await settle()

    async def end(self, run_id: str) -> None:
        self.resumptions.end(run_id)
        await settle()

    async def _resume(self, run_id: str) -> None:
        async with self.resumptions.admit(run_id):
            self.admitted.append(run_id)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def played(story: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def play() -> None:
        scene = Scene()
        await story(scene)
        for task in scene.tasks.values():
            task.cancel()
        await asyncio.gather(*scene.tasks.values(), return_exceptions=True)

    asyncio.run(play())


@pytest.fixture(autouse=True)
def two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE_MAX", 2)
    monkeypatch.setattr(module, "WAIT_S", 60)


def test_the_last_answered_of_the_waiting_runs_resumes_first():
    async def story(scene: Scene) -> None:
        await scene.answer("a", "b", "c", "d")
        assert scene.admitted == ["a", "b"]
        await scene.end("a")
        await scene.end("b")
        assert scene.admitted == ["a", "b", "d", "c"]

    played(story)


def test_a_run_with_a_long_call_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "WAIT_S", 0)

    async def story(scene: Scene) -> None:
        await scene.answer("a", "b", "c", "d", "e")
        await asyncio.wait(scene.tasks.values())
        assert sorted(scene.admitted) == ["a", "b", "c", "d", "e"]

    played(story)


def test_a_run_that_has_not_parked_does_not_wait():
    async def story(scene: Scene) -> None:
        scene.executing.add("live")
        await scene.answer("a", "b", "c", "live")
        assert scene.admitted == ["a", "b", "live"]

    played(story)


def test_a_cancelled_resumption_gives_its_place_to_the_next():
    async def story(scene: Scene) -> None:
        await scene.answer("a", "b", "c", "d")
        scene.tasks["a"].cancel()
        scene.tasks["d"].cancel()
        await settle()
        assert scene.admitted == ["a", "b", "c"]
        await scene.end("b")
        await scene.answer("e")
        assert scene.admitted == ["a", "b", "c", "e"]

    played(story)
