"""``rookery sessions snapshot, restore, destroy, append, context, compact, model, undo`` and
``rookery files``: what a session has, its memory, conversation and files.

The node that owns the session acts; the bytes are in the blob store. This command seals a snapshot
of another realm again with the key of this realm, so that no node needs the keys of two realms.

``files put`` and ``remove`` are runs without a program: they wait for the runs before them, and the
journal has them. ``get`` and ``list`` show the files as the last ended run left them.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

from cyclopts import App, Parameter
from cyclopts.validators import Number
from msgspec import UNSET

from rookery.actors.sandbox.sessions import Snapshot
from rookery.bus.client import Client
from rookery.ops.cli.access.realm_access import OfflineRealm, open_realm, with_realm_client
from rookery.ops.cli.arguments import find_language
from rookery.ops.cli.options import NO_OPTIONS, NO_TOOLS, Options
from rookery.ops.cli.output import (
    atomic_file,
    print_json,
    print_line,
    print_table,
    printable,
    refuse_file_errors,
    write_content,
)
from rookery.ops.cli.usage_errors import STDIN
from rookery.ops.keys import NodeSecrets
from rookery.schemas.agents import KEPT_MESSAGES, Compaction, ConversationView, ListedMessage
from rookery.schemas.commands import (
    AppendMessage,
    ConversationQuery,
    DestroySession,
    HandleInput,
    RestoreSession,
    SetContext,
    SnapshotSession,
    UndoRuns,
)
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.ids import check_file_path, check_session_id
from rookery.schemas.machines.views import ModelRoutingView
from rookery.schemas.replies import (
    RunAnswer,
    SessionView,
    SnapshotView,
    UndoReceipt,
)
from rookery.schemas.run import SNAPSHOT_BYTES_MAX, RunRequest, RunStatus

__all__ = [
    "app",
    "append",
    "compact",
    "compacted_words",
    "context",
    "conversation_rows",
    "conversation_sum",
    "destroy",
    "model",
    "restore",
    "snapshot",
    "undo",
    "undone_words",
]

T = TypeVar("T")

PREFIX: Final = "snap_"
TIMEOUT_S: Final = 60.0
"""A session may be large, and the node may have to restore it first."""
LINE_CHARS: Final = 100

ID = Annotated[str, Parameter(help="The session's id.")]


def snapshot(
    session: ID,
    *,
    out: Annotated[Path | None, Parameter(help="Write the snapshot to this file, too.")] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Take a snapshot of a session after its last run."""
    taken = asyncio.run(_snapshot(check_session_id(session), out, options))
    if options.json:
        print_json(taken)
    else:
        where = "" if out is None else f" in {out}"
        print_line(f"{taken.snapshot_id}: {taken.size_bytes:,} bytes{where}")
    return 0


