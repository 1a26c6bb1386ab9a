"""The copies of a realm's streams: how many there shall be, and how existing streams get there.

A stream's copies are on different servers of one cluster. An ack of three copies follows a
majority, so any one server may fail. The durable consumers of a stream have as many copies as it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from rookery.bus.clock import monotonic_s
from rookery.bus.jetstream_api import STREAM_NOT_FOUND, ApiError
from rookery.bus.nats import Connection
from rookery.bus.subjects import Subjects
from rookery.schemas.errors import Failed

__all__ = [
    "CLUSTER_REPLICAS",
    "StreamReplicas",
    "change_replicas",
    "default_replicas",
    "plan_replicas",
    "stream_replicas",
]

CLUSTER_REPLICAS: Final = 3
"""The least that survive the loss of one server."""
_POLL_S: Final = 0.2
_SILENCE_S_MAX: Final = 60.0
"""Without progress for so long, a copy does not come about."""


class StreamReplicas(msgspec.Struct, frozen=True, kw_only=True):
    """The copies of one stream."""

    stream: str
    replicas: int
    """How many it has by its configuration."""
    wanted: int
    current: int
    """How many have every message, the leader's included."""
    missing: tuple[str, ...] = ()
    """Servers whose copies are behind, or that are away."""

    @property
    def is_complete(self) -> bool:
        """Whether it has as many copies as it shall have, each with every message."""
        return self.replicas == self.wanted == self.current


def default_replicas(connection: Connection, setting: int) -> int:
    """How many copies a new stream gets; ``setting`` 0: as many as the cluster is good for."""
    if setting:
        return setting
    return CLUSTER_REPLICAS if connection.cluster_servers >= CLUSTER_REPLICAS else 1


def stream_replicas(info: dict[str, Any], setting: int, connection: Connection) -> StreamReplicas:
    """The copies of the stream that the server describes by ``info``. Without a setting a stream
    keeps the copies it has, if there are more."""
    name, replicas = info["config"]["name"], info["config"].get("num_replicas", 1)
    cluster = info.get("cluster") or {}
    followers = cluster.get("replicas") or ()
    missing = sorted(one["name"] for one in followers if not _is_current(one))
    has_leader = not cluster or bool(cluster.get("leader"))
    wanted = default_replicas(connection, setting)
    return StreamReplicas(
        stream=name,
        replicas=replicas,
        wanted=wanted if setting else max(wanted, replicas),
        current=has_leader + len(followers) - len(missing),
        missing=tuple(missing),
    )


def _is_current(follower: dict[str, Any]) -> bool:
    return bool(follower.get("current")) and not follower.get("offline")


async def plan_replicas(
    connection: Connection, subjects: Subjects, setting: int
) -> list[StreamReplicas]:
    """The existing streams that lack copies or have too many, or whose copies are incomplete."""
    found = []
    for name in subjects.streams:
        try:
            info = await connection.api(f"STREAM.INFO.{name}")
        except ApiError as error:
            if error.err_code == STREAM_NOT_FOUND:
                continue
            raise
        found.append(stream_replicas(info, setting, connection))
    return [one for one in found if not one.is_complete]


async def change_replicas(
    connection: Connection,
    plan: Sequence[StreamReplicas],
    on_progress: Callable[[StreamReplicas], None],
) -> None:
    """Bring one stream after the other to the copies it shall have, and wait until each has every
    message. It may be interrupted and repeated. No node may serve the realm: a node that takes a
    partition over changes the journal's configuration as well."""
    for one in plan:
        if one.replicas != one.wanted:
            await _configure(connection, one)
        await _wait_for_copies(connection, one, on_progress)


async def _configure(connection: Connection, one: StreamReplicas) -> None:
    config = (await connection.api(f"STREAM.INFO.{one.stream}"))["config"]
    changed = {**config, "num_replicas": one.wanted}
    try:
        await connection.api(f"STREAM.UPDATE.{one.stream}", changed)
    except ApiError as error:
        raise Failed(
            "STREAM_MISMATCH",
            f"stream {one.stream} cannot have {one.wanted} copies: {error.description}",
            hint="start as many servers of the cluster, or set server.replicas",
        ) from None


class _Seen(NamedTuple):
    current: int
    lag: int


async def _wait_for_copies(
    connection: Connection, one: StreamReplicas, on_progress: Callable[[StreamReplicas], None]
) -> None:
    seen, since_s = _Seen(0, 0), monotonic_s()
    while True:
        try:
            info = await connection.api(f"STREAM.INFO.{one.stream}")
        except (ApiError, Failed):  # The stream elects its leader.
            info = {"config": {"name": one.stream, "num_replicas": 0}}
        now = stream_replicas(info, one.wanted, connection)
        lags = [copy.get("lag", 0) for copy in (info.get("cluster") or {}).get("replicas") or ()]
        if (progress := _Seen(now.current, sum(lags))) != seen:
            seen, since_s = progress, monotonic_s()
            on_progress(now)
        if now.is_complete:
            return
        if monotonic_s() - since_s > _SILENCE_S_MAX:
            raise Failed(
                "SERVER_UNREACHABLE",
                f"stream {one.stream} has {now.current} of {one.wanted} copies",
                hint="start the cluster's other servers, then repeat the command",
            )
        await asyncio.sleep(_POLL_S)
