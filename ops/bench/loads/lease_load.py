"""Calls with credentials, and leases that begin, are refreshed and are followed.

The node of these loads has two bindings. The credential of ``held`` is read from a file and lasts
for a day; that of ``brief`` comes from an authorization server and lasts for seconds.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import aclosing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import perf_counter

import msgspec

from rookery.actors import tool
from rookery.actors.leases import LeaseStates
from rookery.actors.tools import ToolCredential, ToolRegistry
from rookery.bus.client import Client
from rookery.bus.clock import SystemClock
from rookery.bus.event_loop import LoopThread
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.nats import Connection
from rookery.bus.ports import Filter, StoredMessage
from rookery.ops.bench.harness.load import LoadResult, Task, timed
from rookery.ops.bench.harness.process_usage import resident_bytes
from rookery.ops.bench.harness.result_rows import percentile
from rookery.ops.bench.loads.run_load import CALLING, PLAIN, same, timed_run
from rookery.schemas.codec import fact_tag
from rookery.schemas.commands import HandleInput
from rookery.schemas.facts import lease as facts
from rookery.schemas.run import RunRequest

__all__ = [
    "begin_leases",
    "lease_calls",
    "refresh_leases",
    "registry",
    "report_followed",
    "serve_tokens",
]

_WITH_CREDENTIAL = RunRequest(code="same_with_credential(2)")
_BRIEF_S = 4
_AT_ONCE = 64


@tool(side_effect="write", idempotent=True, binding="held")
def same_with_credential(value: int, credential: ToolCredential) -> int:
    """The value, like ``same``; the call has a credential."""
    del credential
    return value


registry = ToolRegistry.of(same, same_with_credential)


# --- calls ----------------------------------------------------------------------------------------


async def lease_calls(connection: Connection, task: Task) -> LoadResult:
    """The extra time of a program with one call that gets a fresh credential, compared with the
    program before it, which makes none; beside it, that of the same call without a credential."""
    del connection
    longer_s: dict[str, list[float]] = {CALLING.code: [], _WITH_CREDENTIAL.code: []}
    pair = (CALLING, _WITH_CREDENTIAL)
    async with Client(task.client_url) as client:
        for number in range(task.entities):  # The first of these calls waits for the credential.
            await client.run(f"p{number}", _WITH_CREDENTIAL)
        start_s = perf_counter()
        for first in range(task.entities, task.entities + 3 * task.count, 3):
            plain_s = await timed_run(client, task, first, PLAIN)
            pair = pair[::-1]
            for number, request in enumerate(pair, first + 1):
                taken_s = await timed_run(client, task, number, request)
                longer_s[request.code].append(taken_s - plain_s)
        outcome = timed(longer_s[_WITH_CREDENTIAL.code], perf_counter() - start_s)
    return _beside(outcome, longer_s[CALLING.code])


def _beside(outcome: LoadResult, taken_s: list[float]) -> LoadResult:
    return msgspec.structs.replace(outcome, beside_p50_us=1e6 * percentile(taken_s, 0.5))


# --- leases ---------------------------------------------------------------------------------------


async def begin_leases(connection: Connection, task: Task) -> LoadResult:
    """Let leases get their first credential, ``task.window`` requests at a time."""
    del connection
    taken_s: list[float] = []

    async def begin(numbers: Iterator[int]) -> None:
        for number in numbers:
            sent_s = perf_counter()
            await _begin(client, _held(task.first + number))
            taken_s.append(perf_counter() - sent_s)

    async with Client(task.client_url) as client:
        after = await client.journal.end()
        numbers = iter(range(task.count))
        start_s = perf_counter()
        await asyncio.gather(*(begin(numbers) for _ in range(task.window)))
        async with aclosing(client.events("lease", after=after)) as seen:
            left = task.count
            async for fact in seen:
                left -= fact["type"] == fact_tag(facts.Acquired)
                if not left:
                    break
        return timed(taken_s, perf_counter() - start_s)


async def refresh_leases(connection: Connection, task: Task) -> LoadResult:
    """From when a timer is due to when the newer credential's fact is stored, of leases that expire
    soon; beside it, to when the fact is stored that begins the refresh."""
    del connection
    refreshes = _Refreshes()
    async with Client(task.client_url) as client:
        after = await client.journal.end()
        start_s = perf_counter()
        for number in range(task.entities):
            await _begin(client, f"default:brief:p{number}")
        async with aclosing(client.feed.follow(Filter("lease"), after)) as pages:
            async for page in pages:
                for stored in page:
                    refreshes.add(stored)
                if len(refreshes.taken_s) >= task.count:
                    break
        outcome = timed(refreshes.taken_s, perf_counter() - start_s)
    return _beside(outcome, refreshes.begun_s)


class _Refreshes:
    """The refreshes that timers began."""

    def __init__(self) -> None:
        self.taken_s: list[float] = []
        self.begun_s: list[float] = []
        self._due_ms: dict[str, int] = {}

    def add(self, stored: StoredMessage) -> None:
        lease = stored.entity.key
        for fact in msgspec.json.decode(stored.body):
            cause = next(iter(fact.get("cause", ())), "")
            if fact["type"] == fact_tag(facts.RefreshBegun) and cause.startswith("timer/"):
                due_ms = self._due_ms[lease] = int(cause.rpartition("/")[2])
                self.begun_s.append((stored.stored_at_ms - due_ms) / 1e3)
            elif fact["type"] == fact_tag(facts.RefreshCompleted) and lease in self._due_ms:
                taken_ms = stored.stored_at_ms - self._due_ms.pop(lease)
                self.taken_s.append(taken_ms / 1e3)


async def _begin(client: Client, lease: str) -> None:
    await client.ask("leases", lease, HandleInput(input="request_credential", params={}))


def _held(number: int) -> str:
    return f"default:held:p{number}"


def report_followed(task: Task) -> None:
    """Print by how much ``task.count`` leases that a node follows increase its memory."""
    thread = LoopThread()
    bus = JetStreamBus(task.url, sync=task.sync)
    thread.run(bus.start())
    states = LeaseStates(bus, thread, SystemClock().now_ms)
    try:
        grown = thread.run(_follow(states, task.count))
    finally:
        thread.run(bus.stop())
        thread.close()
    print(grown)


async def _follow(states: LeaseStates, count: int) -> int:
    await states.open(())
    following = asyncio.create_task(states.run())
    await states.state_of(_held(0))
    before = resident_bytes()
    for first in range(0, count, _AT_ONCE):
        numbers = range(first, min(first + _AT_ONCE, count))
        await asyncio.gather(*(states.state_of(_held(number)) for number in numbers))
    grown = resident_bytes() - before
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    return grown


# --- the authorization server ---------------------------------------------------------------------


class _TokenHandler(BaseHTTPRequestHandler):
    taken_s: list[float]

    def do_POST(self) -> None:
        start_s = perf_counter()
        self.rfile.read(int(self.headers["Content-Length"]))
        token = {"access_token": "bench", "token_type": "Bearer", "expires_in": _BRIEF_S}
        body = msgspec.json.encode(token)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.taken_s.append(perf_counter() - start_s)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def serve_tokens(task: Task) -> None:
    """Serve tokens until the input ends; print the URL at the start, and at the end the median of
    the server's own time in us."""
    del task
    _TokenHandler.taken_s = []
    with ThreadingHTTPServer(("127.0.0.1", 0), _TokenHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"http://127.0.0.1:{server.server_port}/token", flush=True)
        sys.stdin.read()
        server.shutdown()
    print(1e6 * percentile(_TokenHandler.taken_s or [0.0], 0.5), flush=True)
