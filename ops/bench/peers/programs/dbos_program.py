"""DBOS on SQLite or Postgres: a workflow of one step, of ten, and workflows that wait in a step.

DBOS runs in its caller's process: this program is the application. Pending workflows are recovered
by DBOS itself when the application starts again.
"""

from __future__ import annotations

import asyncio
from threading import Event
from time import perf_counter
from typing import Any

from dbos import DBOS
from lanes import config, serve, threads, until

__all__ = ["main"]

_CONFIG = config()
_STEPS = 10
_POLL_S = 0.02
_parked: list[int] = []
_ends_s: list[float] = []


@DBOS.step()
def step(number: int) -> int:
    return number + 1


@DBOS.workflow()
def one(number: int) -> int:
    return step(1)


@DBOS.workflow()
def ten(number: int) -> int:
    last = 0
    for value in range(_STEPS):
        last = step(value)
    return last


@DBOS.step()
async def wait(number: int) -> int:
    """Waits for ever in the process that parks, and ends at once in the one that recovers."""
    if _CONFIG["parks"]:
        _parked.append(number)
        await asyncio.Event().wait()
    return number


@DBOS.workflow()
async def pending(number: int) -> int:
    await wait(number)
    _ends_s.append(perf_counter())
    return number


async def park(request: Any) -> Any:
    gate = asyncio.Semaphore(16)

    async def begin(number: int) -> None:
        async with gate:
            await DBOS.start_workflow_async(pending, number)

    await asyncio.gather(*(begin(number) for number in range(request["count"])))
    await until(lambda: len(_parked) >= request["count"])
    return {}


async def resume(request: Any) -> Any:
    await until(lambda: len(_ends_s) >= request["count"])
    await asyncio.to_thread(await_recorded)
    return {"ends_s": [*sorted(_ends_s)[:-1], perf_counter()]}


def await_recorded() -> None:
    """The last workflow has ended when the database says so."""
    while DBOS.list_workflows(status="PENDING", limit=1):
        Event().wait(_POLL_S)


def run_one(lane: int, number: int) -> None:
    assert one(number) == 2


def run_ten(lane: int, number: int) -> None:
    assert ten(number) == _STEPS


def main() -> None:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": _CONFIG["url"],
            "log_level": "ERROR",
            "application_version": "1",
            "executor_id": "bench",
            "max_executor_threads": 80,
        }
    )
    DBOS.launch()
    serve({"A": threads(run_one), "B": threads(run_ten), "park": park, "resume": resume})


if __name__ == "__main__":
    main()
