"""Upgrade of a realm's streams to this version's format, in place: no message is lost.

In format 1 the journal listens to ``ev.>``, and all its publishers write facts. In format 2 it
listens to one term of each partition. In format 3 every subject that only nodes write has the node
token (``subjects``). An older node cannot write afterwards, so a realm with a live one is refused.

Every step may be repeated, and nodes that upgrade together write the same: a killed upgrade begins
again. The mark in the journal's stream comes last.
"""

from __future__ import annotations

import logging
from base64 import b64decode
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec

from rookery.bus.commands.command_messages import TIMER, publish
from rookery.bus.commands.inbox import SCHEDULE, SCHEDULE_TARGET, SCHEDULE_TTL, TTL
from rookery.bus.jetstream_api import (
    MESSAGE_NOT_FOUND,
    STREAM_NAME_IN_USE,
    STREAM_NOT_FOUND,
    ApiError,
)
from rookery.bus.nats import Connection, Outgoing
from rookery.bus.nats.batch_client import header_value
from rookery.bus.server_access import ServerAccess
from rookery.bus.storage.blobs import JetStreamBlobs, move_images
from rookery.bus.storage.bucket import Bucket, JetStreamClaims
from rookery.bus.streams import (
    FORMAT,
    FORMAT_KEY,
    SUBJECT_SETTINGS,
    SUBJECTS_KEY,
    StreamSpec,
    check_config,
    ensure_streams,
    first_subjects,
    format_of,
    new_node_token,
    streams_of,
    subjects_of_terms,
    terms_in,
)
from rookery.bus.subjects import Subjects
from rookery.schemas.errors import Failed

__all__ = ["RealmUpgrade", "apply_upgrade", "plan_upgrade", "upgrade_at_start", "upgrade_realm"]

log = logging.getLogger(__name__)

_CLAIM_OF_NODE: Final = "node."
_SOURCE: Final = b"Nats-Stream-Source"