def restore(
    source: Annotated[str, Parameter(help="A snapshot file, or a snapshot id.")],
    *,
    session: Annotated[str, Parameter(help="The session to create from it.")],
    replace: Annotated[
        bool, Parameter(help="Destroy an existing session of this id.", negative="")
    ] = False,
    from_realm: Annotated[
        str | None, Parameter(help="Realm it was taken in, if not this one.")
    ] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Create a session with the memory of a snapshot."""
    check_session_id(session)
    restored = asyncio.run(_restore(source, session, replace, from_realm, options))
    if options.json:
        print_json(restored)
    else:
        print_line(f"session {session} continues from {restored.snapshot_id}")
    return 0


def destroy(session: ID, *, options: Options = NO_OPTIONS) -> int:
    """End the generation of a session; its next run starts one without memory."""
    check_session_id(session)
    ended = asyncio.run(_destroy(session, options))
    if options.json:
        print_json(ended)
    else:
        print_line(f"session {session} is destroyed; generation {ended.generation} is over")
    return 0


async def _snapshot(session: str, out: Path | None, options: Options) -> SnapshotView:
    async with open_realm(options) as realm:
        taken = await realm.ask("snapshot", session, SnapshotSession(), SnapshotView, TIMEOUT_S)
        if out is not None:
            data = await realm.images.get(_digest(taken.snapshot_id))
            with atomic_file(out) as target:
                target.write(data)
    return taken


async def _restore(
    source: str, session: str, replaces: bool, from_realm: str | None, options: Options
) -> SnapshotView:
    """Restore a snapshot; store a file, or a snapshot of another realm, among the images first."""
    async with open_realm(options, current=True) as realm:
        data = None if source.startswith(PREFIX) else _read(Path(source))
        if from_realm is not None:
            data = await _resealed_data(from_realm, source, data, realm, options)
        if data is not None:
            source = PREFIX + await realm.images.put(data, SNAPSHOT_BYTES_MAX)
        body = RestoreSession(snapshot_id=source, replace=replaces)
        return await realm.ask("restore", session, body, SnapshotView, TIMEOUT_S)


async def _resealed_data(
    name: str, source: str, data: bytes | None, to_realm: OfflineRealm, options: Options
) -> bytes:
    async with open_realm(replace(options, realm=name), current=True) as from_realm:
        if data is None:
            data = await from_realm.images.get(_digest(source))
        return Snapshot.reseal(await _key(from_realm), await _key(to_realm), data)


async def _key(realm: OfflineRealm) -> bytes:
    key = await NodeSecrets.read_snapshot_key(realm.sealed_secrets(realm.keys))
    if key is None:
        raise Failed(
            "SERVER_UNREACHABLE",
            f"realm {realm.subjects.realm!r} has no key for snapshots: no node has served it",
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


# --- its conversation -----------------------------------------------------------------------------


def append(
    session: ID,
    text: Annotated[str, Parameter(help="The message.")],
    *,
    role: Annotated[Literal["user", "system"], Parameter(help="Whose message it is.")] = "user",
    options: Options = NO_OPTIONS,
) -> int:
    """Add a message to the conversation of a session; no model is asked."""
    body = AppendMessage(text=text, role=role)
    return _add_message("append", session, body, options)


def context(
    session: ID,
    key: Annotated[
        str | None, Parameter(help="Set a message that replaces the older one of this key.")
    ] = None,
    text: Annotated[str | None, Parameter(help="What the session's models are to know.")] = None,
    *,
    options: Options = NO_OPTIONS,
) -> int:
    """List what the next question would hold, with sizes; or set a message of context."""
    if key is None:
        return _list_conversation(check_session_id(session), options)
    if text is None:
        raise Refused("INVALID_ARGUMENT", "the message is missing", hint="SESSION KEY TEXT")
    return _add_message("context", session, SetContext(context_key=key, text=text), options)


def compact(
    session: ID,
    *,
    keep: Annotated[
        int, Parameter(help="So many of the last messages stay.", validator=Number(gte=0))
    ] = KEPT_MESSAGES,
    drop: Annotated[
        bool, Parameter(help="Leave the others out, without a summary of a model.", negative="")
    ] = False,
    model: Annotated[str | None, Parameter(help="Model that writes the summary.")] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Replace the older messages of a session's conversation by a summary; the journal keeps
    them."""
    request = RunRequest(
        session_id=check_session_id(session),
        compact=Compaction(keep=keep, drop=drop),
        model=UNSET if model is None else model,
    )

    async def work(client: Client) -> int:
        answer = await client.run(session, request)
        if options.json:
            print_json(answer)
        else:
            print_line(f"session {session}: {compacted_words(answer)}")
        return 0

    return with_realm_client(options, NO_TOOLS, work)


def model(
    session: ID,
    alias: Annotated[str, Parameter(help="NAME of [models.NAME].")],
    *,
    options: Options = NO_OPTIONS,
) -> int:
    """Set the model of the session: from the next question on, for prompts that name none."""
    params = {"model": alias, "realtime_capable": False}
    body = HandleInput(input="set_baseline", params=params)
    view = asyncio.run(_ask("turns", session, body, ModelRoutingView, options))
    if options.json:
        print_json(view)
    else:
        print_line(f"session {session} asks {alias} from its next question on")
    return 0


def undo(
    session: ID,
    runs: Annotated[int, Parameter(help="How many runs.", validator=Number(gte=1))] = 1,
    *,
    force: Annotated[
        bool, Parameter(help="Also where tools have acted; that is not undone.", negative="")
    ] = False,
    options: Options = NO_OPTIONS,
) -> int:
    """Put a session's memory and conversation back to before its last runs; nothing is deleted."""
    body = UndoRuns(runs=runs, force=force)
    undone = asyncio.run(_ask("undo", session, body, UndoReceipt, options))
    if options.json:
        print_json(undone)
    else:
        print_line(f"session {session} {undone_words(undone)}")
    return 0


def compacted_words(answer: RunAnswer) -> str:
    """What a compaction has done; its error is raised."""
    if answer.error is not None:
        raise Refused(answer.error.code, answer.error.message, hint=answer.error.hint or "")
    if not answer.result["messages"]:
        return "too few messages to replace any"
    before, after = answer.result["tokens_before"], answer.result["tokens_after"]
    return f"{answer.result['messages']} messages replaced, about {before:,} > {after:,} tokens"


def undone_words(receipt: UndoReceipt) -> str:
    """What an undo has done."""
    return f"is as before run {receipt.run_id}, with {receipt.messages} messages"


def conversation_rows(view: ConversationView) -> list[tuple[object, ...]]:
    """A row a message: its size, role, and what it is."""
    return [(f"{one.size_bytes:,}", one.role, _message_words(one)) for one in view.messages]


def conversation_sum(view: ConversationView) -> str:
    """All messages together."""
    count = len(view.messages) + view.left_out
    return f"{count} messages, {view.size_bytes:,} bytes, about {view.tokens:,} tokens"


def _message_words(message: ListedMessage) -> str:
    of = (message.context_key and f"context {message.context_key}") or message.source or ""
    calls = f"calls {', '.join(message.calls)}" if message.calls else ""
    text = " ".join(filter(None, [f"[{of}]" if of else "", calls, message.text]))
    return printable(text[:LINE_CHARS].replace("\n", " "))


def _list_conversation(session: str, options: Options) -> int:
    view = asyncio.run(
        _ask("conversation", session, ConversationQuery(), ConversationView, options)
    )
    if options.json:
        print_json(view)
        return 0
    print_table(["BYTES", "ROLE", "MESSAGE"], conversation_rows(view), empty="no messages")
    print_line(conversation_sum(view))
    return 0


def _add_message(verb: str, session: str, body: object, options: Options) -> int:
    answer = asyncio.run(_ask(verb, session, body, RunAnswer, options))
    if options.json:
        print_json(answer)
    elif answer.error is not None:
        raise Refused(answer.error.code, answer.error.message, hint=answer.error.hint or "")
    else:
        print_line(f"session {session} has the message")
    return 0 if answer.status is RunStatus.OK else 1


async def _ask(verb: str, session: str, body: object, reply: type[T], options: Options) -> T:
    check_session_id(session)
    async with open_realm(options) as realm:
        return await realm.ask(verb, session, body, reply, TIMEOUT_S)


# --- files ----------------------------------------------------------------------------------------

app = App(
    name="files", help="Put, get, list and remove files of a session.", help_format="plaintext"
)

PATH = Annotated[str, Parameter(help="The file in the session, relative to /work.")]
HOME: Final = "/work"


@app.command
def put(
    session: ID,
    path: PATH,
    file: Annotated[
        str | None, Parameter(help="The file here; - reads standard input; default: PATH.")
    ] = None,
    *,
    language: Annotated[
        str | None, Parameter(help="Language of a new session; default: python.")
    ] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Write a file of a session, after the runs that it has."""
    check_session_id(session)
    check_file_path(path)
    data = _content(path if file is None else file)
    named = None if language is None else find_language(language)

    async def work(client: Client) -> int:
        answer = await client.put_file(session, path, data, language=named)
        if options.json:
            print_json({"run_id": answer.run_id, "path": path, "size_bytes": len(data)})
        else:
            print_line(f"{path}: {len(data):,} bytes, recorded as run {answer.run_id}")
        return 0

    return with_realm_client(options, NO_TOOLS, work)


@app.command
def get(
    session: ID,
    path: PATH,
    *,
    out: Annotated[Path | None, Parameter(help="Write it to this file; default: stdout.")] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Read a file of a session, as its last ended run left it."""
    check_session_id(session)

    async def work(client: Client) -> int:
        write_content(await client.get_file(session, path), out)
        return 0

    return with_realm_client(options, NO_TOOLS, work)


@app.command(name="list")
def list_(session: ID, path: PATH = HOME, *, options: Options = NO_OPTIONS) -> int:
    """List the files and folders of a session, as its last ended run left them."""
    check_session_id(session)

    async def work(client: Client) -> int:
        found = await client.list_files(session, path)
        if options.json:
            print_json(found)
        else:
            for one in found:
                name = printable(one.path)
                print_line(f"{name}/" if one.folder else f"{name}  {one.size_bytes:,}")
        return 0

    return with_realm_client(options, NO_TOOLS, work)


@app.command
def remove(session: ID, path: PATH, *, options: Options = NO_OPTIONS) -> int:
    """Remove a file or an empty folder of a session, after the runs that it has."""
    check_session_id(session)

    async def work(client: Client) -> int:
        answer = await client.remove_file(session, path)
        if options.json:
            print_json({"run_id": answer.run_id, "path": path})
        else:
            print_line(f"{path} is removed, recorded as run {answer.run_id}")
        return 0

    return with_realm_client(options, NO_TOOLS, work)


def _content(file: str) -> bytes:
    if file == STDIN:
        return sys.stdin.buffer.read()
    with refuse_file_errors(Path(file)):
        return Path(file).read_bytes()
