"""The client for programs: run code, query, and follow facts over NATS.

Every request has an id and is repeated under it until its reply arrives, so a lost reply, a dying
node or a restarting server repeats no effect. Facts are decoded to plain dictionaries.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Unpack

import msgspec
from msgspec import UNSET, UnsetType

from rookery.bus.client.filtered_events import EventsMixin
from rookery.bus.client.handle import (
    Fields,
    Handle,
    OutputFeed,
    complete_result,
    no_reply,
    read_past_result,
)
from rookery.bus.client.peer_methods import PeersMixin
from rookery.bus.client.realm_methods import ApprovalsMixin, SessionsMixin
from rookery.bus.client.resource_methods import ResourcesMixin
from rookery.bus.client.retrying_request import RetryingRequest, RetrySchedule
from rookery.bus.client.run_request import RunOptions, RunSpec, encode_body, encode_large_run
from rookery.bus.client.server_lookup import find_server_and_access
from rookery.bus.clock import entropy, new_id
from rookery.bus.commands.command_messages import command_headers, publish
from rookery.bus.credentials import Credential, identity_header
from rookery.bus.event_loop import TaskSet
from rookery.bus.nats import Connection, Outgoing
from rookery.bus.nats.reply_inbox import PendingReply
from rookery.bus.ports import Filter, JournalReads, StoredMessage
from rookery.bus.ports.journal import Feed
from rookery.bus.reads import NodeBlobs, NodeFeed, NodeJournal
from rookery.bus.server_access import NO_ACCESS, ServerAccess
from rookery.bus.subjects import Subjects
from rookery.schemas.calls import ToolFault
from rookery.schemas.commands import Cancel, ForkRun, ReplayQuery, ResolveCall
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.ids import check_command_id, check_session_id, parse_position
from rookery.schemas.protection.rights import Rights
from rookery.schemas.replies import CallReceipt, RunAnswer, RunState

__all__ = ["Client", "Fields", "Handle", "connect"]

REQUEST_SCHEDULE = RetrySchedule(1.0, 16.0)
SUBMIT_SCHEDULE = RetrySchedule(30.0, 300.0)
"""A submitted run is durable; only its reply may be lost."""
CLOSED: Final = "the client is closed"
HEADERS_BYTES: Final = 8 << 10


def connect(
    url: str | None = None,
    *,
    realm: str = "default",
    token: str | None = None,
    access: ServerAccess | None = None,
    credential: str | Path | None = None,
    input_source: str = "",
) -> Client:
    """A client to be opened: ``async with connect() as client``.

    Without ``url``: ``NATS_URL``, else the embedded server on ``ROOKERY_STORE`` or the default
    store, with its credential ``client`` unless ``credential`` names the file of another one.
    ``access`` names files of keys and certificates, else the variables of the ``nats`` command line
    do. The call waits for a server that is starting. ``input_source``: how the caller
    gets what it sends, such as ``webhook``; its runs are listed with it.
    """
    own = Credential.read(Path(credential)) if credential else None
    url, access, own = find_server_and_access(url, token, access, own, realm)
    return Client(url, access, realm=realm, credential=own, input_source=input_source)


class Client(ApprovalsMixin, PeersMixin, SessionsMixin, ResourcesMixin, EventsMixin):
    """One connection to one realm, used on one event loop."""

    ABSENCE_S_MAX: Final = 30.0
    """How long a run waits for any node to appear, unless the client says otherwise."""

    def __init__(
        self,
        url: str,
        access: ServerAccess = NO_ACCESS,
        *,
        realm: str = "default",
        credential: Credential | None = None,
        absence_s_max: float = ABSENCE_S_MAX,
        input_source: str = "",
    ) -> None:
        """``credential``: signs the name of the client in its commands. ``absence_s_max``: how long
        a run waits for any node to appear. ``input_source``: as for ``connect``."""
        self._subjects = Subjects(realm)
        self._connection = Connection(url, access, name="rookery-client")
        self._feed = NodeFeed(self._connection, self._subjects)
        self._journal = NodeJournal(self._connection, self._subjects)
        self._blobs = NodeBlobs(self._connection, self._subjects)
        self._images = NodeBlobs(self._connection, self._subjects, "images")
        self._identity = identity_header(credential, entropy(16)) if credential else ""
        """Proves the client's name in every command."""
        self._run_schedule = REQUEST_SCHEDULE._replace(absence_s_max=absence_s_max)
        self.on_progress: Callable[[str], None] = lambda _: None
        """Gets what a node says while it works on an answer; meanwhile time-outs begin anew."""
        self.input_source = input_source
        """How it got what it sends, as an ``InputSource``."""
        self._tasks = TaskSet()
        self._closed = False

    async def open(self) -> None:
        """Connect; ``Failed`` SERVER_UNREACHABLE or ``Refused`` UNAUTHORIZED."""
        await self._connection.open()

    async def close(self) -> None:
        """Disconnect for good. Submitted runs continue."""
        self._closed = True
        await self._tasks.cancel(CLOSED)
        await self._connection.close()

    @property
    def realm(self) -> str:
        return self._subjects.realm

    @property
    def connected(self) -> bool:
        """Whether the connection is up; a client reconnects by itself."""
        return self._connection.connected

    @property
    def journal(self) -> JournalReads:
        """The realm's journal, read through its nodes."""
        return self._journal

    @property
    def feed(self) -> Feed:
        """The realm's journal, followed live."""
        return self._feed

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
        run: RunSpec = "",
        *,
        message_id: str | None = None,
        mode: str = "queue",
        timeout_s: float | None = None,
        **options: Unpack[RunOptions],
    ) -> RunAnswer:
        """Run code in a session, or a ``prompt``, and wait for the result, also across restarts of
        nodes.

        Every end of the run is a result; ``Refused`` if the run was not accepted.
        """
        body = await self._encode_run(session, run, **options)
        request = self._run_request("run", session, body, message_id, mode)
        return await self.complete_result(
            await self._send_and_wait(request, f"run {session}", timeout_s)
        )

    async def validate(
        self,
        session: str,
        run: RunSpec = "",
        *,
        timeout_s: float | None = 30.0,
        **options: Unpack[RunOptions],
    ) -> RunAnswer:
        """Check a run's request; the node executes and changes nothing."""
        body = await self._encode_run(session, run, **options)
        request = self._run_request("validate", session, body, None)
        return await self.complete_result(
            await self._send_and_wait(request, f"validate {session}", timeout_s)
        )

    async def submit(
        self,
        session: str,
        run: RunSpec = "",
        *,
        message_id: str | None = None,
        mode: str = "queue",
        output: bool = False,
        **options: Unpack[RunOptions],
    ) -> Handle:
        """Submit a durable run; it continues without this client. ``output`` as for ``begin``."""
        feed = await self.follow_output(session) if output else None
        reply, message_id = self._expect_reply(), _message_id(message_id)
        headers = command_headers(
            message_id,
            mode=mode,
            input_source=self.input_source,
            reply_to=reply.subject,
            identity=self._identity,
        )
        subject = self._subjects.command("run", check_session_id(session))
        body = await self._encode_run(session, run, **options)
        command = Outgoing(subject, body, headers=headers)
        submit = partial(publish, self._connection, command)
        request = RetryingRequest(reply, submit, SUBMIT_SCHEDULE, self._is_connected)
        return await self._new_handle(session, message_id, request, feed)

    async def begin(
        self,
        session: str,
        run: RunSpec = "",
        *,
        message_id: str | None = None,
        mode: str = "queue",
        through_parks: bool = True,
        output: bool = False,
        **options: Unpack[RunOptions],
    ) -> Handle:
        """Start ``run`` and return a handle. The client repeats the request until a node accepts
        it. Unless ``through_parks``, the result of a parked run is the interim one. ``output``: the
        handle's ``output`` has all that the run prints; otherwise from when it is called."""
        feed = await self.follow_output(session) if output else None
        message_id = _message_id(message_id)
        body = await self._encode_run(session, run, **options)
        request = self._run_request(
            "run", session, body, message_id, mode, through_parks=through_parks
        )
        handle = await self._new_handle(session, message_id, request, feed)
        handle.reply_task()
        return handle

    async def result(self, session: str, run_id: str) -> RunAnswer:
        """Read a past run's result from the journal, through any node."""
        return await read_past_result(self._journal, self._blobs, check_session_id(session), run_id)

    async def cancel(
        self, session: str, run_id: str, *, reason: str = "", now: bool = False
    ) -> Fields:
        """Withdraw an input that has not started, or end a run: at its next boundary, or at once if
        ``now``. ``Handle.cancel`` and the command line end it at once."""
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
        """Resolve a call whose outcome is unknown, or make another attempt. ``now``: also while the
        tool may still act, which is otherwise refused (``CALL_MAY_STILL_ACT``)."""
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
        """Execute a past run again without calling tools, and compare; wait until it is done."""
        while True:
            report = await self.ask("replay", session, ReplayQuery(run_id=run_id))
            if report["state"] != "replaying":
                return report

    async def fork(
        self,
        session: str,
        run_id: str,
        at: int | str,
        into: str,
        *,
        rights: Rights | UnsetType = UNSET,
    ) -> Fields:
        """Begin session ``into`` with the state of a run of ``session`` at a point of the journal:
        after the message with the sequence ``at``, or after the fact at position ``"SEQ.N"``."""
        sequence, fact = parse_position(str(at))
        body = ForkRun(
            run_id=run_id, session=session, at_sequence=sequence, at_fact=fact, rights=rights
        )
        return await self.ask("fork", into, body)

    # --- queries ----------------------------------------------------------------------------------

    async def ask(
        self,
        verb: str,
        key: str,
        body: object = None,
        *,
        message_id: str | None = None,
        timeout_s: float | None = 30.0,
    ) -> Fields:
        """Send a request and return its durable reply; an error in it is raised.

        The client repeats the request under its id until ``timeout_s``.
        """
        request = self._request(verb, key, body, message_id)
        return await self._send_and_wait(request, f"{verb} {key}", timeout_s)

    async def ask_with_count(
        self, verb: str, key: str, body: object = None, *, timeout_s: float | None = 30.0
    ) -> tuple[Fields, int]:
        """Read a view of an entity; also how many facts of the entity's journal it contains."""
        request = self._request(verb, key, body, None)
        view = await self._send_and_wait(request, f"{verb} {key}", timeout_s)
        if request.fact_count is None:
            raise Failed(
                "UNSUPPORTED_FEATURE",
                f"the node that answered {verb} does not say which facts its view contains",
                hint="upgrade the node",
            )
        return view, request.fact_count

    async def sessions(self) -> Fields:
        """List the sessions of the realm."""
        return await self.ask("sessions", "all")

    async def session(self, session: str) -> Fields:
        """Read a session's state."""
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

        Without loss or duplicates; the last ``seq`` is the cursor from which to continue.
        """
        self._check_open()
        async with aclosing(self._feed.follow(Filter(family, key, run), after)) as pages:
            async for page in pages:
                for stored in page:
                    for fact in _facts(stored, self._subjects):
                        if _is_selected(fact, family, run):
                            yield fact

    # --- inside -----------------------------------------------------------------------------------

    @property
    def blobs(self) -> NodeBlobs:
        """Results, files and other values, read and stored through a node."""
        return self._blobs

    @property
    def images(self) -> NodeBlobs:
        """Memory images of sessions, read and stored through a node."""
        return self._images

    async def follow_output(self, session: str) -> OutputFeed:
        """The output of the session's runs from now on."""
        self._check_open()
        return await OutputFeed.open(self._connection, self._subjects, check_session_id(session))

    async def complete_result(self, reply: Mapping[str, Any]) -> RunAnswer:
        """The result with the parts that were too large for the reply."""
        return await complete_result(self._blobs, reply)

    def spawn(self, work: Coroutine[Any, Any, Fields]) -> asyncio.Task[Fields]:
        """Do ``work`` until it is done or the client is closed."""
        task = self._tasks.start(work)
        task.add_done_callback(_mark_error_seen)
        return task

    async def _encode_run(self, session: str, run: RunSpec, **options: Unpack[RunOptions]) -> bytes:
        """The body of a run; what does not fit into it is stored before."""
        self._check_open()
        bytes_max = self._connection.client.max_payload - HEADERS_BYTES
        return await encode_large_run(self._blobs.put, bytes_max, session, run, **options)

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

    def _request(
        self, verb: str, key: str, body: object, message_id: str | None
    ) -> RetryingRequest:
        data = b"" if body is None else encode_body(body)
        return RetryingRequest(
            *self._prepare_request(verb, key, data, message_id),
            REQUEST_SCHEDULE,
            self._is_connected,
        )

    def _prepare_request(
        self, verb: str, key: str, body: bytes, message_id: str | None, mode: str = ""
    ) -> tuple[PendingReply, Callable[[], Awaitable[None]]]:
        """A pending reply, and the function that sends its request."""
        reply = self._expect_reply()
        message = Outgoing(
            self._subjects.request(verb, key),
            body,
            reply.subject,
            command_headers(
                _message_id(message_id),
                mode=mode,
                input_source=self.input_source,
                identity=self._identity,
            ),
        )

        async def send() -> None:
            self._connection.send([message])

        return reply, send

    def _expect_reply(self) -> PendingReply:
        self._check_open()
        return self._connection.replies.expect()

    def _check_open(self) -> None:
        if self._closed:
            raise client_closed()

    def _is_connected(self) -> bool:
        return self.connected

    async def _send_and_wait(
        self, request: RetryingRequest, name: str, timeout_s: float | None
    ) -> Fields:
        try:
            return await request.exchange(timeout_s, self.on_progress)
        except TimeoutError:
            if not self._connection.connected:
                raise Failed("SERVER_UNREACHABLE", "the connection to the server is lost") from None
            raise request.last_error or no_reply(name, timeout_s) from None

    async def _new_handle(
        self,
        session: str,
        message_id: str,
        request: RetryingRequest,
        output: OutputFeed | None,
    ) -> Handle:
        """A handle on this request. Its facts are above the present end of the journal; without a
        node to ask for it, the handle reads the session's facts from the first."""
        after = 0
        with suppress(Failed):
            after = await self._journal.end(patience_s=0.0)
        await request.send()
        return Handle(self, session, message_id, request, after, output=output)


