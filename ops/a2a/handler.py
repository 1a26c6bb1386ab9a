"""The protocol's operations on one session, each a command or a read of the realm.

A task is a request to the session, sent in the name of the session ``a2a-CLIENT``. The handler has
no state of its own, so a request may go to any gateway at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing, suppress
from hashlib import sha256
from typing import Any, Final, TypeVar
from uuid import UUID, uuid5

from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.server.request_handlers.request_handler import RequestHandler, validate_request_params
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import (
    A2AError,
    InternalError,
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from a2a.utils.task import apply_history_length, validate_history_length

from rookery.bus.client import Client
from rookery.ops.a2a.cards import INTENT, SessionCards
from rookery.ops.a2a.messages import agent_message, message_fields, task_of, to_event
from rookery.ops.a2a.push import PushNotifications
from rookery.ops.a2a.task_book import TaskBook
from rookery.ops.a2a.task_facts import (
    CANCELLED,
    CLIENT_PREFIX,
    A2aState,
    Cursor,
    TaskChange,
    TaskRecord,
    read_cursor,
)
from rookery.ops.a2a.task_lists import list_tasks
from rookery.ops.gateways import RealmLink
from rookery.schemas.errors import CODES, CodedError, Failed, Refused
from rookery.schemas.peers.envelope import PeerFailure
from rookery.schemas.peers.exchanges import SendEnvelope

__all__ = ["SessionHandler"]

SKILL: Final = "skillId"
"""In the metadata of a message: the intent that it is for."""
TASK_S: Final = 365 * 86_400.0
"""How long a task may take: as long as a request may wait for its response."""
ARRIVAL_S: Final = 1.0
"""After so long without its task a message may have been refused."""
CANCEL_REASON: Final = "the A2A client cancelled its task"
_CONTEXTS: Final = UUID("6a1f6e2b-3d0f-4d6c-9c3a-3f6b3f0a2a10")
"""Names of contexts that are no UUID are threads in this name space."""
_INVALID: Final = ("INVALID_ARGUMENT", "PAYLOAD_TOO_LARGE")

T = TypeVar("T")


class SessionHandler(RequestHandler):
    """Serves one session to all clients."""

    def __init__(
        self, link: RealmLink, book: TaskBook, cards: SessionCards, push: PushNotifications
    ) -> None:
        self._link, self._book, self._cards, self._push = link, book, cards, push

    @property
    def session(self) -> str:
        return self._book.session

    # --- messages ---------------------------------------------------------------------------------

    @validate_request_params
    async def on_message_send(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> Task | Message:
        validate_history_length(params.configuration)
        record, sent = await _coded(self._send(params, context))
        if not params.configuration.return_immediately:
            await self._book.wait(lambda: _needs_client(record, sent), TASK_S)
        changes = await _coded(self._book.changes(record))
        if changes[-1].is_direct:
            return agent_message(record, changes[-1], of_task=False)
        return apply_history_length(task_of(record, changes), params.configuration)

    @validate_request_params
    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        validate_history_length(params.configuration)
        after = _last_event(context)
        record, sent = await _coded(self._send(params, context))
        if after is None:
            first = await _coded(self._book.changes(record))
            after = first[0].cursor if params.message.task_id == "" else sent
            begun = task_of(record, first, until=after)
            yield apply_history_length(begun, params.configuration)
        async for event in self._events(record, after):
            yield event

    @validate_request_params
    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        record = await self._require(params.id, context)
        after = _last_event(context)
        if after is None:
            if record.state.is_end:
                raise UnsupportedOperationError(
                    f"task {record.id} has ended; with Last-Event-ID its last events are repeated"
                )
            changes = await _coded(self._book.changes(record))
            after = changes[-1].cursor
            yield task_of(record, changes)
        async for event in self._events(record, after):
            yield event

    async def _events(self, record: TaskRecord, after: Cursor) -> AsyncGenerator[Event, None]:
        """What happens behind the cursor, until the task ends or waits for its client."""
        async with aclosing(self._book.follow(record, after)) as changes:
            async for change in changes:
                if change.state is A2aState.SUBMITTED or _is_silent(change):
                    continue
                yield to_event(record, change)
                if change.state is A2aState.INPUT_REQUIRED and change.cursor == record.last:
                    return

    async def _send(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> tuple[TaskRecord, Cursor]:
        """The task of a message, and where in it the message is. A repeated message is the same."""
        message, client = params.message, context.user.user_name
        if message.task_id:
            return await self._continue(message, context)
        await self._book.catch_up()
        record = self._book.find_message(client, message.message_id)
        if record is None:
            record = await self._begin(message, client)
        if params.configuration.HasField("task_push_notification_config"):
            wanted = params.configuration.task_push_notification_config
            await self._push.create(record, wanted, is_whole=True)
        return record, Cursor(record.first, 0)

    async def _begin(self, message: Message, client: str) -> TaskRecord:
        realm, session = await self._link.client(), f"{CLIENT_PREFIX}{client}"
        after = await realm.journal.end()
        try:
            task_id = await self._send_request(realm, session, message)
        except Refused as refusal:
            if refusal.code != "SESSION_NOT_FOUND":
                raise
            await realm.create(session)
            task_id = await self._send_request(realm, session, message)
        arriving = asyncio.ensure_future(
            self._book.wait(lambda: self._book.find(client, task_id) is not None)
        )
        refusing = asyncio.ensure_future(self._refusal(realm, session, task_id, after))
        try:
            await asyncio.wait({arriving, refusing}, return_when=asyncio.FIRST_COMPLETED)
            record = self._book.find(client, task_id)
            if record is None and refusing.done():
                refusing.result()
            await arriving
        finally:
            arriving.cancel()
            refusing.cancel()
        record = self._book.find(client, task_id)
        assert record is not None
        return record

    async def _send_request(self, realm: Client, session: str, message: Message) -> str:
        fields = message_fields(message)
        receipt = await realm.send_request(
            session,
            self.session,
            str(fields.get("metadata", {}).get(SKILL, INTENT)),
            {"message": fields},
            timeout_s=TASK_S,
            thread=_thread_of(message.context_id),
            message_id=_command_id(self.session, message),
        )
        return receipt.id

    async def _refusal(self, realm: Client, session: str, task_id: str, after: int) -> None:
        """Raise why the request has not arrived, if its session is not there: only the sender has
        that on record."""
        await asyncio.sleep(ARRIVAL_S)
        await realm.wait_for_response(session, task_id, after=after)

    async def _continue(
        self, message: Message, context: ServerCallContext
    ) -> tuple[TaskRecord, Cursor]:
        """A further message of a task, for the program that waits for it or will."""
        record = await self._require(message.task_id, context)
        if message.context_id and message.context_id != record.context_id:
            raise InvalidParamsError(
                f"context {message.context_id} is not that of task {record.id}"
            )
        if (known := _message_in(await self._book.changes(record), message)) is not None:
            return record, known
        if record.state.is_end:
            raise UnsupportedOperationError(f"task {record.id} has ended")
        realm = await self._link.client()
        body = SendEnvelope(
            to=self.session, body={"message": message_fields(message)}, in_reply_to=record.id
        )
        command_id = _command_id(self.session, message)
        await realm.ask("send", record.session, body, message_id=command_id)
        await self._book.wait(
            lambda: record.state.is_end or _message_in(record.changes or (), message) is not None
        )
        return record, _message_in(await self._book.changes(record), message) or record.last

    # --- tasks ------------------------------------------------------------------------------------

    @validate_request_params
    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task:
        validate_history_length(params)
        record = await self._require(params.id, context)
        task = task_of(record, await _coded(self._book.changes(record)))
        return apply_history_length(task, params)

    @validate_request_params
    async def on_list_tasks(
        self, params: ListTasksRequest, context: ServerCallContext
    ) -> ListTasksResponse:
        await _coded(self._book.catch_up())
        found = self._book.tasks_of(context.user.user_name)
        return await list_tasks(params, found, lambda one: _coded(self._book.changes(one)))

    @validate_request_params
    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task:
        """End the task by a response in the agent's name, and then the run that handles it."""
        record = await self._require(params.id, context)
        if not record.state.is_end:
            await _coded(self._cancel(record))
        if record.state is not A2aState.CANCELED:
            raise TaskNotCancelableError(f"task {record.id} is {record.state.value}")
        return task_of(record, await _coded(self._book.changes(record)))

    async def _cancel(self, record: TaskRecord) -> None:
        realm = await self._link.client()
        error = PeerFailure(code=CANCELLED, message=CANCEL_REASON)
        try:
            await realm.send_response(
                self.session, record.id, error=error, message_id=f"a2a-cancel-{record.id}"
            )
        except Refused as refusal:
            if refusal.code not in ("PEER_ALREADY_REPLIED", "PEER_REQUEST_NOT_FOUND"):
                raise
        await self._book.wait(lambda: record.state.is_end)
        if record.run_id:
            with suppress(CodedError):  # It has ended.
                await realm.cancel(self.session, record.run_id, reason=CANCEL_REASON, now=True)

    async def _require(self, task_id: str, context: ServerCallContext) -> TaskRecord:
        """A task of the client; those of others do not exist for it."""
        client = context.user.user_name
        await _coded(self._book.catch_up())
        record = self._book.find(client, task_id)
        if record is None:
            raise TaskNotFoundError(f"no task {task_id[:80]!r}")
        return record

    # --- push notifications, cards ----------------------------------------------------------------

    @validate_request_params
    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        record = await self._require(params.task_id, context)
        return await _coded(self._push.create(record, params))

    @validate_request_params
    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        record = await self._require(params.task_id, context)
        for found in self._push.list(record):
            if found.id == params.id:
                return found
        raise TaskNotFoundError(f"task {record.id} has no push notification config {params.id!r}")

    @validate_request_params
    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        record = await self._require(params.task_id, context)
        configs = self._push.list(record)
        return ListTaskPushNotificationConfigsResponse(configs=configs)

    @validate_request_params
    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        record = await self._require(params.task_id, context)
        await _coded(self._push.delete(record, params.id))

    async def on_get_extended_agent_card(
        self, _params: GetExtendedAgentCardRequest, _context: ServerCallContext
    ) -> AgentCard:
        return await _coded(self._cards.read(self.session))


