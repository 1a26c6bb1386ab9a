"""Random and mutated messages on every subject of the bus, beside clients that go on working.

Part one: what credentials may publish. Part two: with the node's own credential, into the journal.
Whatever arrives, the node logs no traceback and serves on, sessions that no message touched answer
as before, and the journal of part one verifies.

``python -m tests.chaos.bus_fuzz [MESSAGES [SEED]]``; the suite runs a short form.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Final

import msgspec
import nats

from rookery.bus.client import Client
from rookery.bus.roles import ROLES_FOR_ONE, Role, permissions
from rookery.bus.streams import terms_in
from rookery.bus.subjects import Subjects
from tests.nodes import NodeProcess, Said, rookery_here
from tests.stock_client import inbox_prefix
from tests.wire.test_commands import EXAMPLES

SUBJECTS: Final = Subjects("default")
SENDERS: Final = tuple(role for role in Role if role is not Role.NODE)
SURFACE: Final = "desk"
"""Of the worker."""
KEYS: Final = ("fuzz", "fuzz-2", "_approvers", "_", "all", "%00", "a%2Eb", "x" * 200)
HEADERS: Final = (
    "Nats-Msg-Id",
    "Content-Type",
    "Rookery-Mode",
    "Rookery-Reply",
    "Rookery-By",
    "traceparent",
    "Rookery-Timer",
    "Rookery-Chain",
    "Nats-Schedule",
)
FAMILIES: Final = ("session", "turn", "tool", "approval", "lease", "node", "surface", "peer", "odd")
PAUSE_EVERY: Final = 500
PATIENCE_S: Final = 120.0
LAST_LINES: Final = 20
"""Of the logs of nodes, printed if the long form fails."""


class Noise:
    """Messages from one seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def body(self, verb: str = "") -> bytes:
        """Bytes without sense, or an example of the verb with something changed."""
        chance = self.chance
        example = EXAMPLES.get(verb)
        if example is None or chance.random() < 0.3:
            return chance.randbytes(chance.choice((0, 1, 7, 60, 400, 5_000)))
        body = bytearray(msgspec.json.encode(example))
        for _ in range(chance.randint(0, 4)):
            at = chance.randrange(len(body) + 1)
            match chance.randrange(4):
                case 0:
                    body[at : at + 1] = chance.randbytes(1)
                case 1:
                    del body[at : at + chance.randint(1, 9)]
                case 2:
                    body[at:at] = chance.choice((b"null", b"{}", b"[" * 50, b"-1", b"1e999", b'""'))
                case _:
                    body[at:at] = body[: chance.randint(0, 40)]
        return bytes(body)

    def headers(self) -> dict[str, str] | None:
        names = [name for name in HEADERS if self.chance.random() < 0.2]
        return {name: self.text() for name in names} or None

    def text(self) -> str:
        kinds = (
            "queue",
            "application/json",
            "_INBOX.default.client.x.1",
            "a.b",
            "$JS.API.INFO",
            "~x.1",
        )
        letters = "".join(
            chr(self.chance.randint(33, 126)) for _ in range(self.chance.randint(1, 40))
        )
        return self.chance.choice((*kinds, letters.replace(":", ".")))

    def reply(self, prefix: str) -> str:
        """Mostly an inbox of one's own."""
        if self.chance.random() < 0.5:
            return f"{prefix}.fuzz.{self.chance.randint(1, 9)}"
        steered = (
            "$JS.API.STREAM.PURGE.ROOKERY_default_INBOX",
            "rookery.default.fired.1.approval_due.x",
        )
        others = ("rookery.default.ev.session.honest", "_INBOX.default.node.x.1", "reply", "")
        return self.chance.choice((*steered, *others))

    def subject(self, pattern: str) -> str:
        """One that the pattern of a permission allows."""
        key = self.chance.choice(KEYS)
        return pattern.replace("*", key).replace(">", key)


def surface_of(role: Role) -> str:
    return SURFACE if role in ROLES_FOR_ONE else ""


async def publish_noise(url: str, role: Role, noise: Noise, count: int) -> None:
    """Messages on every subject that the role may publish."""
    prefix = inbox_prefix(url)
    user = prefix.removeprefix("_INBOX.")
    allowed = permissions(role, SUBJECTS, user, surface_of(role)).publish
    client = await nats.connect(
        url, inbox_prefix=prefix, error_cb=_ignore, max_reconnect_attempts=-1
    )
    try:
        for number in range(count):
            pattern = noise.chance.choice(allowed)
            verb = pattern.split(".")[3] if pattern.count(".") > 3 else ""
            subject, reply = noise.subject(pattern), noise.reply(prefix)
            await client.publish(subject, noise.body(verb), reply=reply, headers=noise.headers())
            if number % PAUSE_EVERY == 0:
                await client.flush(PATIENCE_S)
        await client.flush(PATIENCE_S)
    finally:
        await client.close()


