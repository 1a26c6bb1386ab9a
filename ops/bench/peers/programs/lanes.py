"""What the programs of the peers share: windows of work, and requests as lines of JSON.

A request names a verb and its fields, ``{"verb": "A", "count": 400, "window": 1}``; the reply is
the result, or ``{"error": ...}``. The standard library is enough, since each peer's interpreter
runs this.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from time import perf_counter
from typing import Any

__all__ = ["config", "run_threads", "serve", "tasks", "threads", "timed", "until"]

_POLL_S = 0.01

Work = Callable[[int, int], object]
"""Does one unit of work, on this lane and with this number."""
Verb = Callable[[Any], Any]


def config() -> Any:
    """What the bench passed to this program."""
    return json.loads(sys.argv[1])


def serve(verbs: Mapping[str, Verb]) -> None:
    """Answer requests until the input ends."""
    asyncio.run(_answer(verbs))


def threads(work: Work) -> Verb:
    """A verb that does the work on ``window`` threads."""

    async def measure(request: Any) -> Any:
        return await asyncio.to_thread(run_threads, work, request)

    return measure


def tasks(work: Callable[[int, int], Awaitable[object]]) -> Verb:
    """A verb that does the work in ``window`` tasks of the event loop."""

    async def measure(request: Any) -> Any:
        taken_s: list[float] = []
        numbers = iter(range(request["count"]))
        start_s = perf_counter()
        until_s = start_s + request.get("seconds_max", 5)

        async def work_off(lane: int) -> None:
            for number in numbers:
                begun_s = perf_counter()
                if begun_s > until_s:
                    return
                await work(lane, number)
                taken_s.append(perf_counter() - begun_s)

        await asyncio.gather(*(work_off(lane) for lane in range(request["window"])))
        return timed(taken_s, perf_counter() - start_s)

    return measure


def run_threads(work: Work, request: Any) -> Any:
    """Do the work on ``window`` threads; the first error of one ends all."""
    taken_s: list[float] = []
    failures: list[BaseException] = []
    numbers, lock = iter(range(request["count"])), threading.Lock()
    start_s = perf_counter()
    until_s = start_s + request.get("seconds_max", 5)

    def work_off(lane: int) -> None:
        try:
            for number in _shared(numbers, lock):
                begun_s = perf_counter()
                if begun_s > until_s or failures:
                    return
                work(lane, number)
                taken_s.append(perf_counter() - begun_s)
        except BaseException as error:
            failures.append(error)

    lanes = [threading.Thread(target=work_off, args=(i,)) for i in range(request["window"])]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    if failures:
        raise failures[0]
    return timed(taken_s, perf_counter() - start_s)


async def until(condition: Callable[[], bool]) -> None:
    """Return when the condition holds. What it looks at changes in other processes and threads."""
    while not condition():  # noqa: ASYNC110 - no event of this loop is set.
        await asyncio.sleep(_POLL_S)


def timed(taken_s: list[float], seconds: float) -> dict[str, float]:
    """The figures of work with these durations."""
    ordered = sorted(taken_s)
    return {
        "done": len(ordered),
        "seconds": seconds,
        "p50_ms": 1e3 * ordered[len(ordered) // 2],
        "p99_ms": 1e3 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
    }


def _shared(numbers: Iterator[int], lock: threading.Lock) -> Iterator[int]:
    """The numbers of an iterator that other threads use, too."""
    while True:
        with lock:
            number = next(numbers, None)
        if number is None:
            return
        yield number


async def _answer(verbs: Mapping[str, Verb]) -> None:
    print(json.dumps({"ready": True}), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        request = json.loads(line)
        try:
            reply = verbs[request["verb"]](request)
            if inspect.isawaitable(reply):
                reply = await reply
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), flush=True)