class RealmUpgrade(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of an upgrade."""

    realm: str
    stream: str
    format: int
    """Present format of the realm."""
    to: int = FORMAT
    messages: int
    """Number of messages in the journal; all of them stay."""

    @property
    def is_needed(self) -> bool:
        return self.format < self.to


class _Stored(msgspec.Struct):
    """A message of a stream, as the leader returns it."""

    subject: str
    seq: int
    hdrs: str = ""
    data: str = ""

    @property
    def header(self) -> bytes:
        return b64decode(self.hdrs)


async def upgrade_at_start(
    url: str, access: ServerAccess, realm: str, is_dead: Callable[[bytes], bool]
) -> None:
    """Upgrade the realm of a node that is about to start, and log one line."""
    connection = Connection(url, access)
    await connection.open()
    try:
        plan, done = await upgrade_realm(connection, Subjects(realm), is_dead)
    finally:
        await connection.close()
    if done:
        log.warning(
            "realm %s upgraded from format %d to %d; older versions refuse it from now on",
            plan.realm,
            plan.format,
            plan.to,
        )


async def upgrade_realm(
    connection: Connection,
    subjects: Subjects,
    is_dead: Callable[[bytes], bool],
    *,
    apply: bool = True,
) -> tuple[RealmUpgrade, bool]:
    """The plan, and whether it was applied; ``Failed`` REALM_IN_USE while an older node lives.

    ``is_dead``: whether the process of a claim's value is known to have ended.
    """
    plan = await plan_upgrade(connection, subjects)
    if plan.is_needed and (nodes := await _live_nodes(connection, subjects, is_dead)):
        plan = await plan_upgrade(connection, subjects)  # A node of this version may have done it.
        if plan.is_needed:
            raise Failed(
                "REALM_IN_USE",
                f"realm {plan.realm} has format {plan.format} and is served by {', '.join(nodes)}",
                hint="stop them first: rookery nodes list",
            )
    if not plan.is_needed or not apply:
        return plan, False
    await apply_upgrade(connection, subjects)
    return plan, True


async def _live_nodes(
    connection: Connection, subjects: Subjects, is_dead: Callable[[bytes], bool]
) -> list[str]:
    """The nodes with a claim whose process is not known to be dead."""
    bucket = Bucket(connection, subjects, subjects.claims_bucket)
    if await _info(connection, f"KV_{subjects.claims_bucket}") is None:
        return []  # No node has served it yet.
    held = await JetStreamClaims(bucket).list(_CLAIM_OF_NODE)
    return sorted(c.name.removeprefix(_CLAIM_OF_NODE) for c in held if not is_dead(c.value))


async def plan_upgrade(connection: Connection, subjects: Subjects) -> RealmUpgrade:
    """The changes that ``apply_upgrade`` would make."""
    info = await _info(connection, subjects.journal_stream)
    if info is None:
        raise Failed("SERVER_UNREACHABLE", f"stream {subjects.journal_stream} does not exist")
    return RealmUpgrade(
        realm=subjects.realm,
        stream=subjects.journal_stream,
        format=format_of(subjects, info["config"]),
        messages=info["state"]["messages"],
    )


async def apply_upgrade(connection: Connection, subjects: Subjects) -> None:
    """Change the streams of an older realm, and check the journal's as a starting node does."""
    subjects.set_node_token(await _agree_on_token(connection, subjects))
    journal, timers, *others = streams_of(subjects)
    await _redirect(connection, timers)
    await _carry_schedules(connection, subjects)
    for spec in others:
        await _redirect(connection, spec)
    await _carry_fired(connection, subjects)
    for name in subjects.buckets:
        await _redirect(connection, Bucket(connection, subjects, name).spec())
    await _move_images(connection, subjects)
    await _remove(connection, subjects.upgrade_stream)
    await _mark(connection, subjects, journal)


async def _agree_on_token(connection: Connection, subjects: Subjects) -> str:
    """The node token, which is in the journal's metadata from now on.

    JetStream has no compare-and-swap for updates, but it creates a stream once. So the token of an
    upgrade is that of a stream which exists until all streams have it.
    """
    config = await _journal_config(connection, subjects)
    if SUBJECTS_KEY not in config["metadata"]:
        proposed = await _propose_token(connection, subjects)
        config = await _journal_config(connection, subjects)
        config["metadata"] = {SUBJECTS_KEY: proposed} | config["metadata"]
        await _update(connection, config)
    return str(config["metadata"][SUBJECTS_KEY])


async def _propose_token(connection: Connection, subjects: Subjects) -> str:
    name, token = subjects.upgrade_stream, new_node_token()
    proposal = {
        "name": name,
        "subjects": [f"{subjects.root}.upgrade.{token}"],
        "metadata": {SUBJECTS_KEY: token},
    }
    while True:
        try:
            await connection.api(f"STREAM.CREATE.{name}", proposal)
        except ApiError as error:
            if error.err_code != STREAM_NAME_IN_USE:
                raise _unchanged(name, error) from None
        found = await _info(connection, name)
        if found is not None:  # Another node may have finished the upgrade just now.
            return str(found["config"]["metadata"][SUBJECTS_KEY])


async def _move_images(connection: Connection, subjects: Subjects) -> None:
    """Memory images leave the blobs, which every client may read."""
    blobs = JetStreamBlobs(Bucket(connection, subjects, subjects.blobs_bucket))
    images = JetStreamBlobs(Bucket(connection, subjects, subjects.images_bucket))
    await ensure_streams(connection, (images.spec,))
    await move_images(blobs, images)


async def _redirect(connection: Connection, spec: StreamSpec) -> None:
    """Let a stream listen to its subjects of this format; a missing one is created at start."""
    info = await _info(connection, spec.name)
    if info is None:
        return
    wanted = {name: spec.demands[name] for name in SUBJECT_SETTINGS if name in spec.demands}
    if any(info["config"].get(name) != value for name, value in wanted.items()):
        await _update(connection, {**info["config"], **wanted})


async def _carry_schedules(connection: Connection, subjects: Subjects) -> None:
    """Arm every pending timer again, for a subject that the inbox will source.

    It replaces the older schedule. A timer that fires meanwhile fires again, which is harmless by
    the id of its command.
    """
    old = f"{subjects.root}.fired."
    new = subjects.all_fired().removesuffix("*.*.*")
    async for stored in _messages(connection, subjects.timers_stream, f"{subjects.root}.timer.>"):
        header = stored.header
        target = header_value(header, SCHEDULE_TARGET.encode())
        if not target.startswith(old):
            continue
        headers = [
            (name, header_value(header, name.encode())) for name in (SCHEDULE, SCHEDULE_TTL, TIMER)
        ]
        headers.append((SCHEDULE_TARGET, new + target.removeprefix(old)))
        name = stored.subject.removeprefix(f"{subjects.root}.timer.")
        subject = subjects.node_written("timer").removesuffix(">") + name
        await publish(connection, Outgoing(subject, b64decode(stored.data), headers=headers))


async def _carry_fired(connection: Connection, subjects: Subjects) -> None:
    """Pass on the timers that have fired for the former source and are not in the inbox yet."""
    timers, old = subjects.timers_stream, f"{subjects.root}.fired."
    new = subjects.all_fired().removesuffix("*.*.*")
    async for stored in _messages(connection, timers, f"{old}>"):
        if await _sourced_through(connection, subjects.inbox_stream, stored.subject) < stored.seq:
            headers = [
                (name, value)
                for name in (TIMER, TTL)
                if (value := header_value(stored.header, name.encode()))
            ]
            subject = new + stored.subject.removeprefix(old)
            await publish(connection, Outgoing(subject, b64decode(stored.data), headers=headers))
        await _api(connection, f"STREAM.MSG.DELETE.{timers}", {"seq": stored.seq, "no_erase": True})


async def _sourced_through(connection: Connection, stream: str, subject: str) -> int:
    """The sequence, in its own stream, of the last message that ``stream`` sourced there."""
    answer = await _api(connection, f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
    if answer is None:
        return 0
    header = msgspec.convert(answer["message"], _Stored).header
    sequence = header_value(header, _SOURCE).split(" ")[1:2]
    return int(sequence[0]) if sequence and sequence[0].isdecimal() else 0


async def _mark(connection: Connection, subjects: Subjects, journal: StreamSpec) -> None:
    """Let the journal listen to its subjects of this format, and mark the realm."""
    config = await _journal_config(connection, subjects)
    if format_of(subjects, config) == FORMAT:
        return  # Another node was faster, and may have begun terms since.
    terms = terms_in(subjects, config)
    metadata = config["metadata"] | {FORMAT_KEY: str(FORMAT)}
    wanted = {name: value for name, value in journal.demands.items() if value is not None}
    listens = subjects_of_terms(subjects, terms) if terms else first_subjects(subjects)
    changed = {**config, **wanted, "subjects": listens, "metadata": metadata}
    check_config(journal, await _update(connection, changed))


# --- the server -------------------------------------------------------------------------------


async def _messages(connection: Connection, stream: str, subject: str) -> AsyncIterator[_Stored]:
    at = 1
    query: dict[str, Any] = {"next_by_subj": subject}
    while answer := await _api(connection, f"STREAM.MSG.GET.{stream}", query | {"seq": at}):
        stored = msgspec.convert(answer["message"], _Stored)
        yield stored
        at = stored.seq + 1


async def _journal_config(connection: Connection, subjects: Subjects) -> dict[str, Any]:
    info = await _info(connection, subjects.journal_stream)
    if info is None:
        raise Failed("SERVER_UNREACHABLE", f"stream {subjects.journal_stream} does not exist")
    config: dict[str, Any] = info["config"]
    return config | {"metadata": config.get("metadata") or {}}


async def _info(connection: Connection, stream: str) -> dict[str, Any] | None:
    return await _api(connection, f"STREAM.INFO.{stream}")


async def _update(connection: Connection, config: dict[str, Any]) -> dict[str, Any]:
    name = config["name"]
    try:
        updated: dict[str, Any] = await connection.api(f"STREAM.UPDATE.{name}", config)
    except ApiError as error:
        raise _unchanged(name, error) from None
    found: dict[str, Any] = updated["config"]
    return found


async def _remove(connection: Connection, stream: str) -> None:
    await _api(connection, f"STREAM.DELETE.{stream}")


async def _api(connection: Connection, verb: str, query: object = None) -> dict[str, Any] | None:
    """The server's reply; ``None`` if the stream or the message does not exist."""
    try:
        return await connection.api(verb, query)
    except ApiError as error:
        if error.err_code in MESSAGE_NOT_FOUND or error.err_code == STREAM_NOT_FOUND:
            return None
        raise Failed("SERVER_UNREACHABLE", f"{verb}: {error}") from None


def _unchanged(stream: str, error: ApiError) -> Failed:
    return Failed("STREAM_MISMATCH", f"stream {stream} is unchanged: {error}")
