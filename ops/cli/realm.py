"""A realm opened by the command line: journal, feed and dead letters, without any node.

Nothing is made and nothing is taken over; a realm that was never served is not there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rookery.bus.connection import ApiError, Connection
from rookery.bus.feed import JetStreamFeed
from rookery.bus.inbox import JetStreamInbox
from rookery.bus.journal import JetStreamJournal
from rookery.bus.subjects import Subjects
from rookery.ops.cli.options import Options
from rookery.ops.reach import url_of
from rookery.schemas.errors import Failed

__all__ = ["Realm", "open_realm"]

_STREAM_NOT_FOUND = 10059


class Realm:
    """The parts of a realm that can be read without a node."""

    def __init__(self, connection: Connection, subjects: Subjects) -> None:
        self.subjects = subjects
        self.journal = JetStreamJournal(connection, subjects)
        self.feed = JetStreamFeed(connection, subjects)
        self.inbox = JetStreamInbox(connection, subjects)


@asynccontextmanager
async def open_realm(options: Options) -> AsyncIterator[Realm]:
    """The realm the options name; ``Failed`` SERVER_UNREACHABLE if it was never served there."""
    config = options.load().config
    connection = Connection(url_of(config), credentials=config.server.credentials_file)
    await connection.open()
    try:
        subjects = Subjects(config.realm)
        await connection.api(f"STREAM.INFO.{subjects.journal_stream}")
        yield Realm(connection, subjects)
    except ApiError as error:
        if error.err_code != _STREAM_NOT_FOUND:
            raise Failed("SERVER_UNREACHABLE", f"JetStream refuses: {error}") from None
        raise Failed(
            "SERVER_UNREACHABLE",
            f"no realm {config.realm!r} is kept on this server",
            hint=f"rookery up --realm {config.realm}",
        ) from None
    finally:
        await connection.close()
