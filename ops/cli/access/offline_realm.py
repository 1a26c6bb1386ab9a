"""A realm opened by a command: the parts that need no node, and requests to its nodes.

Opening a realm creates nothing in it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Final, TypeVar

import msgspec

from rookery.actors.kernel import node_of_holder, process_of_holder
from rookery.bus.client import Client
from rookery.bus.commands import JetStreamInbox
from rookery.bus.journal import JetStreamFeed
from rookery.bus.nats import STREAM_NOT_FOUND, ApiError, Connection
from rookery.bus.storage import (
    Bucket,
    JetStreamBlobs,
    JetStreamCheckpointStore,
    JetStreamClaims,
    JetStreamSecrets,
)
from rookery.bus.subjects import Subjects
from rookery.ops.cli.options import Options
from rookery.ops.cli.read_progress import ProgressJournal
from rookery.ops.config import Config
from rookery.ops.process_identity import is_dead
from rookery.ops.server_url import server_url
from rookery.schemas.errors import Failed

__all__ = ["OfflineRealm", "open_realm"]

T = TypeVar("T")

_UNANSWERED_CODES: Final = frozenset({"PARTITION_UNOWNED", "NO_ANSWER"})
_TIMEOUT_S: Final = 10.0
_ANY_KEY: Final = "all"
_UP: Final = "rookery up"


class OfflineRealm:
    """The parts of a realm that can be read without a node, and requests to its nodes."""

    def __init__(self, connection: Connection, config: Config, url: str) -> None:
        self.subjects = subjects = Subjects(config.realm)
        self.journal = ProgressJournal(connection, subjects)
        self.feed = JetStreamFeed(connection, subjects)
        self.inbox = JetStreamInbox(connection, subjects)
        self.claims = JetStreamClaims(Bucket(connection, subjects.claims_bucket))
        self.blobs = JetStreamBlobs(Bucket(connection, subjects.blobs_bucket))
        self.checkpoints = JetStreamCheckpointStore(Bucket(connection, subjects.projections_bucket))
        self.secrets = JetStreamSecrets(Bucket(connection, subjects.secrets_bucket))
        self.connection = connection
        self._config, self._url = config, url
        self._client: Client | None = None

    async def nodes(self) -> frozenset[str]:
        """The live nodes: those with a claim whose process is not known to be dead."""
        return frozenset(map(node_of_holder, await self._holders()))

    async def processes(self) -> frozenset[str]:
        """The live processes of the nodes; a node of one process has the name of its process."""
        return frozenset(map(process_of_holder, await self._holders()))

    async def _holders(self) -> list[str]:
        claims = await self.claims.list("node.")
        return [claim.holder for claim in claims if not is_dead(claim.value)]

    async def try_ask(self, verb: str, query: object, kind: type[T]) -> T | None:
        """The reply of any node to a query; ``None`` if no node replies."""
        try:
            return await self.ask(verb, _ANY_KEY, query, kind)
        except Failed as error:
            if error.code in _UNANSWERED_CODES:
                return None
            raise

    async def ask(
        self, verb: str, key: str, body: object, kind: type[T], patience_s: float = _TIMEOUT_S
    ) -> T:
        """The reply of the node that owns ``key``; ``Failed`` at once if the realm has no node."""
        if self._client is None:
            if not await self.nodes():
                raise Failed("NO_ANSWER", f"no node serves realm {self._config.realm}", hint=_UP)
            credentials = self._config.server.credentials_file
            client = Client(self._url, realm=self._config.realm, credentials=credentials)
            await client.open()
            self._client = client
        return msgspec.convert(await self._client.ask(verb, key, body, timeout_s=patience_s), kind)

    async def aclose(self) -> None:
        """Close the client of the realm's nodes, if one was opened."""
        if self._client is not None:
            await self._client.close()


@asynccontextmanager
async def open_realm(options: Options) -> AsyncIterator[OfflineRealm]:
    """The realm of the options; ``Failed`` SERVER_UNREACHABLE if the server has no such realm."""
    config = options.load().config
    url = server_url(config)
    connection = Connection(url, credentials=config.server.credentials_file)
    await connection.open()
    try:
        realm = OfflineRealm(connection, config, url)
        await connection.api(f"STREAM.INFO.{realm.subjects.journal_stream}")
        async with aclosing(realm):
            yield realm
    except ApiError as error:
        if error.err_code != STREAM_NOT_FOUND:
            raise Failed("SERVER_UNREACHABLE", f"JetStream refuses: {error}") from None
        raise Failed(
            "SERVER_UNREACHABLE",
            f"the server has no realm {config.realm!r}",
            hint=f"rookery up --realm {config.realm}",
        ) from None
    finally:
        await connection.close()