def _mark_error_seen(task: asyncio.Task[Fields]) -> None:
    """Keep asyncio from logging an error that the holder of the handle may never await."""
    if not task.cancelled():
        task.exception()


def client_closed() -> Refused:
    """The error for calls on a closed client."""
    return Refused("INVALID_ARGUMENT", CLOSED, hint="open another one")


def _is_any_reply(_: Fields) -> bool:
    return True


def _is_final_reply(reply: Fields) -> bool:
    """Whether the reply is final: a parked run gets an interim reply first."""
    status = reply.get("status")
    return status is None or RunState(status).is_end


def _message_id(wanted: str | None) -> str:
    return new_id() if wanted is None else check_command_id(wanted)


def _is_selected(fact: Fields, family: str | None, run: str | None) -> bool:
    """A message may hold facts of other families and runs too; a sealed one shows neither."""
    kind = str(fact.get("type", ""))
    of_family = family is None or not kind or kind.startswith(f"{family}.")
    return of_family and (run is None or fact.get("run") == run)


def _facts(stored: StoredMessage, subjects: Subjects) -> list[Fields]:
    """A message's facts as written; a sealed body counts as one fact."""
    body = msgspec.json.decode(stored.body)
    sequence, subject = stored.sequence, subjects.fact(stored.entity)
    facts = body if isinstance(body, list) else [body]
    return [
        fact | {"seq": sequence, "position": f"{sequence}.{number}", "subject": subject}
        for number, fact in enumerate(facts, 1)
    ]