async def publish_facts(url: str, noise: Noise, count: int) -> None:
    """Messages in the journal, published with the terms of the node that serves."""
    client = await nats.connect(url, inbox_prefix=inbox_prefix(url), error_cb=_ignore)
    try:
        answer = await client.request(f"$JS.API.STREAM.INFO.{SUBJECTS.journal_stream}", b"")
        terms = terms_in(SUBJECTS, json.loads(answer.data)["config"])
        for number in range(count):
            partition, term = noise.chance.choice(list(terms.items()))
            family, key = noise.chance.choice(FAMILIES), noise.chance.choice(KEYS)
            subject = SUBJECTS.appends(partition, term).replace(">", f"{family}.{key}")
            await client.publish(subject, noise.body(), headers=noise.headers())
            if number % PAUSE_EVERY == 0:
                await client.flush(PATIENCE_S)
        await client.flush(PATIENCE_S)
    finally:
        await client.close()


async def honest(url: str, done: Event) -> int:
    """Runs of a session of its own until the noise is over; how many answered, all rightly."""
    answered = 0
    async with Client(url) as client:
        while not (answered and done.is_set()):
            answer = await client.run("honest", f"{answered} + 1", timeout_s=PATIENCE_S)
            answered += 1
            assert answer.result == answered, answer
            await asyncio.sleep(0.02)
    return answered


def beside_honest_runs(url: str, *noise: Coroutine[None, None, None]) -> int:
    """Send the noise while another thread works as a user does; how many runs that did."""
    done = Event()

    async def send() -> None:
        await asyncio.gather(*noise)

    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(asyncio.run, honest(url, done))
        try:
            asyncio.run(send())
        finally:
            done.set()
        return working.result()


def send_commands(node: NodeProcess, noise: Noise, count: int) -> int:
    each = count // len(SENDERS)
    urls = {role: node.url_for(role, surface=surface_of(role)) for role in SENDERS}
    sent = [publish_noise(url, role, noise, each) for role, url in urls.items()]
    return beside_honest_runs(node.url_for(Role.CLIENT), *sent)


def send_facts(node: NodeProcess, noise: Noise, count: int) -> int:
    facts = publish_facts(node.url_for(Role.NODE), noise, count)
    return beside_honest_runs(node.url_for(Role.CLIENT), facts)


def recovers(node: NodeProcess) -> None:
    """Wait until every probe is green: the noise may have left the node some work."""
    until_s = time.monotonic() + PATIENCE_S
    while not all(probe["ok"] for probe in node.probes()[1].values()):
        assert time.monotonic() < until_s, node.probes()
        time.sleep(0.2)


def bus_fuzz(folder: Path, messages: int, seed: int) -> list[str]:
    """Run both parts; what happened, a line each. An assertion fails if anything is wrong."""
    store, noise, said = str(folder / "store"), Noise(seed), []
    flags = ("--store", store, "--driver", "sandbox", "--metrics-port", "0")

    def cli(*words: str) -> Said:
        return rookery_here(folder, *words, "--store", store)

    with NodeProcess(folder, *flags) as node:
        runs = send_commands(node, noise, messages)
        said.append(f"{messages} messages of {len(SENDERS)} roles beside {runs} honest runs")
        assert node.running
        recovers(node)
        verified = cli("journal", "verify")
        assert verified.code == 0, verified.err
        runs = send_facts(node, noise, messages // 10)
        said.append(f"{messages // 10} messages in the journal beside {runs} honest runs")
        assert node.running
        assert node.stop() == 0
    with NodeProcess(folder, *flags) as again:
        assert beside_honest_runs(again.url_for(Role.CLIENT))
        assert cli("runs", "list").code == 0
        assert cli("journal", "verify").code == 1
    logs = "".join(log.read_text() for log in folder.glob("node-*.log"))
    assert "Traceback" not in logs, logs[logs.index("Traceback") - 2_000 :][:4_000]
    return said


async def _ignore(_: Exception) -> None:
    """Refusals of the server are what some of the noise is for."""


def main() -> int:
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    with tempfile.TemporaryDirectory(prefix="rookery-fuzz-") as folder:
        try:
            print(*bus_fuzz(Path(folder), messages, seed), sep="\n")
        except Exception:
            for log in Path(folder).glob("node-*.log"):
                print(log.name, *log.read_text().splitlines()[-LAST_LINES:], sep="\n")
            raise
    print("no traceback, every probe green, honest answers right")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
