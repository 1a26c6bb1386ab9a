"""The door for programs: run, ask, and follow what happens, over NATS and nothing else.

Every request has an id and is repeated under it until it is answered, so a lost answer, a dying
node or a server that restarts never makes anything happen twice. It owns no rules and decodes
facts to plain dictionaries: what a fact means is the reader's business.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Unpack

import msgspec
from msgspec import UNSET, UnsetType

from rookery.bus.client.approvals import ApprovalsMixin
from rookery.bus.client.handle import Fields, Handle, no_reply
from rookery.bus.client.retrying_request import RetryingRequest, RetrySchedule
from rookery.bus.client.run_request import RunOptions, RunSpec, encode_body, encode_run
from rookery.bus.client.run_results import complete_result, read_past_result
from rookery.bus.clock import SystemClock, entropy
from rookery.bus.commands.headers import command_headers
from rookery.bus.commands.inbox import JetStreamInbox
from rookery.bus.journal.journal import JetStreamFeed, JetStreamJournal
from rookery.bus.nats import Connection, Outgoing, PendingReply
from rookery.bus.ports import Filter, StoredMessage
from rookery.bus.server.store import default_store, find_running
from rookery.bus.storage.blobs import JetStreamBlobs
from rookery.bus.storage.bucket import Bucket
from rookery.bus.subjects import Subjects
from rookery.bus.task_set import TaskSet
from rookery.schemas.calls import ToolFault
from rookery.schemas.commands import Cancel, ForkRun, ReplayQuery, ResolveCall, RestoreSession
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.ids import check_command_id, check_session_id, uuid7
from rookery.schemas.lists import RunState
from rookery.schemas.replies import CallReceipt, RunAnswer
from rookery.schemas.run import SNAPSHOT_BYTES_MAX, Language, SessionLimits

__all__ = ["Client", "Fields", "Handle", "connect", "new_id"]

REQUEST_SCHEDULE = RetrySchedule(1.0, 16.0)
SUBMIT_SCHEDULE = RetrySchedule(30.0, 300.0)
"""A submitted run is durable, only its answer may be lost."""
CLOSED: Final = "the client is closed"


def connect(url: str | None = None, *, realm: str = "default", token: str | None = None) -> Client:
    """A client to be opened: ``async with connect() as client``.

    Without ``url``: ``NATS_URL``, else the embedded server at work on ``ROOKERY_STORE`` or the
    default store; one that is just starting is waited for.
    """
    store = Path(os.environ.get("ROOKERY_STORE") or default_store())
    url = url or os.environ.get("NATS_URL") or find_running(store)
    if url is None:
        raise Failed(
            "SERVER_UNREACHABLE",
            f"no url, no NATS_URL, and no server is running on {store}",
            hint="start one: rookery up",
        )
    return Client(url, realm=realm, token=token or "")


class Client(ApprovalsMixin):
    """One connection to one realm, used on one event loop."""

    def __init__(
        self,
        url: str,
        *,
        realm: str = "default",
        token: str = "",
        credentials: str = "",
        absence_s_max: float = 30.0,
    ) -> None:
        """``absence_s_max``: how long a run waits for a node to be there at all."""
        self._subjects = Subjects(realm)
        self._connection = Connection(
            url, token=token, credentials=credentials, name="rookery-client"
        )
        self._inbox = JetStreamInbox(self._connection, self._subjects)
        self._feed = JetStreamFeed(self._connection, self._subjects)
        self._journal = JetStreamJournal(self._connection, self._subjects)
        self._blobs = JetStreamBlobs(Bucket(self._connection, self._subjects.blobs_bucket))
        self._run_schedule = REQUEST_SCHEDULE._replace(absence_s_max=absence_s_max)
        self._tasks = TaskSet()
        self._closed = False

    async def open(self) -> None:
        """Connect; ``Failed`` SERVER_UNREACHABLE or ``Refused`` UNAUTHORIZED."""
        await self._connection.open()

    async def close(self) -> None:
        """Disconnect for good. What was submitted goes on without us."""
        self._closed = True
        await self._tasks.cancel(CLOSED)
        await self._connection.close()

    @property
    def realm(self) -> str:
        return self._subjects.realm

    async def __aenter__(self) -> Client:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # --- runs -------------------------------------------------------------------------------------

    async def run(
        self,
        session: str,
        run: RunSpec,
        *,
        message_id: str | None = None,
        mode: str = "queue",
        timeout_s: float | None = None,
        **options: Unpack[RunOptions],
    ) -> RunAnswer:
        """Run code in a session and wait for what it comes to, also while nodes come and go.

        However the run ends, that is its answer; ``Refused`` if it was never accepted.
        """
        body = encode_run(session, run, **options)
        asking = self._run_request("run", session, body, message_id, mode)
        return await self.complete_result(
            await self._send_and_wait(asking, f"run {session}", timeout_s)
        )

    async def validate(
        self,
        session: str,
        run: RunSpec,
        *,
        timeout_s: float | None = 30.0,
        **options: Unpack[RunOptions],
    ) -> RunAnswer:
        """What would keep a run from beginning; nothing is executed and nothing is changed."""
        body = encode_run(session, run, **options)
        asking = self._run_request("validate", session, body, None)
        return await self.complete_result(
            await self._send_and_wait(asking, f"validate {session}", timeout_s)
        )

    async def submit(
        self,
        session: str,
        run: RunSpec,
        *,
        message_id: str | None = None,
        mode: str = "queue",
        **options: Unpack[RunOptions],
    ) -> Handle:
        """Hand a run over for good: it is stored when this returns, and needs no client then."""
        reply, message_id = self._expect_reply(), _message_id(message_id)
        submit = partial(
            self._inbox.submit,
            "run",
            check_session_id(session),
            encode_run(session, run, **options),
            message_id=message_id,
            mode=mode,
            reply_to=reply.subject,
        )
        asking = RetryingRequest(reply, submit, SUBMIT_SCHEDULE, self._is_connected)
        return await self._new_handle(session, message_id, asking)

    async def begin(
        self,
        session: str,
        run: RunSpec,
        *,
        message_id: str | None = None,
        mode: str = "queue",
        through_parks: bool = True,
        **options: Unpack[RunOptions],
    ) -> Handle:
        """``run``, to be followed meanwhile: it is ours to repeat until a node has accepted it.
        Not ``through_parks``, the result of a run that waits for somebody is what it waits for."""
        message_id, body = _message_id(message_id), encode_run(session, run, **options)
        asking = self._run_request(
            "run", session, body, message_id, mode, through_parks=through_parks
        )
        handle = await self._new_handle(session, message_id, asking)
        handle.reply_task()
        return handle

    async def result(self, session: str, run_id: str) -> RunAnswer:
        """What a past run came to, as it was answered then; no node is asked."""
        return await read_past_result(self._journal, self._blobs, check_session_id(session), run_id)

    async def cancel(
        self, session: str, run_id: str, *, reason: str = "", now: bool = False
    ) -> Fields:
        """Withdraw an input that has not started, or end a run: at its next boundary unless
        ``now`` is said. ``Handle.cancel`` and the command line end it now."""
        return await self.ask("cancel", session, Cancel(run_id=run_id, reason=reason, now=now))

    async def resolve(
        self,
        session: str,
        run_id: str,
        operation_id: str,
        *,
        completed: object = UNSET,
        failed: ToolFault | UnsetType = UNSET,
        retry: bool = False,
        now: bool = False,
        actor: str = "",
    ) -> CallReceipt:
        """Say what came of a call that nobody can know of, or to try it again. ``now``: also while
        the tool may still act, which else is refused (``CALL_MAY_STILL_ACT``)."""
        body = ResolveCall(
            run_id=run_id,
            operation_id=operation_id,
            completed=completed,
            failed=failed,
            retry=retry,
            now=now,
            actor=actor,
        )
        return msgspec.convert(await self.ask("resolve", session, body), CallReceipt)

    async def replay(self, session: str, run_id: str) -> Fields:
        """Run a past run again, without calling any tool, and compare; as long as it takes."""
        while True:
            report = await self.ask("replay", session, ReplayQuery(run_id=run_id))
            if report["state"] != "replaying":
                return report

    async def fork(self, session: str, run_id: str, at_sequence: int, into: str) -> Fields:
        """Begin session ``into`` where a run of ``session`` stood at a place of the journal."""
        body = ForkRun(run_id=run_id, session=session, at_sequence=at_sequence)
        return await self.ask("fork", into, body)

    # --- sessions ---------------------------------------------------------------------------------

    async def create(
        self,
        session: str,
        *,
        language: Language | str = Language.PYTHON,
        limits: SessionLimits | Mapping[str, int] | None = None,
    ) -> Fields:
        """Begin a session with limits of its own before its first run; asked for again, it is left
        as it is."""
        given = SessionLimits() if limits is None else limits
        return await self.ask("create", session, {"language": language, "limits": given})

    async def set_limits(self, session: str, **limits: int) -> Fields:
        """Give a session other limits, from its next run on; those not named stay."""
        return await self.ask("limits", session, limits)

    async def snapshot(self, session: str) -> Fields:
        """Keep a session as its last run has left it; none may be under way."""
        return await self.ask("snapshot", session)

    async def snapshot_bytes(self, snapshot_id: str) -> bytes:
        """A snapshot as the blob store has it, sealed with the realm's key."""
        return await self._blobs.get(snapshot_id.removeprefix("snap_"))

    async def restore(
        self, session: str, snapshot: str | bytes, *, replace: bool = False
    ) -> Fields:
        """Begin a session with a snapshot's memory: one of this realm, by its id or whole."""
        if isinstance(snapshot, bytes):
            snapshot = f"snap_{await self._blobs.put(snapshot, SNAPSHOT_BYTES_MAX)}"
        return await self.ask(
            "restore", session, RestoreSession(snapshot_id=snapshot, replace=replace)
        )

    async def destroy(self, session: str) -> Fields:
        """End a session's life; the next input begins another, with no memory of this one."""
        return await self.ask("destroy", session)

    # --- questions --------------------------------------------------------------------------------

    async def ask(
        self,
        verb: str,
        key: str,
        body: object = None,
        *,
        message_id: str | None = None,
        timeout_s: float | None = 30.0,
    ) -> Fields:
        """The durable answer, or what was answered instead raised as ``Refused`` or ``Failed``.

        Repeated under its id while nobody answers, until ``timeout_s`` is over.
        """
        data = b"" if body is None else encode_body(body)
        asking = RetryingRequest(
            *self._prepare_request(verb, key, data, message_id),
            REQUEST_SCHEDULE,
            self._is_connected,
        )
        return await self._send_and_wait(asking, f"{verb} {key}", timeout_s)

    async def sessions(self) -> Fields:
        """The sessions of the realm."""
        return await self.ask("sessions", "all")

    async def session(self, session: str) -> Fields:
        """What a session is just now."""
        return await self.ask("session", session)

    # --- facts ------------------------------------------------------------------------------------

    async def events(
        self,
        family: str | None = None,
        key: str | None = None,
        run: str | None = None,
        after: int = 0,
    ) -> AsyncGenerator[Fields, None]:
        """Facts above sequence ``after``, then live ones, each with its ``seq`` and ``subject``.

        Without loss, doubles or end; the last ``seq`` seen is the cursor to go on from.
        """
        self._check_open()
        async with aclosing(self._feed.follow(Filter(family, key, run), after)) as pages:
            async for page in pages:
                for stored in page:
                    for fact in _facts(stored, self._subjects):
                        if run is None or fact.get("run") == run:
                            yield fact

    # --- inside -----------------------------------------------------------------------------------

    async def complete_result(self, told: Mapping[str, Any]) -> RunAnswer:
        """The answer with all that it only names, which is too large to be sent in a message."""
        return await complete_result(self._blobs, told)

    def spawn(self, work: Coroutine[Any, Any, Fields]) -> asyncio.Task[Fields]:
        """Do ``work`` until it is done or the client is closed."""
        task = self._tasks.start(work)
        task.add_done_callback(_mark_error_seen)
        return task

    def _run_request(
        self,
        verb: str,
        session: str,
        body: bytes,
        message_id: str | None,
        mode: str = "",
        *,
        through_parks: bool = True,
    ) -> RetryingRequest:
        send = self._prepare_request(verb, check_session_id(session), body, message_id, mode)
        settles = _is_final_reply if through_parks else _is_any_reply
        return RetryingRequest(*send, self._run_schedule, self._is_connected, settles)

    def _prepare_request(
        self, verb: str, key: str, body: bytes, message_id: str | None, mode: str = ""
    ) -> tuple[PendingReply, Callable[[], Awaitable[None]]]:
        """A reply, and how to ask for it."""
        reply = self._expect_reply()
        question = Outgoing(
            self._subjects.request(verb, key),
            body,
            reply.subject,
            command_headers(_message_id(message_id), mode=mode),
        )

        async def send() -> None:
            self._connection.send([question])

        return reply, send

    def _expect_reply(self) -> PendingReply:
        self._check_open()
        return self._connection.replies.expect()

    def _check_open(self) -> None:
        if self._closed:
            raise client_closed()

    def _is_connected(self) -> bool:
        return self._connection.connected

    async def _send_and_wait(
        self, asking: RetryingRequest, asked: str, timeout_s: float | None
    ) -> Fields:
        try:
            async with asyncio.timeout(timeout_s):
                await asking.send()
                return await asking.result()
        except TimeoutError:
            if not self._connection.connected:
                raise Failed("SERVER_UNREACHABLE", "the connection to the server is lost") from None
            raise asking.last_error or no_reply(asked, timeout_s) from None

    async def _new_handle(self, session: str, message_id: str, asking: RetryingRequest) -> Handle:
        """A handle on what is sent with this; its facts stand above where the journal ends now."""
        after = await self._journal.end()
        await asking.send()
        return Handle(self, session, message_id, asking, after)


def _mark_error_seen(task: asyncio.Task[Fields]) -> None:
    """Keep asyncio from logging an error that the holder of the handle may never await."""
    if not task.cancelled():
        task.exception()


def client_closed() -> Refused:
    """Whoever has closed a client has no more use for it."""
    return Refused("INVALID_ARGUMENT", CLOSED, hint="open another one")


def new_id() -> str:
    """A message id nobody else has: one request has one, however often it is sent."""
    return uuid7(SystemClock().now_ms(), entropy(10))


def _is_any_reply(_: Fields) -> bool:
    return True


def _is_final_reply(told: Fields) -> bool:
    """A parked run says how it stands, and answers once more when it has ended."""
    status = told.get("status")
    return status is None or RunState(status).is_end


def _message_id(given: str | None) -> str:
    return new_id() if given is None else check_command_id(given)


def _facts(stored: StoredMessage, subjects: Subjects) -> list[Fields]:
    """A message's facts as they were written; a sealed body is one of its own."""
    body = msgspec.json.decode(stored.body)
    place = {"seq": stored.sequence, "subject": subjects.fact(stored.entity)}
    return [fact | place for fact in (body if isinstance(body, list) else [body])]
