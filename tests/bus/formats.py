"""Realms as older versions left them.

In format 1 the journal listens to ``ev.>``, in format 2 to terms and ``w.node.>``. In both, the
other streams and the buckets listen to the subjects under which they store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rookery.bus.jetstream_api import MESSAGE_ID
from rookery.bus.journal.reader import CHAIN
from rookery.bus.nats import Connection, Outgoing
from rookery.bus.ports import AppendRequest
from rookery.bus.storage.bucket import Bucket
from rookery.bus.streams import FORMAT_KEY, StreamSpec, new_node_token, new_term, streams_of
from rookery.bus.subjects import Subjects, partition_of

__all__ = ["FormerSubjects", "append_to", "make_format_1", "make_format_2"]

_UNKNOWN_THEN = ("subject_transform", "republish")
_TERMS = {partition: new_term(3) for partition in range(16)}


class FormerSubjects(Subjects):
    """The subjects on which nodes wrote before format 3."""

    has_node_token = True

    def timer(self, timer_id: str) -> str:
        return self.stored_timer(timer_id)

    def fired(self, verb: str, key: str) -> str:
        return f"{self.root}.fired.{partition_of(key)}.{verb}.{key}"

    def bucket_write(self, bucket: str, key: str) -> str:
        return f"$KV.{bucket}.{key}"


async def make_format_1(connection: Connection, subjects: Subjects) -> None:
    """The streams of that version."""
    journal, *others = _specs(subjects)
    demands = {k: v for k, v in journal.demands.items() if k not in _UNKNOWN_THEN}
    await _create(connection, journal.name, demands | {"subjects": [subjects.all_facts]})
    await _make_others(connection, subjects, others)


async def make_format_2(connection: Connection, subjects: Subjects) -> None:
    """The streams of that version."""
    journal, *others = _specs(subjects)
    listens = [subjects.appends(partition, term) for partition, term in _TERMS.items()]
    marked = {
        "subjects": [*listens, f"{subjects.root}.w.node.>"],
        "metadata": {FORMAT_KEY: "2"},
    }
    await _create(connection, journal.name, journal.demands | journal.proposes | marked)
    await _make_others(connection, subjects, others)


def _specs(subjects: Subjects) -> Sequence[StreamSpec]:
    """The streams of this version, for settings that did not change."""
    now = Subjects(subjects.realm)
    now.set_node_token(new_node_token())
    buckets = [Bucket(_NO_CONNECTION, now, name).spec() for name in _buckets(now)]
    return (*streams_of(now), *buckets)


def _buckets(subjects: Subjects) -> list[str]:
    """Those that older versions have."""
    later = (subjects.images_bucket, subjects.uploads_bucket)
    return [name for name in subjects.buckets if name not in later]


async def _make_others(
    connection: Connection, subjects: Subjects, specs: Sequence[StreamSpec]
) -> None:
    root, inbox = subjects.root, subjects.inbox_stream
    sources = [{"name": subjects.timers_stream, "filter_subject": f"{root}.fired.>"}]
    listened = {
        subjects.timers_stream: [f"{root}.timer.*", f"{root}.fired.*.*.*"],
        inbox: [f"{root}.cmd.*.*"],
        subjects.peers_stream: [f"{root}.peer.*"],
        subjects.dead_stream: [f"{root}.dead.*.*"],
    } | {f"KV_{name}": [f"$KV.{name}.>"] for name in _buckets(subjects)}
    for spec in specs:
        config = {**spec.demands, **spec.proposes, "subjects": listened[spec.name]}
        if spec.name == inbox:
            config["sources"] = sources
        else:
            config.pop("subject_transform")
        if spec.name == f"KV_{subjects.claims_bucket}":
            config["allow_msg_ttl"] = True
        await _create(connection, spec.name, config)


async def _create(connection: Connection, name: str, config: Mapping[str, Any]) -> None:
    said = {setting: value for setting, value in config.items() if value is not None}
    await connection.api(f"STREAM.CREATE.{name}", {"name": name, **said})


_NO_CONNECTION = Connection("nats://127.0.0.1:1")
"""A specification asks no server."""


async def append_to(
    connection: Connection, subjects: Subjects, number: int, appends: Sequence[AppendRequest]
) -> bytes:
    """Publish as a node of format ``number`` does; returns the last ack."""
    answer = b""
    for one in appends:
        headers = [
            (MESSAGE_ID, one.message_id),
            (CHAIN, one.chain),
            ("Nats-Expected-Last-Subject-Sequence", str(one.expected)),
        ]
        term = _TERMS[partition_of(one.entity.key)]
        subject = subjects.fact(one.entity) if number == 1 else subjects.append(term, one.entity)
        message = Outgoing(subject, one.body, headers=headers)
        answer = (await connection.request(message)).body
    return answer
