"""The table of a realm's streams, and their creation and check.

An existing stream is never changed. A demanded setting keeps data from being lost or reordered, so
another value is refused (``STREAM_MISMATCH``). A proposed setting is written at creation, after
which operators may change it (limits in bytes, windows, replicas). Buckets are created by their own
modules.

But for ``cmd.*.*``, every subject that a stream listens to has a secret token (see ``subjects``).
The node token is made with the journal's stream, whose creation is atomic, and read from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from rookery.bus.clock import entropy, monotonic_s
from rookery.bus.jetstream_api import STREAM_NAME_IN_USE, STREAM_NOT_FOUND, ApiError
from rookery.bus.nats import Connection
from rookery.bus.ports import PARTITIONS
from rookery.bus.subjects import Subjects, hide_tokens
from rookery.schemas.errors import Failed

__all__ = [
    "FORMAT",
    "FORMAT_KEY",
    "SUBJECTS_KEY",
    "SUBJECT_SETTINGS",
    "StreamSpec",
    "check_config",
    "ensure_journal",
    "ensure_streams",
    "find_node_token",
    "first_subjects",
    "format_of",
    "has_all_terms",
    "mismatches",
    "new_node_token",
    "new_term",
    "streams_of",
    "subjects_of_terms",
    "terms_in",
    "with_replicas",
]

FORMAT = 3
"""Version of the use of a realm's streams; ``realm_upgrade`` converts older ones."""
FORMAT_KEY = "rookery-format"
SUBJECTS_KEY = "rookery-node-token"
"""Where the journal's metadata has the node token."""
SUBJECT_SETTINGS: Final[tuple[str, ...]] = ("subjects", "subject_transform", "sources")
"""The settings of a stream that have the node token in them."""
_UNMARKED_FORMAT = 2
_CREATED_ELSEWHERE = frozenset({STREAM_NAME_IN_USE, STREAM_NOT_FOUND})
_CREATION_S_MAX, _CREATION_PAUSE_S = 10.0, 0.05

_SECOND_NS = 1_000_000_000
_DAY_NS = 86_400 * _SECOND_NS
_SMALLEST_WINDOW_NS = _SECOND_NS // 10
_HEADER_BYTES_MAX = 8 << 10
_SECRET_BYTES = 16
_COMMAND_BYTES_MAX = (1 << 20) - _HEADER_BYTES_MAX
"""A command must fit among the dead letters, whose headers hold the reason, and a timer
into the inbox, both within the server's usual ``max_payload``."""

_LOSSLESS = {
    "storage": "file",
    "retention": "limits",
    "max_msgs_per_subject": -1,
    "persist_mode": None,
    "sealed": None,
    "mirror": None,
}
"""``persist_mode: async`` acks before the disk has the message; the others drop, refuse or import
messages."""


class StreamSpec(msgspec.Struct, frozen=True):
    """Required settings of a stream (``demands``) and initial ones (``proposes``)."""

    name: str
    demands: dict[str, Any]
    proposes: dict[str, Any]
    terms_of: Subjects | None = None
    """Set if the stream listens to terms, which change at runtime."""


def streams_of(subjects: Subjects) -> tuple[StreamSpec, ...]:
    """Every stream of the realm."""
    return (
        _journal(subjects),
        _timers(subjects),
        _inbox(subjects),
        _peers(subjects),
        _dead(subjects),
    )


async def ensure_journal(connection: Connection, subjects: Subjects, *, replicas: int = 1) -> None:
    """Create the journal's stream or check the existing one, and set the token of ``subjects``.

    Of nodes that create it together, the server takes one node's token; the others read it.
    """
    proposed = Subjects(subjects.realm)
    proposed.set_node_token(new_node_token())
    config = await _create(connection, with_replicas([_journal(proposed)], replicas)[0])
    _check_format(subjects, config)
    _set_token(subjects, config)
    check_config(_journal(subjects), config)


async def find_node_token(connection: Connection, subjects: Subjects) -> None:
    """Set the token of ``subjects`` from the journal's stream; ``Failed`` if its format is not
    this version's."""
    config = (await connection.api(f"STREAM.INFO.{subjects.journal_stream}"))["config"]
    _check_format(subjects, config)
    _set_token(subjects, config)


def _set_token(subjects: Subjects, config: Mapping[str, Any]) -> None:
    token = (config.get("metadata") or {}).get(SUBJECTS_KEY, "")
    if not token:
        raise Failed(
            "STREAM_MISMATCH",
            f"stream {subjects.journal_stream} has no {SUBJECTS_KEY} in its metadata",
            hint="it is the last token of its subject that begins with w.node",
        )
    subjects.set_node_token(token)


def with_replicas(specs: Sequence[StreamSpec], replicas: int) -> list[StreamSpec]:
    """The same streams, to be created with so many copies."""
    number = {"num_replicas": replicas}
    return [msgspec.structs.replace(spec, proposes=spec.proposes | number) for spec in specs]


async def ensure_streams(connection: Connection, specs: Sequence[StreamSpec]) -> None:
    """Create missing streams and check existing ones."""
    for spec in specs:
        check_config(spec, await _create(connection, spec))


