"""A tls:// connection is encrypted, or it is refused."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rookery.bus.clock import wait_until
from rookery.bus.nats.connection import Connection, Message, Outgoing
from rookery.bus.server.server import EmbeddedServer, find_server
from rookery.bus.server.store import Store
from rookery.schemas.errors import Failed
from tests.bus.deadlines import wait_until as wait_on_the_loop_until
from tests.bus.nats.test_connection import connected, run

CERTIFICATE = Path(__file__).with_name("loopback.pem")


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Host and port of a server that requires TLS and the token ``geheim``."""
    config = tmp_path / "server.conf"
    config.write_text(
        f'listen: "127.0.0.1:-1"\nports_file_dir: "{tmp_path}"\nlog_file: "{tmp_path}/log"\n'
        f'tls {{ cert_file: "{CERTIFICATE}", key_file: "{CERTIFICATE}" }}\n'
        'authorization { token: "geheim" }\n'
    )
    server = subprocess.Popen([find_server(), "-c", str(config)])
    running = wait_until(Store(tmp_path).running_server, 90)
    assert running is not None
    yield urlsplit(running.address).netloc
    server.terminate()
    server.wait()


def test_messages_are_encrypted_in_both_directions(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))

    async def scenario() -> None:
        async with connected(f"tls://geheim@{address}") as connection:
            got: list[Message] = []
            await connection.subscribe("x", got.extend)
            connection.send([Outgoing("x", bytes(100_000))] * 50)
            await wait_on_the_loop_until(lambda: len(got) == 50)
            assert {message.body for message in got} == {bytes(100_000)}

    run(scenario)


def test_an_untrusted_certificate_is_refused(address: str) -> None:
    async def scenario() -> None:
        with pytest.raises(Failed, match="CERTIFICATE_VERIFY_FAILED") as failed:
            await Connection(f"tls://geheim@{address}").open()
        assert failed.value.code == "SERVER_UNREACHABLE"

    run(scenario)


def test_a_server_without_tls_never_receives_the_password(server: EmbeddedServer) -> None:
    async def scenario() -> None:
        with pytest.raises(Failed, match="offers no TLS"):
            await Connection(server.url.replace("nats://", "tls://")).open()

    run(scenario)
