"""Background tasks of a node restart after any error, and their failure is visible."""

from __future__ import annotations

import asyncio
import logging

import pytest

from rookery.ops import background_tasks
from rookery.ops.background_tasks import BackgroundTasks
from tests.stock_client import until


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_tasks, "RESTART_PAUSE_S", 0.001)
    monkeypatch.setattr(background_tasks, "STABLE_AFTER_S", 0.2)


def test_a_task_that_fails_is_restarted_and_hides_no_other(caplog: pytest.LogCaptureFixture):
    begun, mended = [], asyncio.Event()

    async def fails() -> None:
        begun.append(None)
        if not mended.is_set():
            raise ValueError("of a newer version")
        await asyncio.Event().wait()

    async def other() -> None:
        await asyncio.Event().wait()

    async def story() -> None:
        kept = BackgroundTasks()
        await kept.start({"views": fails, "other": other})
        await until(lambda: len(begun) > 3)
        assert kept.failing == {"views": "ValueError"}
        mended.set()
        await until(lambda: not kept.failing)
        await kept.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with caplog.at_level(logging.ERROR):
        asyncio.run(story())
    assert [record.message for record in caplog.records] == ["background task failed"]


def test_a_watch_that_has_come_to_its_end_is_not_begun_again():
    begun = []

    async def once() -> None:
        begun.append(None)

    async def story() -> None:
        kept = BackgroundTasks()
        await kept.start({"drain": once})
        await until(lambda: len(asyncio.all_tasks()) == 1)
        assert (begun, kept.failing) == ([None], {})

    asyncio.run(story())
