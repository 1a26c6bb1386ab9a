"""Invocations of hooks on a real server: the first answer counts, every other one is counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import nats.errors
import pytest

from rookery.bus.nats import Connection
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.bus.subjects import Subjects
from rookery.bus.workers.hook_services import NatsHookEndpoint, NatsHookServices
from rookery.schemas.errors import Failed
from tests.bus.deadlines import wait_until
from tests.stock_client import inbox_prefix

SUBJECTS = Subjects("default")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    folder: Path = tmp_path_factory.mktemp("hooks")
    with EmbeddedServer(folder / "store", sync="default") as running:
        yield running


@asynccontextmanager
async def connected(
    server: EmbeddedServer, role: Role, hook: str = ""
) -> AsyncIterator[Connection]:
    connection = Connection(server.url_for(role, surface=hook))
    await connection.open()
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def asking(server: EmbeddedServer) -> AsyncIterator[NatsHookServices]:
    async with connected(server, Role.NODE) as connection:
        services = NatsHookServices(connection, SUBJECTS)
        yield services
        await services.close()


def test_a_process_answers_an_invocation(server: EmbeddedServer):
    async def answer(body: bytes) -> bytes:
        return body.upper()

    async def scenario() -> None:
        async with asking(server) as services, connected(server, Role.HOOK, "guard") as process:
            with pytest.raises(Failed, match="no process serves hook guard"):
                await services.ask("guard", "i", b"a", patience_s=0.02)
            endpoint = NatsHookEndpoint(process, SUBJECTS, "guard")
            await endpoint.open(answer)
            assert await services.ask("guard", "i", b"a", patience_s=90) == b"A"
            await endpoint.close()
            assert services.late == {}

    asyncio.run(scenario())


def test_a_second_answer_and_a_late_one_are_dropped_and_counted(server: EmbeddedServer):
    async def scenario() -> None:
        url = server.url_for(Role.HOOK, surface="guard")
        async with (
            asking(server) as services,
            await nats.connect(url, inbox_prefix=inbox_prefix(url)) as process,
        ):
            asked = []

            async def keep(message: nats.aio.msg.Msg) -> None:
                asked.append(message)
                if len(asked) == 1:
                    for body in (b"first", b"second", b"third"):
                        await message.respond(body)

            await process.subscribe("rookery.default.hook.guard", "rookery", cb=keep)
            await process.flush()
            assert await services.ask("guard", "i", b"", patience_s=90) == b"first"
            await wait_until(lambda: services.late == {"guard": 2})
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await services.ask("guard", "j", b"", patience_s=90)
            await wait_until(lambda: len(asked) == 2)
            await asked[1].respond(b"too late")
            await wait_until(lambda: services.late == {"guard": 3})

    asyncio.run(scenario())


def test_a_credential_of_one_hook_neither_hears_nor_answers_for_another(server: EmbeddedServer):
    async def scenario() -> None:
        url, errors = server.url_for(Role.HOOK, surface="other"), list[str]()

        async def note(error: Exception) -> None:
            errors.append(str(error))

        async with (
            asking(server) as services,
            await nats.connect(url, inbox_prefix=inbox_prefix(url), error_cb=note) as process,
        ):
            await process.subscribe("rookery.default.hook.guard")
            await process.publish("rookery.default.verdict.guard.x.1", b"{}")
            await process.publish("rookery.default.api.hooks._realm", b"{}")
            await process.flush()
            await wait_until(lambda: len(errors) == 3)
            assert all("permissions violation" in error.lower() for error in errors)
            with pytest.raises(Failed, match="no process serves hook guard"):
                await services.ask("guard", "i", b"", patience_s=0.02)
            assert services.late == {}

    asyncio.run(scenario())
