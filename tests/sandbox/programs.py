"""Programs that read everything that could differ between processes, and that suspend between."""

from __future__ import annotations

from typing import Any

import msgspec

from rookery.schemas.run import RunResult

CLOSURES = """
def counter():
    n = 0
    def more():
        nonlocal n; n += 1; return n
    return more
c = counter(); c()
squares = (i * i for i in range(100)); next(squares); next(squares)
"""
AWAITS = """
import asyncio, random, time, uuid
print('begin')
total = 0
for k in range(3):
    a, b = await asyncio.gather(fetch(k), fetch(k + 10))
    total += a + b + c()
answer = await approve('deploy', total=total)
print('end')
[answer, total, c(), next(squares), random.random(), time.time(), str(uuid.uuid4())]
"""
CALLS = """
import datetime, random, time, uuid
print('begin')
seen = [random.random(), time.time(), str(uuid.uuid4()), list({'a', 'b', 'zz'})]
seen += [hash('a'), repr(object()), str(uuid.uuid1()), str(datetime.datetime.now())]
total = sum(add(i, b=i) for i in range(20))
before = c()
answer = write('x', text=str(total))
print('end')
[answer, total, before, c(), next(squares), seen, await fetch(5)]
"""
PROGRAMS = {"awaited": (AWAITS, "approve"), "synchronous": (CALLS, "write")}


def without_time(result: Any) -> RunResult:
    """A result without its durations."""
    assert isinstance(result, RunResult)
    records = tuple(msgspec.structs.replace(r, duration_ms=0) for r in result.external_calls)
    metrics = msgspec.structs.replace(result.metrics, duration_ms=0)
    return msgspec.structs.replace(result, external_calls=records, metrics=metrics)