def _needs_client(record: TaskRecord, sent: Cursor) -> bool:
    """Whether the task has ended, or waits, since the message."""
    return record.state.is_end or (record.state.is_interrupted and record.last > sent)


def _message_in(changes: Sequence[TaskChange], message: Message) -> Cursor | None:
    """Where a task has a message of its client."""
    for change in changes:
        if change.message is not None and change.message.get("messageId") == message.message_id:
            return change.cursor
    return None


def _is_silent(change: TaskChange) -> bool:
    """A message of the client is no event of its stream."""
    return change.state is None and not change.is_artifact


def _last_event(context: ServerCallContext) -> Cursor | None:
    headers: dict[str, str] = context.state.get("headers", {})
    text = headers.get("last-event-id", "")
    if not text:
        return None
    if (found := read_cursor(text)) is None:
        raise InvalidParamsError(f"Last-Event-ID {text[:80]!r} is none of this server")
    return found


def _thread_of(context_id: str) -> str | None:
    if not context_id:
        return None
    try:
        is_uuid = str(UUID(context_id)) == context_id
    except ValueError:
        is_uuid = False
    return context_id if is_uuid else str(uuid5(_CONTEXTS, context_id))


def _command_id(session: str, message: Message) -> str:
    """A repeated message is the same command."""
    digest = sha256(f"{session}\n{message.task_id}\n{message.message_id}".encode()).hexdigest()
    return f"a2a-{digest[:40]}"


async def _coded(work: Awaitable[T]) -> T:
    """Coded errors of the realm as errors of the protocol."""
    try:
        return await work
    except CodedError as error:
        raise protocol_error(error) from None


def protocol_error(error: CodedError) -> A2AError:
    """The error of the protocol that says what a coded error does."""
    data: dict[str, Any] = {"code": error.code, "retryable": CODES[error.code].retryable}
    text = f"{error.code}: {error.message}"
    if error.code in _INVALID:
        return InvalidParamsError(text, data=data)
    if isinstance(error, Failed):
        return InternalError(text, data=data)
    return UnsupportedOperationError(text, data=data)
