"""Temporal's worker, or with a role of ``client`` the client of its bench.

Ten local activities are what Temporal offers for short work; their server is the dev server.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import count
from time import perf_counter
from typing import Any

from lanes import config, serve, tasks
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

__all__ = ["main"]

_CONFIG = config()
_QUEUE = "bench"
_PATIENCE = timedelta(seconds=30)
_WINDOW, _SECONDS_MAX = 16, 300


@activity.defn
async def same(number: int) -> int:
    return number


@workflow.defn
class One:
    @workflow.run
    async def run(self, number: int) -> int:
        return await workflow.execute_local_activity(same, 2, start_to_close_timeout=_PATIENCE)


@workflow.defn
class Ten:
    @workflow.run
    async def run(self, number: int) -> int:
        last = 0
        for value in range(10):
            last = await workflow.execute_local_activity(
                same, value, start_to_close_timeout=_PATIENCE
            )
        return last


@workflow.defn
class Park:
    def __init__(self) -> None:
        self.answer = 0

    @workflow.run
    async def run(self, number: int) -> int:
        await workflow.wait_condition(lambda: self.answer > 0)
        return self.answer

    @workflow.signal
    def resume(self, answer: int) -> None:
        self.answer = answer


async def work() -> None:
    worker = Worker(
        await Client.connect(_CONFIG["address"]),
        task_queue=_QUEUE,
        workflows=[One, Ten, Park],
        activities=[same],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_cached_workflows=2_000,
    )
    async with worker:
        print('{"ready": true}', flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Serve the client's requests."""
    numbers = count(1)
    clients: list[Any] = []

    async def client() -> Any:
        if not clients:
            clients.append(await Client.connect(_CONFIG["address"]))
        return clients[0]

    def run(kind: Any, expected: int) -> Any:
        async def once(lane: int, number: int) -> None:
            name = f"{kind.__name__}-{next(numbers)}"
            connected = await client()
            found = await connected.execute_workflow(kind.run, number, id=name, task_queue=_QUEUE)
            assert found == expected

        return tasks(once)

    async def park(request: Any) -> Any:
        connected = await client()

        async def begin(lane: int, number: int) -> None:
            await connected.start_workflow(Park.run, number, id=f"w{number}", task_queue=_QUEUE)

        return await tasks(begin)({**request, "window": _WINDOW, "seconds_max": _SECONDS_MAX})

    async def resume(request: Any) -> Any:
        connected = await client()
        ends_s: list[float] = []

        async def wake(lane: int, number: int) -> None:
            handle = connected.get_workflow_handle(f"w{number}", result_type=int)
            await handle.signal("resume", 2)
            assert await handle.result() == 2
            ends_s.append(perf_counter())

        await tasks(wake)({**request, "window": 64, "seconds_max": _SECONDS_MAX})
        return {"ends_s": ends_s}

    serve({"A": run(One, 2), "B": run(Ten, 9), "park": park, "resume": resume})


if __name__ == "__main__" and _CONFIG["role"] == "worker":
    asyncio.run(work())
elif __name__ == "__main__":
    main()
