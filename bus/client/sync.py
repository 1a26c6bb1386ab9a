"""The blocking client, for programs without an event loop.

The loop runs on a thread of its own, so any thread may call, also several at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar, Unpack

from msgspec import UNSET, UnsetType

from rookery.bus.client.client import Client, Fields, Handle, client_closed, connect
from rookery.bus.client.filtered_events import SelectedEvent
from rookery.bus.client.handle import AnswerText, PrintedText
from rookery.bus.client.run_request import RunOptions, RunSpec
from rookery.bus.event_loop import LoopThread
from rookery.bus.server_access import ServerAccess
from rookery.schemas.agents import ConversationView
from rookery.schemas.approvals.lists import ListedApproval, ListedGrant
from rookery.schemas.approvals.records import DecideApproval, DecisionReceipt
from rookery.schemas.calls import ToolFault
from rookery.schemas.commands import RevokeGrant
from rookery.schemas.envelope import FactClasses
from rookery.schemas.events import EventCursor, EventFilter
from rookery.schemas.machines.peer import PeerResponseProgressProjectionPhase
from rookery.schemas.peers.envelope import PeerFailure
from rookery.schemas.peers.exchanges import EnvelopeReceipt, ExchangeList, StreamView
from rookery.schemas.peers.items import Responder, ResponderView
from rookery.schemas.protection.rights import Rights
from rookery.schemas.replies import (
    CallReceipt,
    FileEntry,
    GrantReceipt,
    RunAnswer,
    UndoReceipt,
)
from rookery.schemas.resources import CAPTURE_BYTES, ResourceGrant, ResourceList, ResourcePiece
from rookery.schemas.run import Language, SessionLimits
from rookery.schemas.seed.content import ContentRef

__all__ = ["SyncClient", "SyncHandle", "connect_sync"]

T = TypeVar("T")


def connect_sync(
    url: str | None = None,
    *,
    realm: str = "default",
    token: str | None = None,
    access: ServerAccess | None = None,
    credential: str | Path | None = None,
    input_source: str = "",
) -> SyncClient:
    """A connected client, for ``with connect_sync() as client``; arguments as for ``connect``."""
    return SyncClient(
        connect(
            url,
            realm=realm,
            token=token,
            access=access,
            credential=credential,
            input_source=input_source,
        )
    )


class SyncClient:
    """``Client`` with blocking methods."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._thread = _ClientThread("rookery-client")
        try:
            self._thread.run(client.open())
        except BaseException:
            self._thread.close()
            raise

    def close(self) -> None:
        """Disconnect for good. Submitted runs continue."""
        if not self._thread.loop.is_closed():
            self._thread.run(self._client.close())
            self._thread.close()

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(
        self,
        session: str,
        run: RunSpec = "",
        *,
        message_id: str | None = None,
        mode: str = "queue",
        timeout_s: float | None = None,
        **options: Unpack[RunOptions],
    ) -> RunAnswer:
        work = self._client.run(
            session, run, message_id=message_id, mode=mode, timeout_s=timeout_s, **options
        )
        return self._thread.run(work)

    def validate(
        self,
        session: str,
        run: RunSpec = "",
        *,
        timeout_s: float | None = 30.0,
        **options: Unpack[RunOptions],
    ) -> RunAnswer:
        work = self._client.validate(session, run, timeout_s=timeout_s, **options)
        return self._thread.run(work)

    def submit(
        self,
        session: str,
        run: RunSpec = "",
        *,
        message_id: str | None = None,
        mode: str = "queue",
        output: bool = False,
        **options: Unpack[RunOptions],
    ) -> SyncHandle:
        work = self._client.submit(
            session, run, message_id=message_id, mode=mode, output=output, **options
        )
        return SyncHandle(self._thread, self._thread.run(work))

    def begin(
        self,
        session: str,
        run: RunSpec = "",
        *,
        message_id: str | None = None,
        mode: str = "queue",
        through_parks: bool = True,
        output: bool = False,
        **options: Unpack[RunOptions],
    ) -> SyncHandle:
        work = self._client.begin(
            session,
            run,
            message_id=message_id,
            mode=mode,
            through_parks=through_parks,
            output=output,
            **options,
        )
        return SyncHandle(self._thread, self._thread.run(work))

    def result(self, session: str, run_id: str) -> RunAnswer:
        return self._thread.run(self._client.result(session, run_id))

    def cancel(self, session: str, run_id: str, *, reason: str = "", now: bool = False) -> Fields:
        return self._thread.run(self._client.cancel(session, run_id, reason=reason, now=now))

    def resolve(
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
        work = self._client.resolve(
            session,
            run_id,
            operation_id,
            completed=completed,
            failed=failed,
            retry=retry,
            now=now,
            actor=actor,
        )
        return self._thread.run(work)

    def replay(self, session: str, run_id: str) -> Fields:
        return self._thread.run(self._client.replay(session, run_id))

    def fork(
        self,
        session: str,
        run_id: str,
        at: int | str,
        into: str,
        *,
        rights: Rights | UnsetType = UNSET,
    ) -> Fields:
        return self._thread.run(self._client.fork(session, run_id, at, into, rights=rights))

    def create(
        self,
        session: str,
        *,
        language: Language | str = Language.PYTHON,
        limits: SessionLimits | Mapping[str, int] | None = None,
        rights: Rights | Mapping[str, Any] | None = None,
        classes: FactClasses | Mapping[str, Any] | None = None,
    ) -> Fields:
        work = self._client.create(
            session, language=language, limits=limits, rights=rights, classes=classes
        )
        return self._thread.run(work)

    def append(self, session: str, text: str, *, role: str = "user") -> Fields:
        return self._thread.run(self._client.append(session, text, role=role))

    def set_context(self, session: str, key: str, text: str) -> Fields:
        return self._thread.run(self._client.set_context(session, key, text))

    def conversation(self, session: str) -> ConversationView:
        return self._thread.run(self._client.conversation(session))

    def undo(self, session: str, runs: int = 1, *, force: bool = False) -> UndoReceipt:
        return self._thread.run(self._client.undo(session, runs, force=force))

    def narrow_rights(self, session: str, rights: Rights | Mapping[str, Any]) -> Fields:
        return self._thread.run(self._client.narrow_rights(session, rights))

    def revoke_rights(
        self, session: str, rights: Rights | Mapping[str, Any], *, reason: str = "", actor: str = ""
    ) -> Fields:
        work = self._client.revoke_rights(session, rights, reason=reason, actor=actor)
        return self._thread.run(work)

    def set_limits(self, session: str, **limits: int) -> Fields:
        return self._thread.run(self._client.set_limits(session, **limits))

    def snapshot(self, session: str) -> Fields:
        return self._thread.run(self._client.snapshot(session))

    def snapshot_bytes(self, snapshot_id: str) -> bytes:
        return self._thread.run(self._client.snapshot_bytes(snapshot_id))

    def restore(self, session: str, snapshot: str | bytes, *, replace: bool = False) -> Fields:
        return self._thread.run(self._client.restore(session, snapshot, replace=replace))

    def destroy(self, session: str) -> Fields:
        return self._thread.run(self._client.destroy(session))

    def put_file(
        self,
        session: str,
        path: str,
        data: bytes | str,
        *,
        language: Language | str | None = None,
    ) -> RunAnswer:
        return self._thread.run(self._client.put_file(session, path, data, language=language))

    def remove_file(self, session: str, path: str) -> RunAnswer:
        return self._thread.run(self._client.remove_file(session, path))

    def get_file(self, session: str, path: str) -> bytes:
        return self._thread.run(self._client.get_file(session, path))

    def list_files(self, session: str, path: str = "/work") -> Sequence[FileEntry]:
        return self._thread.run(self._client.list_files(session, path))

    def artifact(self, ref: ContentRef) -> bytes:
        return self._thread.run(self._client.artifact(ref))

    def resources(self) -> ResourceList:
        return self._thread.run(self._client.resources())

    def resolve_resource(
        self, session: str, uri: str, *, max_bytes: int = CAPTURE_BYTES
    ) -> ResourceGrant:
        return self._thread.run(self._client.resolve_resource(session, uri, max_bytes=max_bytes))

    def read_resource(
        self,
        session: str,
        uri: str | ResourceGrant,
        *,
        max_bytes: int = CAPTURE_BYTES,
        offset: int = 0,
    ) -> ResourcePiece:
        work = self._client.read_resource(session, uri, max_bytes=max_bytes, offset=offset)
        return self._thread.run(work)

    def approvals(
        self, session: str | None = None, *, ended: bool = False
    ) -> Sequence[ListedApproval]:
        return self._thread.run(self._client.approvals(session, ended=ended))

    def approval(self, approval_id: str) -> ListedApproval:
        return self._thread.run(self._client.approval(approval_id))

    def decide(
        self,
        approval: ListedApproval,
        decision: Literal["approved", "approved_for_session", "denied"],
        *,
        actor: str,
        reason: str = "",
        sign: Callable[[str, DecideApproval], DecideApproval] | None = None,
    ) -> DecisionReceipt:
        work = self._client.decide(approval, decision, actor=actor, reason=reason, sign=sign)
        return self._thread.run(work)

    def grants(self, session: str | None = None, *, ended: bool = False) -> Sequence[ListedGrant]:
        return self._thread.run(self._client.grants(session, ended=ended))

    def revoke_grant(
        self,
        grant: ListedGrant,
        *,
        actor: str = "",
        sign: Callable[[str, RevokeGrant], RevokeGrant] | None = None,
    ) -> GrantReceipt:
        return self._thread.run(self._client.revoke_grant(grant, actor=actor, sign=sign))

    def ask(
        self,
        verb: str,
        key: str,
        body: object = None,
        *,
        message_id: str | None = None,
        timeout_s: float | None = 30.0,
    ) -> Fields:
        work = self._client.ask(verb, key, body, message_id=message_id, timeout_s=timeout_s)
        return self._thread.run(work)

    def sessions(self) -> Fields:
        return self._thread.run(self._client.sessions())

    def session(self, session: str) -> Fields:
        return self._thread.run(self._client.session(session))

    def send_message(
        self,
        session: str,
        to: str,
        body: object,
        *,
        thread: str | None = None,
        in_reply_to: str | None = None,
        message_id: str | None = None,
    ) -> EnvelopeReceipt:
        options = {"thread": thread, "in_reply_to": in_reply_to, "message_id": message_id}
        return self._thread.run(self._client.send_message(session, to, body, **options))

    def send_request(
        self,
        session: str,
        to: str,
        intent: str,
        params: object = UNSET,
        *,
        timeout_s: float = 86_400.0,
        thread: str | None = None,
        stream: bool = False,
        message_id: str | None = None,
    ) -> EnvelopeReceipt:
        work = self._client.send_request(
            session,
            to,
            intent,
            params,
            timeout_s=timeout_s,
            thread=thread,
            stream=stream,
            message_id=message_id,
        )
        return self._thread.run(work)

    def send_response(
        self,
        session: str,
        request_id: str,
        *,
        result: object = UNSET,
        error: PeerFailure | None = None,
        phase: PeerResponseProgressProjectionPhase | None = None,
        message_id: str | None = None,
    ) -> EnvelopeReceipt:
        work = self._client.send_response(
            session, request_id, result=result, error=error, phase=phase, message_id=message_id
        )
        return self._thread.run(work)

    def ask_peer(
        self,
        session: str,
        to: str,
        intent: str,
        params: object = UNSET,
        *,
        timeout_s: float = 86_400.0,
    ) -> Any:
        work = self._client.ask_peer(session, to, intent, params, timeout_s=timeout_s)
        return self._thread.run(work)

    def wait_for_response(self, session: str, request_id: str, *, after: int = 0) -> Any:
        return self._thread.run(self._client.wait_for_response(session, request_id, after=after))

    def serve_peers(
        self, session: str, responder: Responder, *, message_id: str | None = None
    ) -> ResponderView:
        work = self._client.serve_peers(session, responder, message_id=message_id)
        return self._thread.run(work)

    def publish_event(
        self, session: str, source: str, body: object = None, *, message_id: str | None = None
    ) -> EnvelopeReceipt:
        work = self._client.publish_event(session, source, body, message_id=message_id)
        return self._thread.run(work)

    def stop_serving(self, session: str, *, now: bool = False) -> ResponderView:
        return self._thread.run(self._client.stop_serving(session, now=now))

    def attach_reader(
        self, session: str, request_id: str, reader: str, *, leave: bool = False
    ) -> StreamView:
        work = self._client.attach_reader(session, request_id, reader, leave=leave)
        return self._thread.run(work)

    def follow_exchange(
        self, session: str, request_id: str, *, reader: str = "", after: int = 0
    ) -> Generator[Fields, None, None]:
        found = self._client.follow_exchange(session, request_id, reader=reader, after=after)
        return _iterate(self._thread, found)

    def exchanges(self, session: str) -> ExchangeList:
        return self._thread.run(self._client.exchanges(session))

    def events(
        self,
        family: str | None = None,
        key: str | None = None,
        run: str | None = None,
        after: int = 0,
    ) -> Generator[Fields, None, None]:
        return _iterate(self._thread, self._client.events(family, key, run, after))

    def filtered_events(
        self, where: EventFilter, cursor: EventCursor | None = None, *, after: int = 0
    ) -> Generator[SelectedEvent, None, None]:
        return _iterate(self._thread, self._client.filtered_events(where, cursor, after=after))


class _ClientThread(LoopThread):
    """The thread of one client; it ends with the client."""

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        if self.loop.is_closed():
            work.close()
            raise client_closed()
        return super().run(work, timeout_s)


class SyncHandle:
    """``Handle`` with blocking methods."""

    def __init__(self, thread: LoopThread, handle: Handle) -> None:
        self._thread, self._handle = thread, handle
        self.session, self.message_id = handle.session, handle.message_id

    @property
    def run_id(self) -> str:
        """Empty at first; ``accepted`` waits for it."""
        return self._handle.run_id

    def result(self, timeout_s: float | None = None) -> RunAnswer:
        return self._thread.run(self._handle.result(timeout_s))

    def reply(self, timeout_s: float | None = None) -> Fields:
        return self._thread.run(self._handle.reply(timeout_s))

    def accepted(self, timeout_s: float | None = None) -> str:
        return self._thread.run(self._handle.accepted(timeout_s))

    def cancel(self, *, now: bool = True, reason: str = "") -> Fields:
        return self._thread.run(self._handle.cancel(now=now, reason=reason))

    def events(self) -> Generator[Fields, None, None]:
        return _iterate(self._thread, self._handle.events())

    def output(self) -> Generator[PrintedText, None, None]:
        return _iterate(self._thread, self._handle.output())

    def answers(self) -> Generator[AnswerText, None, None]:
        return _iterate(self._thread, self._handle.answers())


def _iterate(thread: LoopThread, source: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    """Each item of ``source``; an interrupted wait is cancelled before the source is closed."""
    step: asyncio.Task[Any] | None = None

    async def advance() -> T | None:
        nonlocal step
        step = asyncio.current_task()
        return await anext(source, None)

    async def close() -> None:
        if step is not None and not step.done():
            step.cancel()
            await asyncio.gather(step, return_exceptions=True)
        await source.aclose()

    try:
        while (item := thread.run(advance())) is not None:
            yield item
    finally:
        if not thread.loop.is_closed():
            thread.run(close())
