"""The query ``files``: lists the files of a session, or reads one.

The session is rebuilt as its last ended run left it, so the query leaves no fact, changes nothing,
and is answered while a run is in progress.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from rookery.actors.execution.history import PastRun, SessionHistory, SnapshotFact
from rookery.actors.execution.rebuilt_session import SessionRebuilder
from rookery.actors.execution.step_inputs import FactPosition
from rookery.actors.kernel.executors import AskActor
from rookery.actors.kernel.machines import DESTROYED
from rookery.actors.sandbox import FilesStep, Sandbox, StepEnded
from rookery.bus.ports import IN_FACT_BYTES_MAX, Blobs, Delivery
from rookery.schemas.calls import RunEnvironment
from rookery.schemas.codec import decode_command
from rookery.schemas.commands import FilesQuery, SessionQuery
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.ids import check_client_session
from rookery.schemas.replies import FileEntry, FilesView, SessionView
from rookery.schemas.run import RunRequest, SessionLimits

__all__ = ["SessionFiles"]

PIECE_BYTES = 1 << 20


class _Piece(msgspec.Struct):
    data: bytes
    size: int


class _Listing(msgspec.Struct):
    entries: list[tuple[str, int, bool]]
    cut: bool


class SessionFiles:
    """One per node; lives on the bus's loop."""

    def __init__(self, rebuilder: SessionRebuilder, blobs: Blobs, ask: AskActor) -> None:
        self._rebuilder, self._blobs, self._ask = rebuilder, blobs, ask

    async def reply(self, delivery: Delivery) -> FilesView:
        """The query ``files``."""
        session = check_client_session(delivery.key)
        query = decode_command(delivery.body, FilesQuery, content_type=delivery.content_type)
        history = await self._history(session)
        ended = [run for run in history.runs if run.ended_at_sequence]
        if history.base is None and not ended:
            return await self._view_of_new(session, query)
        begun = history.runs[0] if history.runs else _run_of(history.base)
        async with self._rebuilder.rebuilt(history.base, ended, begun) as name:
            view, data = await self._rebuilder.sandbox.in_thread(
                partial(_read, self._rebuilder.sandbox, name, session, query.path)
            )
        return await self._with_content(view, data)

    async def _history(self, session: str) -> SessionHistory:
        life = await self._ask("session", session, SessionQuery(), SessionView)
        if life.phase == DESTROYED:
            raise Refused("SESSION_NOT_FOUND", f"session {session} was destroyed")
        return await self._rebuilder.reader.history(session, life.generation)

    async def _view_of_new(self, session: str, query: FilesQuery) -> FilesView:
        if query.path != FilesQuery().path:
            raise _not_found(query.path, "the session has no files")
        return FilesView(session_id=session, path=query.path)

    async def _with_content(self, view: FilesView, data: bytes | None) -> FilesView:
        """The view with the file's content, or with its blob if it is large."""
        if data is None:
            return view
        if len(data) <= IN_FACT_BYTES_MAX:
            return msgspec.structs.replace(view, digest=digest_bytes(data), data=data)
        digest = await self._blobs.put(data)
        return msgspec.structs.replace(view, digest=digest, blob=digest)


def _run_of(base: SnapshotFact | None) -> PastRun:
    """The beginning of a session that has a snapshot and no run yet."""
    assert base is not None
    environment = RunEnvironment(
        language=base.language, build=base.build, seed="", limits=SessionLimits(), catalogue=""
    )
    return PastRun(
        run_id="",
        environment=environment,
        request=RunRequest(),
        now_ms=0,
        generation=base.generation,
        started_at=FactPosition(),
    )


def _read(sandbox: Sandbox, name: str, session: str, path: str) -> tuple[FilesView, bytes | None]:
    """Read from a rebuilt session: the listing, and the content if the path is a file's."""
    value = _value(sandbox, name, FilesStep(op="list", path=path))
    listing = msgspec.convert(value, _Listing)
    files = tuple(FileEntry(path=p, size_bytes=s, folder=f) for p, s, f in listing.entries)
    view = FilesView(session_id=session, path=path, files=files, cut=listing.cut)
    whole = path if path.startswith("/") else f"/work/{path}"
    is_file = len(files) == 1 and not files[0].folder and not files[0].path.startswith(f"{whole}/")
    if not is_file or path.endswith("/"):
        return view, None
    content = bytearray()
    while len(content) < files[0].size_bytes:
        step = FilesStep(op="read", path=path, at=len(content), count=PIECE_BYTES)
        piece = msgspec.convert(_value(sandbox, name, step), _Piece)
        if not piece.data:
            break
        content += piece.data
    return view, bytes(content)


def _value(sandbox: Sandbox, name: str, step: FilesStep) -> Any:
    ended = sandbox.files(name, step)
    if not isinstance(ended, StepEnded):
        raise Failed("REPLAY_DIVERGED", "the guest waits while its files are read")
    if (error := ended.error) is not None:
        if error.code == "RUNTIME_ERROR":
            text = "the guest that this session began with lists no files"
            raise Refused("UNSUPPORTED_FEATURE", text, hint="read them with a program")
        raise Refused(error.code, error.message)
    return ended.value


def _not_found(path: str, why: str) -> Refused:
    return Refused("FILE_NOT_FOUND", f"{path}: {why}")
