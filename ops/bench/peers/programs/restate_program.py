"""The client of Restate's bench: the least HTTP client there is, so that it is not measured itself.

The service (``restate_service.mjs``) writes a line to the trace file when an invocation waits, and
one when it has ended, with the time by the clock that ``perf_counter`` reads.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from lanes import config, serve, tasks, until

__all__ = ["main"]

_CONFIG = config()
_TRACE = Path(_CONFIG["trace"])
_HOST, _PORT = "127.0.0.1", int(_CONFIG["port"])
_POLL_S, _WINDOW, _PATIENCE_S = 0.02, 64, 300
_free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []


async def post(path: str, body: object) -> Any:
    reader, writer = _free.pop() if _free else await asyncio.open_connection(_HOST, _PORT)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: {_HOST}\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    received = await _body(reader, answer)
    _free.append((reader, writer))
    if not answer.startswith("http/1.1 20"):
        raise OSError(f"{path}: {answer.splitlines()[0]} {received!r}")
    return json.loads(received) if received else None


async def _body(reader: asyncio.StreamReader, head: str) -> bytes:
    lines = head.split("\r\n")
    for line in lines:
        if line.startswith("content-length:"):
            return await reader.readexactly(int(line.split(":")[1]))
    received = b""
    while "chunked" in head and (size := int((await reader.readline()).strip() or b"0", 16)):
        received += await reader.readexactly(size)
        await reader.readline()
    if "chunked" in head:
        await reader.readline()
    return received


def traced(kind: str) -> list[list[str]]:
    lines = _TRACE.read_text().splitlines() if _TRACE.exists() else []
    return [line.split() for line in lines if line.startswith(kind)]


async def run_one(lane: int, number: int) -> None:
    assert await post(f"/session/a{lane}/one", number) == 2


async def run_ten(lane: int, number: int) -> None:
    assert await post(f"/session/b{lane}/ten", number) == 9


async def park(request: Any) -> Any:
    async def send(lane: int, number: int) -> None:
        await post(f"/session/w{number}/park/send", number)

    await tasks(send)({**request, "window": 16, "seconds_max": _PATIENCE_S})
    await until(lambda: len(traced("parked")) >= request["count"])
    return {}


async def resume(request: Any) -> Any:
    names = {int(number): name for _, number, name in traced("parked")}

    async def resolve(lane: int, number: int) -> None:
        while True:
            try:
                return await post(f"/restate/awakeables/{names[number]}/resolve", 2)
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(_POLL_S)

    await tasks(resolve)({**request, "window": _WINDOW, "seconds_max": _PATIENCE_S})
    await until(lambda: len(traced("ended")) >= request["count"])
    return {"ends_s": [float(ended_s) for _, _, ended_s in traced("ended")]}


def main() -> None:
    serve({"A": tasks(run_one), "B": tasks(run_ten), "park": park, "resume": resume})


if __name__ == "__main__":
    main()
