"""Every entry point for a run: stock clients, a bare socket, our clients and the shell."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

import msgspec

from rookery.bus import connect, connect_sync
from rookery.schemas.replies import RunAnswer
from tests.execution.realm_fixture import Serving
from tests.stock_client import Fields, inbox_prefix, stock, until

__all__ = ["DOORS", "PATIENCE_S"]

PATIENCE_S = 45.0

Door = Callable[[Serving, str, Fields], Fields]
DOORS: dict[str, Door] = {}


def door(ask: Door) -> Door:
    DOORS[ask.__name__] = ask
    return ask


@door
def a_stock_client_by_the_inbox(driving: Serving, session: str, body: Fields) -> Fields:
    async def ask() -> Fields:
        async with stock(driving.server, driving.realm) as client:
            reply = client.reply("told")
            stored = await client.submit("run", session, body, Rookery_Reply=reply)
            assert stored > 0
            return (await until(lambda: client.answers["told"]))[0].body

    return asyncio.run(ask())


@door
def a_stock_client_by_request(driving: Serving, session: str, body: Fields) -> Fields:
    async def ask() -> Fields:
        async with stock(driving.server, driving.realm) as client:
            subject = f"rookery.{driving.realm}.api.run.{session}"
            request = client.nats.request(subject, json.dumps(body).encode(), timeout=PATIENCE_S)
            found: Fields = json.loads((await request).data)
            return found

    return asyncio.run(ask())


@door
def a_bare_socket(driving: Serving, session: str, body: Fields) -> Fields:
    """A client that writes the protocol as text, as any language can."""
    where, inbox = urlsplit(driving.url), inbox_prefix(driving.url)
    data = json.dumps(body).encode()
    headers = f"NATS/1.0\r\nNats-Msg-Id: bare-{session}\r\nRookery-Reply: {inbox}.bare\r\n\r\n"
    login = json.dumps(
        {"user": where.username, "pass": where.password, "headers": True, "verbose": False}
    )
    subject = f"rookery.{driving.realm}.cmd.run.{session}"
    head = len(headers.encode())
    with socket.create_connection((where.hostname, where.port), PATIENCE_S) as plain:
        lines = plain.makefile("rwb")
        assert lines.readline().startswith(b"INFO ")
        lines.write(f"CONNECT {login}\r\nSUB {inbox}.bare 1\r\n".encode())
        lines.write(f"HPUB {subject} {head} {head + len(data)}\r\n{headers}".encode())
        lines.write(data + b"\r\nPING\r\n")
        lines.flush()
        while not (line := lines.readline()).startswith(f"MSG {inbox}.bare ".encode()):
            if line == b"PING\r\n":  # The server asks a client that is slow to answer.
                lines.write(b"PONG\r\n")
                lines.flush()
            else:
                assert line == b"PONG\r\n", line
        found: Fields = json.loads(lines.read(int(line.split()[-1])))
        return found


@door
def our_client(driving: Serving, session: str, body: Fields) -> Fields:
    async def ask() -> RunAnswer:
        async with connect(driving.url, realm=driving.realm) as client:
            return await client.run(session, body)

    return fields(asyncio.run(ask()))


@door
def our_client_by_the_inbox(driving: Serving, session: str, body: Fields) -> Fields:
    with connect_sync(driving.url, realm=driving.realm) as client:
        return fields(client.submit(session, body).result(PATIENCE_S))


@door
def our_client_without_a_loop(driving: Serving, session: str, body: Fields) -> Fields:
    with connect_sync(driving.url, realm=driving.realm) as client:
        return fields(client.run(session, body))


@door
def the_shell(driving: Serving, session: str, body: Fields) -> Fields:
    inputs = (f"{name}={json.dumps(value)}" for name, value in body.get("inputs", {}).items())
    words = [word for each in inputs for word in ("--input", each)]
    limits = (f"{name}={value}" for name, value in body.get("limits", {}).items())
    words += [word for each in limits for word in ("--limit", each)]
    said = driving.rookery("run", "-e", body["code"], *words, "--session", session)
    assert said.code == 0, said
    found: Fields = json.loads(said.out)
    return found


def fields(answer: RunAnswer) -> Fields:
    found: Fields = msgspec.to_builtins(answer)
    return found
