"""``rookery sessions snapshot, restore, destroy``: what becomes of a session's memory.

The node that has the session does it; bytes travel by the blob store. A snapshot of another realm
is sealed anew here, by somebody who may read the secrets of both: no node ever sees the other's.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from rookery.actors.sandbox.sessions.snapshot import resealed
from rookery.ops.cli.access.offline_realm import OfflineRealm, open_realm
from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import print_json, print_line
from rookery.ops.cli.output_files import atomic_file, refuse_file_errors
from rookery.schemas.commands import DestroySession, RestoreSession, SnapshotSession
from rookery.schemas.errors import Failed
from rookery.schemas.ids import check_session_id
from rookery.schemas.replies import SessionView, SnapshotView
from rookery.schemas.run import SNAPSHOT_BYTES_MAX

__all__ = ["destroy", "restore", "snapshot"]

PREFIX: Final = "snap_"
TIMEOUT_S: Final = 60.0
"""A session may be large, and has to be brought back first."""

ID = Annotated[str, Parameter(help="The session's id.")]


def snapshot(
    session: ID,
    *,
    out: Annotated[Path | None, Parameter(help="Write it there, too.")] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Keep a session as its last run has left it."""
    kept = asyncio.run(_snapshot(check_session_id(session), out, options))
    if options.json:
        print_json(kept)
    else:
        where = "" if out is None else f" in {out}"
        print_line(f"{kept.snapshot_id}: {kept.size_bytes:,} bytes{where}")
    return 0


def restore(
    source: Annotated[str, Parameter(help="A file, or the id of a snapshot that was kept.")],
    *,
    session: Annotated[str, Parameter(help="The session that goes on from it.")],
    replace: Annotated[
        bool, Parameter(help="End the session of this id, if there is one.", negative="")
    ] = False,
    from_realm: Annotated[
        str | None, Parameter(help="OfflineRealm it was taken in, if another.")
    ] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Begin a session with the memory of a snapshot."""
    check_session_id(session)
    restored = asyncio.run(_restore(source, session, replace, from_realm, options))
    if options.json:
        print_json(restored)
    else:
        print_line(f"session {session} goes on from {restored.snapshot_id}")
    return 0


def destroy(session: ID, *, options: Options = NO_OPTIONS) -> int:
    """End a session's life; the next run begins another, with no memory of this one."""
    check_session_id(session)
    ended = asyncio.run(_destroy(session, options))
    if options.json:
        print_json(ended)
    else:
        print_line(f"session {session} is destroyed; generation {ended.generation} is over")
    return 0


async def _snapshot(session: str, out: Path | None, options: Options) -> SnapshotView:
    async with open_realm(options) as realm:
        kept = await realm.ask("snapshot", session, SnapshotSession(), SnapshotView, TIMEOUT_S)
        if out is not None:
            data = await realm.blobs.get(_digest(kept.snapshot_id))
            with atomic_file(out) as target:
                target.write(data)
    return kept


async def _restore(
    source: str, session: str, takes_place: bool, from_realm: str | None, options: Options
) -> SnapshotView:
    """Of another realm, the snapshot is fetched and sealed anew; a file is put where a node may
    read it."""
    async with open_realm(options) as realm:
        data = None if source.startswith(PREFIX) else _read(Path(source))
        if from_realm is not None:
            data = await _resealed_data(from_realm, source, data, realm, options)
        if data is not None:
            source = PREFIX + await realm.blobs.put(data, SNAPSHOT_BYTES_MAX)
        asked = RestoreSession(snapshot_id=source, replace=takes_place)
        return await realm.ask("restore", session, asked, SnapshotView, TIMEOUT_S)


async def _resealed_data(
    name: str, source: str, data: bytes | None, ours: OfflineRealm, options: Options
) -> bytes:
    async with open_realm(replace(options, realm=name)) as theirs:
        if data is None:
            data = await theirs.blobs.get(_digest(source))
        return resealed(await _key(theirs), await _key(ours), data)


async def _key(realm: OfflineRealm) -> bytes:
    key = await realm.secrets.get("snapshots")
    if key is None:
        raise Failed(
            "SERVER_UNREACHABLE",
            f"no node of realm {realm.subjects.realm!r} has ever run anything",
            hint=f"rookery up --realm {realm.subjects.realm}",
        )
    return key


async def _destroy(session: str, options: Options) -> SessionView:
    async with open_realm(options) as realm:
        return await realm.ask("destroy", session, DestroySession(), SessionView)


def _digest(snapshot_id: str) -> str:
    return snapshot_id.removeprefix(PREFIX)


def _read(file: Path) -> bytes:
    with refuse_file_errors(file):
        return file.read_bytes()
