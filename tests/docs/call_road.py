"""The files of the road of one approved call: ``python -m tests.docs.call_road``.

A node executes a run whose only call needs an approval, twice: the first warms it up. In between it
rests for some seconds. Printed are the product's files with a function that ran for the second run
and not while the node rested, each with its lines, how many such functions it has, and some.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from rookery.bus.server.server import EmbeddedServer
from tests.approvals.approval_world import ApprovalWorld, Parked

ROOT = Path(__file__).parents[2]
Files = dict[str, list[str]]

RECORDER = """
import json, os, signal, sys, threading
ROOT, called, recorded = os.environ["ROAD_ROOT"] + "/", {}, {}
is_on = False
def record(frame, event, argument):
    if is_on and event == "call":
        code = frame.f_code
        if code not in called:
            called[code] = True
            path = os.path.realpath(code.co_filename)
            if path.startswith(ROOT) and "/.venv" not in path:
                name = getattr(code, "co_qualname", code.co_name)
                recorded.setdefault(path.removeprefix(ROOT), []).append(name)
def switch(number, frame):
    global is_on
    is_on = not is_on
    if not is_on:
        with open(os.environ["ROAD_FILE"], "a") as file:
            file.write(json.dumps(recorded) + chr(10))
        called.clear()
        recorded.clear()
if "up" in sys.orig_argv:
    signal.signal(signal.SIGUSR1, switch)
    threading.setprofile(record)
    sys.setprofile(record)
"""


def record(folder: Path) -> list[Files]:
    """The functions called: while the node rests, up to the question, and from the answer on."""
    (folder / "sitecustomize.py").write_text(RECORDER, encoding="utf-8")
    file = folder / "road.jsonl"
    variables = {"PYTHONPATH": str(folder), "ROAD_FILE": str(file), "ROAD_ROOT": str(ROOT)}
    variables["PYTHONHASHSEED"] = "0"  # So that it is not forked: it records its own start.
    with EmbeddedServer(folder / "store", admin=True) as server:
        world = ApprovalWorld(server, "road", folder)
        with world.node(**variables) as node:
            asyncio.run(_walk(world, node.process.pid))
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


async def _walk(world: ApprovalWorld, node: int) -> None:
    async def switch(rest_s: float = 0.0) -> None:
        await asyncio.sleep(rest_s)
        os.kill(node, signal.SIGUSR1)
        await asyncio.sleep(0.5)

    async def ask() -> asyncio.Task[object]:
        return asyncio.create_task(world.client.run("s", "strike('s')"))

    async def answer() -> None:
        (asked,) = await world.client.approvals("s")
        decision = world.signed(Parked("s", None, asked).answer())  # type: ignore[arg-type]
        await switch()
        await world.client.ask("decide", "s", decision)

    async with world:
        await world.name_approvers()
        for _ in "warm", "measured":
            await switch(2)
            await switch(4)  # It rested.
            await switch()
            waiting = await ask()
            await switch(3)
            await answer()
            await waiting
            await switch(2)


def main() -> int:
    with TemporaryDirectory() as folder:
        *_, rest, asking, answering = record(Path(folder))
    road: Files = {}
    for part in (asking, answering):
        for path, functions in part.items():
            beyond = [name for name in functions if name not in rest.get(path, ())]
            if beyond and not path.startswith("tests/"):
                road.setdefault(path, []).extend(beyond)
    for path, functions in sorted(road.items()):
        lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
        print(f"{path:<52}{lines:>5}{len(functions):>5}  {', '.join(functions[:3])}")
    packages = Counter("/".join(path.split("/")[:2]) for path in road)
    print(f"{len(road)} files:", ", ".join(f"{name} {n}" for name, n in packages.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