async def _create(connection: Connection, spec: StreamSpec) -> dict[str, Any]:
    """The configuration of the new stream, or of the one that exists."""
    try:
        return await _find_or_create(connection, spec)
    except ApiError as error:
        raise Failed(
            "STREAM_MISMATCH", f"stream {spec.name} cannot be created: {error.description}"
        ) from None


async def _find_or_create(connection: Connection, spec: StreamSpec) -> dict[str, Any]:
    """Of nodes that create it together the server takes one node's stream. In a cluster the others
    find none until that one has a leader."""
    last_s = monotonic_s() + _CREATION_S_MAX
    wanted = {"name": spec.name, **spec.demands, **spec.proposes}
    query = {name: value for name, value in wanted.items() if value is not None}
    while True:
        try:
            found = await connection.api(f"STREAM.INFO.{spec.name}")
        except ApiError as error:
            if error.err_code != STREAM_NOT_FOUND:
                raise
            try:
                found = await connection.api(f"STREAM.CREATE.{spec.name}", query)
            except ApiError as refusal:
                if refusal.err_code not in _CREATED_ELSEWHERE or monotonic_s() > last_s:
                    raise
                await asyncio.sleep(_CREATION_PAUSE_S)
                continue
        config: dict[str, Any] = found["config"]
        return config


def mismatches(spec: StreamSpec, config: dict[str, Any]) -> list[str]:
    """The settings that differ from the demands, in words without secrets."""
    wrong = [
        f"{name} is {config.get(name)!r}, it must be {wanted!r}"
        for name, wanted in spec.demands.items()
        if (config.get(name) or None) != (wanted or None)
    ]
    if spec.terms_of is not None and not has_all_terms(spec.terms_of, config):
        wrong.append(_wrong_subjects(spec.terms_of, config))
    return [hide_tokens(text) for text in wrong]


def _wrong_subjects(subjects: Subjects, config: dict[str, Any]) -> str:
    """The difference in subjects. Tokens of terms are secret, so the text only counts the terms."""
    terms = terms_in(subjects, config)
    known = {subjects.appends(partition, term) for partition, term in terms.items()}
    others = [subject for subject in config.get("subjects") or () if subject not in known]
    return (
        f"subjects is {others!r} and the terms of {len(terms)} partitions, "
        f"it must be {[subjects.node_appends()]!r} and those of {PARTITIONS}"
    )


def format_of(subjects: Subjects, config: dict[str, Any]) -> int:
    """Format of a realm, found from its journal's stream."""
    if config.get("subjects") == [subjects.all_facts]:
        return 1
    marked = (config.get("metadata") or {}).get(FORMAT_KEY, "")
    return int(marked) if marked.isdecimal() else _UNMARKED_FORMAT


def _check_format(subjects: Subjects, config: dict[str, Any]) -> None:
    found = format_of(subjects, config)
    if found < FORMAT:
        raise Failed(
            "REALM_UPGRADE_REQUIRED",
            f"realm {subjects.realm} has format {found}, this version serves {FORMAT}",
            hint=f"rookery up does it, or: rookery realm upgrade --realm {subjects.realm}",
        )
    if found > FORMAT:
        raise Failed(
            "REALM_TOO_NEW",
            f"realm {subjects.realm} has format {found}, this version serves {FORMAT}",
            hint="install the version that brought it there, or a later one",
        )


def check_config(spec: StreamSpec, config: dict[str, Any]) -> None:
    """Refuse a stream that would lose or reorder data."""
    if spec.terms_of is not None:
        _check_format(spec.terms_of, config)
    if wrong := mismatches(spec, config):
        raise Failed(
            "STREAM_MISMATCH",
            f"stream {spec.name}: {'; '.join(wrong)}",
            hint=f"nats stream edit {spec.name}, or serve another realm",
        )


def _journal(subjects: Subjects) -> StreamSpec:
    """Facts, stored for ever. A full stream makes appends wait and never drops a fact.

    It listens to the subjects on which the owners of partitions publish in their terms, stores
    messages as ``ev.>`` and republishes them there, so plain subscribers receive facts only.

    Finished blocks of messages are compressed, to about an eighth: facts repeat their envelopes, so
    that every fact is whole for its readers. Reading an old block costs the server some 5 ms then.

    The duplicate window is the smallest possible: expectations and message ids make an append
    idempotent at any age, and the server holds every id of a window in memory.
    """
    facts = subjects.all_facts
    return StreamSpec(
        subjects.journal_stream,
        _LOSSLESS
        | {
            "subject_transform": {"src": f"{subjects.root}.w.*.*.>", "dest": facts},
            "republish": {"src": facts, "dest": facts},
            "discard": "new",
            "max_age": 0,
            "allow_atomic": True,
            "allow_direct": True,
            "deny_delete": True,
            "deny_purge": True,
        },
        {
            "subjects": first_subjects(subjects),
            "duplicate_window": _SMALLEST_WINDOW_NS,
            "compression": "s2",
            "metadata": {FORMAT_KEY: str(FORMAT), SUBJECTS_KEY: subjects.node_token},
        },
        subjects,
    )


