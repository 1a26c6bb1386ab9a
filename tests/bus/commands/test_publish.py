"""Errors of publishing: the server's refusal becomes the right code."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rookery.bus.clock import wait_until
from rookery.bus.commands.command_messages import publish
from rookery.bus.nats.connection import Connection, Outgoing
from rookery.bus.server.server import find_server
from rookery.bus.server.store import Store
from rookery.schemas.errors import CODES, Failed
from tests.bus.nats.test_connection import connected, run

ACCOUNT_BYTES_MAX = 100_000
ACCOUNT_EXCEEDED = 10002


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """The address of a server whose account has a small storage limit."""
    config = tmp_path / "server.conf"
    config.write_text(
        f'listen: "127.0.0.1:-1"\nports_file_dir: "{tmp_path}"\nlog_file: "{tmp_path}/log"\n'
        f'jetstream {{ store_dir: "{tmp_path}" }}\n'
        f"accounts {{ A {{ jetstream: {{ max_file: {ACCOUNT_BYTES_MAX} }}, "
        'users: [ { user: "a", password: "a" } ] } }\n'
    )
    server = subprocess.Popen([find_server(), "-c", str(config)])
    running = wait_until(Store(tmp_path).running_server, 90)
    assert running is not None
    yield urlsplit(running.address).netloc
    server.terminate()
    server.wait()


async def fill(connection: Connection) -> None:
    for _ in range(10):
        await publish(connection, Outgoing("s", bytes(ACCOUNT_BYTES_MAX // 5)))


def test_an_account_at_its_limit_is_full_and_not_a_stream_mismatch(address: str) -> None:
    async def scenario() -> None:
        async with connected(f"nats://a:a@{address}") as connection:
            await connection.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
            with pytest.raises(Failed, match=str(ACCOUNT_EXCEEDED)) as failed:
                await fill(connection)
            assert failed.value.code == "JOURNAL_FULL"
            assert CODES[failed.value.code].retryable

    run(scenario)
