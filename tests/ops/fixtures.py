"""A realm with something in it, and the command line run against it as a user would."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from rookery.actors.sandbox.python.build import cache_folder
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.ports import Appended, AppendOutcome, AppendRequest, Delivery
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.ops.cli import main
from rookery.schemas.codec import encode_facts
from rookery.schemas.digest import ZERO_CHAIN, chain
from rookery.schemas.envelope import EntityId, Fact
from rookery.schemas.facts.session import Initialized, Registered
from tests.bus.journals import share_turns
from tests.forkserver import Piped, can_fork, fork_piped
from tests.nodes import NodeProcess, rookery_here, without_progress

ROOKERY = [sys.executable, "-m", "rookery.ops.cli"]
Started = Piped | subprocess.Popen[str]
STARTED_MS = 1_700_000_000_000


class Ended(msgspec.Struct, frozen=True):
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.out)

    @property
    def lines(self) -> list[Any]:
        return [msgspec.json.decode(line) for line in self.out.splitlines()]


class CommandLine:
    """One user, with a store of his own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        built = str(cache_folder(os.environ).parents[1])
        own = {"ROOKERY_STORE": str(home / "store"), "XDG_CACHE_HOME": built}
        self.environment = clean_environment(home) | own

    def rookery(self, *arguments: str) -> Ended:
        return rookery(*arguments, environment=self.environment, directory=self.home)

    @contextmanager
    def started(self, *arguments: str, command: Sequence[str] = ROOKERY) -> Iterator[Started]:
        with going_on([*command, *arguments], self.environment, self.home) as process:
            yield process

    @contextmanager
    def served(self, *arguments: str) -> Iterator[NodeProcess]:
        """A node on the store."""
        store = ("--store", str(self.home / "store"), "--driver", "sandbox")
        with NodeProcess(self.home, *store, *arguments) as node:
            yield node


@contextmanager
def going_on(
    command: Sequence[str], environment: Mapping[str, str], directory: Path
) -> Iterator[Started]:
    """A command that runs until the test ends it."""
    process: Started
    if [*command[: len(ROOKERY)]] == ROOKERY and can_fork(environment):
        process = fork_piped(command[len(ROOKERY) :], env=environment, cwd=directory)
    else:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    with process:
        try:
            yield process
        finally:
            process.kill()


class Realm:
    """One realm of a running server, and a shell that knows where it is."""

    def __init__(self, server: EmbeddedServer, name: str, home: Path) -> None:
        self.server, self.name, self.home = server, name, home
        self.environment = clean_environment(home) | {
            "ROOKERY_STORE": str(server.store),
            "ROOKERY_REALM": name,
        }

    def rookery(self, *arguments: str) -> Ended:
        return rookery(*arguments, environment=self.environment, directory=self.home)

    def shell(self, *arguments: str) -> Ended:
        return shell(*arguments, environment=self.environment, directory=self.home)

    @contextmanager
    def started(self, *arguments: str) -> Iterator[Started]:
        """A command that runs until the test ends it."""
        with going_on([*ROOKERY, *arguments], self.environment, self.home) as process:
            yield process

    def write(self, session: str, messages: int, *, broken_at: int = 0) -> None:
        """Append messages of two facts each; the digest of the ``broken_at``-th is a lie."""
        bodies = [encode_facts(_facts(session, number)) for number in range(1, messages + 1)]
        asyncio.run(self._write(EntityId("session", session), bodies, broken_at))

    def write_facts(self, entity: EntityId, facts: Sequence[Fact]) -> None:
        """Append facts, a message each."""
        asyncio.run(self._write(entity, [encode_facts([fact]) for fact in facts], 0))

    def bury(self, key: str, body: bytes) -> None:
        """Put a command among the dead letters."""
        asyncio.run(self._bury(Delivery(verb="run", key=key, id=f"id-{key}", body=body)))

    async def _write(self, entity: EntityId, bodies: Sequence[bytes], broken_at: int) -> None:
        bus = JetStreamBus(self.server.url_for(Role.NODE, realm=self.name), realm=self.name)
        await bus.start()
        await share_turns(bus.journal)
        last = await bus.journal.last(entity)
        sequence, digest = (last.sequence, last.chain) if last else (0, ZERO_CHAIN)
        for number, body in enumerate(bodies, 1):
            digest = chain(digest, body if number != broken_at else b"something else")
            append = AppendRequest(entity, sequence, f"{entity.key}-{sequence}", body, digest)
            sequence = await _settled(bus, append)
        await bus.stop()

    async def _bury(self, delivery: Delivery) -> None:
        bus = JetStreamBus(self.server.url_for(Role.NODE, realm=self.name), realm=self.name)
        await bus.start()
        await bus.inbox.dead_letter(delivery, "COMMAND_QUARANTINED", "it failed three times")
        await bus.stop()


async def _settled(bus: JetStreamBus, append: AppendRequest) -> int:
    settled: asyncio.Future[list[AppendOutcome]] = asyncio.get_running_loop().create_future()
    bus.journal.append([append], settled.set_result)
    (outcome,) = await settled
    assert isinstance(outcome, Appended)
    return outcome.sequence


def _facts(session: str, number: int) -> list[Initialized | Registered]:
    at_ms = STARTED_MS + number
    return [
        Initialized(session=session, at_ms=at_ms, row="Initialize"),
        Registered(
            session=session, at_ms=at_ms, row="RegisterSession", session_id_in=session, run="r1"
        ),
    ]


def clean_environment(home: Path) -> dict[str, str]:
    """Ours without anything that configures Rookery, and with another home."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ROOKERY_", "NATS_", "XDG_"))
    }
    return kept | {"HOME": str(home), "ROOKERY_NODE_DRIVER": "outside"}


def rookery(*arguments: str, environment: dict[str, str], directory: Path) -> Ended:
    """What a command says, without the half second it takes to start a Python."""
    out, err = (TextIOWrapper(BytesIO(), write_through=True) for _ in range(2))
    with (
        patch.dict(os.environ, environment, clear=True),
        chdir(directory),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = main(arguments)
    said, errors = (stream.buffer.getvalue().decode() for stream in (out, err))
    return Ended(code, said, without_progress(errors))


def shell(*arguments: str, environment: dict[str, str], directory: Path) -> Ended:
    """The same, as a process of its own."""
    said = rookery_here(directory, *arguments, environment=environment)
    return Ended(said.code, said.out, said.err)
