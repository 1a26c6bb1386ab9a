"""The service by which clients read the journal and the blobs: every node of a realm answers.

The node checks a query and sends the server's own query with the client's inbox as reply subject.
The server then sends the messages to the client, and they cost the node nothing. The state of the
stream contains secrets of the nodes, so the node asks for it and answers with three numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import msgspec

from rookery.bus.commands.request_endpoint import error_message
from rookery.bus.nats import ApiError, Connection, Message, Outgoing, Subscription, page_query
from rookery.bus.ports import Filter, TaskSet
from rookery.bus.reads.queries import QUEUE, is_inbox
from rookery.bus.storage.blobs import CHUNKS_MAX, is_digest
from rookery.bus.subjects import Subjects
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.reads import (
    AtQuery,
    ChunkQuery,
    JournalQuery,
    JournalState,
    LastQuery,
    PageQuery,
    StateQuery,
)

__all__ = ["ReadService", "check_chunk_number", "decode_query"]

log = logging.getLogger(__name__)

T = TypeVar("T")

_journal_query = msgspec.json.Decoder(JournalQuery).decode
_chunk_query = msgspec.json.Decoder(ChunkQuery).decode


class ReadService:
    """Created and used on the event loop of its connection."""

    def __init__(self, connection: Connection, subjects: Subjects) -> None:
        self._connection, self._subjects = connection, subjects
        self._subscriptions: list[Subscription] = []
        self._tasks = TaskSet()
        self._state_queries: list[tuple[StateQuery, str]] = []
        """Queries and their reply subjects, which the next state of the stream answers."""
        self._is_asking = False

    async def open(self) -> None:
        """Answer queries from now on."""
        subscribe, subjects = self._connection.subscribe, self._subjects
        chunks = [subjects.read_chunk(kind, "*", "*") for kind in ("blobs", "images")]
        for subject in (subjects.read_journal, *chunks):
            self._subscriptions.append(await subscribe(subject, self._on_queries, queue=QUEUE))

    async def close(self) -> None:
        """Leave further queries to other nodes."""
        while self._subscriptions:
            await self._subscriptions.pop().cancel()
        await self._tasks.cancel("the node stops")

    def _on_queries(self, messages: list[Message]) -> None:
        sent: list[Outgoing] = []
        for message in messages:
            if not is_inbox(message.reply):
                log.warning("read without an inbox dropped: %s", message.subject[:200])
                continue
            try:
                if (query := self._query_for(message)) is not None:
                    sent.append(query._replace(reply=message.reply))
            except Refused as refusal:
                sent.append(error_message(message.reply, refusal))
        self._connection.send(sent)

    def _query_for(self, message: Message) -> Outgoing | None:
        """The query to the server; ``None`` if the node answers later."""
        if message.subject != self._subjects.read_journal:
            return self._chunk_query(message)
        stream = self._subjects.journal_stream
        one = f"$JS.API.STREAM.MSG.GET.{stream}"
        match decode_query(_journal_query, message.body):
            case PageQuery() as page:
                where = Filter(page.family, page.key)
                subject = self._subjects.facts(where) if where != Filter() else ""
                body = page_query(subject, page.after, page.messages_max)
                return Outgoing(f"$JS.API.DIRECT.GET.{stream}", body)
            case LastQuery() as last:
                subject = self._subjects.facts(Filter(last.family, last.key))
                return Outgoing(one, encode_json({"last_by_subj": subject}))
            case AtQuery() as at:
                return Outgoing(one, encode_json({"seq": at.sequence}))
            case StateQuery() as state:
                self._state_queries.append((state, message.reply))
                if not self._is_asking:
                    self._is_asking = True
                    self._tasks.start(self._answer_state_queries())
        return None

    def _chunk_query(self, message: Message) -> Outgoing:
        *_, kind, digest, number = message.subject.split(".")
        if not is_digest(digest):
            raise Refused("INVALID_ARGUMENT", f"{digest[:80]!r} is no digest")
        check_chunk_number(number, CHUNKS_MAX)
        query = decode_query(_chunk_query, message.body or b"{}")
        bucket = self._subjects.images_bucket if kind == "images" else self._subjects.blobs_bucket
        stored = f"$KV.{bucket}.{digest}.{number}"
        if query.source == "leader":
            question = encode_json({"last_by_subj": stored})
            return Outgoing(f"$JS.API.STREAM.MSG.GET.KV_{bucket}", question)
        return Outgoing(f"$JS.API.DIRECT.GET.KV_{bucket}.{stored}", b"")

    async def _answer_state_queries(self) -> None:
        """Ask for the state once for all queries that have arrived, until no more arrive."""
        try:
            while self._state_queries:
                queries, self._state_queries = self._state_queries, []
                answers = await self._states(queries)
                self._connection.send(answers)
        finally:
            self._is_asking = False

    async def _states(self, queries: list[tuple[StateQuery, str]]) -> list[Outgoing]:
        request = f"STREAM.INFO.{self._subjects.journal_stream}"
        try:
            info = await self._connection.api(request, {"deleted_details": True})
        except (ApiError, Failed) as error:
            failure = Failed("SERVER_UNREACHABLE", f"the journal's stream does not answer: {error}")
            return [error_message(reply, failure) for _, reply in queries]
        state, copies = info["state"], info["config"].get("num_replicas") or 1
        deleted = state.get("deleted") or []
        answers = []
        for query, reply in queries:
            above = [number for number in deleted if number > query.after]
            removed = (above[0], above[-1]) if above else None
            found = JournalState(state["first_seq"], state["last_seq"], removed, copies)
            answers.append(Outgoing(reply, encode_json(found)))
        return answers


def decode_query(decode: Callable[[bytes], T], body: bytes) -> T:
    """The query in a body; ``Refused`` if it is malformed."""
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        raise Refused("INVALID_ARGUMENT", f"the query is invalid: {error}") from None
    except msgspec.DecodeError as error:
        raise Refused("INVALID_JSON", f"the query is not JSON: {error}") from None


def check_chunk_number(text: str, count_max: int) -> int:
    """The number of a chunk or piece, written without leading zeros."""
    is_plain = text.isascii() and text.isdecimal() and len(text) <= 6 and str(int(text)) == text
    if not is_plain or int(text) >= count_max:
        raise Refused("INVALID_ARGUMENT", f"{text[:80]!r} is no number below {count_max}")
    return int(text)