def _inbox(subjects: Subjects) -> StreamSpec:
    """Durable commands, stored by partition: ``cmd.<partition>.<verb>.<key>``, and fired timers,
    which the server copies from their stream.

    A stream with a source is the only kind without a duplicate window. JetStream de-duplicates per
    stream: the smallest window (100 ms) would drop an id that a client sends to two sessions at
    once. Admission makes commands idempotent.

    The source has a filter and no transform: a killed server looks for the last message of a
    transforming source by reading the stream backwards (300,000 messages: minutes).
    """
    root = subjects.root
    stored = f"{root}.cmd.{{{{partition({PARTITIONS},2)}}}}.{{{{wildcard(1)}}}}.{{{{wildcard(2)}}}}"
    return StreamSpec(
        subjects.inbox_stream,
        _LOSSLESS
        | {
            "subjects": [f"{root}.cmd.*.*"],
            "subject_transform": {"src": f"{root}.cmd.*.*", "dest": stored},
            "sources": [{"name": subjects.timers_stream, "filter_subject": subjects.all_fired()}],
            "duplicate_window": None,
            "discard": "new",
        },
        {"max_age": 7 * _DAY_NS, "max_msg_size": _COMMAND_BYTES_MAX},
    )


def _timers(subjects: Subjects) -> StreamSpec:
    """Schedules and the messages they fire; a stream with schedules cannot discard new messages.

    A schedule is stored under ``timer.<id>``. What it fires keeps the token, which makes it a
    subject of the inbox that no client can name: the inbox's source cannot transform it.
    """
    return StreamSpec(
        subjects.timers_stream,
        _LOSSLESS
        | {
            "subjects": [subjects.node_written("timer"), subjects.all_fired()],
            "subject_transform": _without_token(subjects, "timer"),
            "discard": "old",
            "max_age": 0,
            "allow_msg_schedules": True,
            "allow_msg_ttl": True,
            "allow_rollup_hdrs": True,
        },
        {
            "duplicate_window": _SMALLEST_WINDOW_NS,
            "max_msg_size": _COMMAND_BYTES_MAX - _HEADER_BYTES_MAX,
        },
    )


def _peers(subjects: Subjects) -> StreamSpec:
    """Envelopes to peers, stored for a week."""
    return StreamSpec(
        subjects.peers_stream,
        _LOSSLESS | _node_written(subjects, "peer") | {"discard": "new"},
        {"max_age": 7 * _DAY_NS, "duplicate_window": _SMALLEST_WINDOW_NS},
    )


def _dead(subjects: Subjects) -> StreamSpec:
    """Commands that failed permanently, stored for a month; the message id makes a repeated dead
    letter one."""
    return StreamSpec(
        subjects.dead_stream,
        _LOSSLESS | _node_written(subjects, "dead") | {"discard": "new"},
        {"max_age": 30 * _DAY_NS, "duplicate_window": 600 * _SECOND_NS},
    )


def _node_written(subjects: Subjects, kind: str) -> dict[str, Any]:
    """The settings of a stream that stores what nodes write of one kind."""
    return {
        "subjects": [subjects.node_written(kind)],
        "subject_transform": _without_token(subjects, kind),
    }


def _without_token(subjects: Subjects, kind: str) -> dict[str, str]:
    return {"src": subjects.node_written(kind), "dest": f"{subjects.root}.{kind}.>"}


# --- terms, a subject for each partition: `bus.journal.writer_terms` begins them ------------------


def first_subjects(subjects: Subjects) -> list[str]:
    """The subjects of a new journal: terms that no node has begun."""
    return subjects_of_terms(subjects, {partition: new_term(0) for partition in range(PARTITIONS)})


def terms_in(subjects: Subjects, config: Mapping[str, Any]) -> dict[int, str]:
    """The term of each partition in the stream's configuration."""
    prefix = f"{subjects.root}.w."
    terms = {}
    for subject in config.get("subjects") or ():
        if subject.startswith(prefix):
            partition, _, term = subject.removeprefix(prefix).removesuffix(".>").partition(".")
            if partition.isdecimal():
                terms[int(partition)] = term
    return terms


def has_all_terms(subjects: Subjects, config: Mapping[str, Any]) -> bool:
    """Whether the stream listens to one term of each partition, to node facts, and to no more."""
    terms = terms_in(subjects, config)
    every = terms.keys() == frozenset(range(PARTITIONS))
    return every and sorted(config["subjects"]) == sorted(subjects_of_terms(subjects, terms))


def subjects_of_terms(subjects: Subjects, terms: Mapping[int, str]) -> list[str]:
    """What the journal listens to while these terms hold."""
    listed = [subjects.appends(partition, terms[partition]) for partition in sorted(terms)]
    return [*listed, subjects.node_appends()]


def new_term(number: int) -> str:
    """A term of this number that no other node can publish in."""
    return f"{number}-{entropy(_SECRET_BYTES).hex()}"


def new_node_token() -> str:
    """A secret that no client can guess."""
    return entropy(_SECRET_BYTES).hex()
