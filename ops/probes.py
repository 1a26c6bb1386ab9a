"""The probes and gauges of a running node, and its micro service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, get_args

import msgspec

from rookery.actors.kernel.runtime import Kernel
from rookery.bus.event_loop import LoopThread
from rookery.bus.jetstream_api import CONSUMER_NOT_FOUND, ApiError
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.micro_service import Endpoint, MicroService
from rookery.bus.nats import Connection
from rookery.bus.ports import Backpressure
from rookery.bus.streams import mismatches, streams_of
from rookery.bus.subjects import Subjects
from rookery.ops.background_tasks import BackgroundTasks
from rookery.ops.checks import existing_streams
from rookery.ops.http_server import Probe
from rookery.ops.metrics import GaugeValue, NodeMetrics
from rookery.ops.run_services import RunServices
from rookery.ops.server import ServerSupervisor
from rookery.schemas import ids
from rookery.schemas.codec import encode_json, strict
from rookery.schemas.commands import COMMANDS, audience_of
from rookery.schemas.errors import CodedError, Failed
from rookery.schemas.machines.inputs import inputs_of_verb
from rookery.schemas.replies import REPLIES

__all__ = [
    "NOT_RUNNING",
    "PROBE_TIMEOUT_S",
    "NodeProbes",
    "backlog_gauges",
    "build_service",
]

# --- probes ---------------------------------------------------------------------------------------

# The probes and gauges of a running node: whether it lives and serves, and how loaded it is.
#
# They are read by HTTP threads (``/livez``, ``/readyz``, ``/metrics``) while the node works, so
# they read what lives on the bus's loop through the loop, with a timeout. The backlog of the
# realm's streams is read from the server at each scrape; during an outage these gauges are absent,
# and ``/readyz`` reports the outage.


PROBE_TIMEOUT_S: Final = 2.0
NOT_RUNNING: Final = Probe("started", ok=False, detail="the node is not running")


@dataclass(frozen=True, kw_only=True)
class NodeProbes:
    """Reads one node from its start to its stop."""

    loop: LoopThread
    bus: JetStreamBus
    kernel: Kernel
    runs_in_flight: Callable[[], int]
    approvals_waiting: Callable[[], int]
    messages_skipped: Callable[[], int]
    background: BackgroundTasks
    server: ServerSupervisor | None
    """The node's own server, if it has one."""
    runs: RunServices | None
    """``None`` on a node that executes no runs."""

    # --- probes -----------------------------------------------------------------------------------

    def alive(self) -> list[Probe]:
        """Failures that a restart would repair."""
        actors = self.kernel.actors_alive.items()
        return [
            Probe("loop", ok=self._loop_alive()),
            *(Probe(f"actor {family}", ok=alive) for family, alive in actors),
        ]

    def ready(self) -> list[Probe]:
        """Conditions for sending work to this node."""
        kernel, served = self.kernel, len(self.kernel.partitions.served)
        full = kernel.pressure is Backpressure.FULL
        return [
            Probe("server", ok=self.bus.connected),
            self._streams_ok(),
            Probe("journal", ok=not full, detail="out of space" if full else ""),
            Probe("partitions", ok=served > 0, detail=f"{served} served"),
            Probe("draining", ok=not kernel.draining),
            self._background_ok(),
            *self._approvers_ok(),
            *self._secrets_ok(),
        ]

    def _background_ok(self) -> Probe:
        """A failing background task leaves lists, quotas or drains out of date."""
        failing = self.background.failing
        detail = "; ".join(f"{name}: {why}" for name, why in failing.items())
        return Probe("watches", ok=not failing, detail=detail)

    def _approvers_ok(self) -> Iterator[Probe]:
        """Without its list of approvers the node accepts no signed answer."""
        if self.runs is not None:
            reason = self.runs.approvers.unavailable_reason
            yield Probe("approvers", ok=not reason, detail=reason)

    def _secrets_ok(self) -> Iterator[Probe]:
        """Without the key of the realm's secrets the node opens none that is new."""
        if self.runs is not None:
            reason = self.runs.secrets.unavailable_reason
            yield Probe("secrets", ok=not reason, detail=reason)

    def _streams_ok(self) -> Probe:
        """An operator may have edited or removed a stream since the node checked it."""
        specs = streams_of(self.bus.subjects)
        try:
            found = self.loop.run(
                existing_streams(self.bus.connection, specs), timeout_s=PROBE_TIMEOUT_S
            )
        except (CodedError, ApiError, TimeoutError) as error:
            return Probe("streams", ok=False, detail=type(error).__name__)
        wrong = [
            f"{spec.name}: {what}"
            for spec in specs
            for what in (
                mismatches(spec, found[spec.name]["config"])
                if spec.name in found
                else ["is missing"]
            )
        ]
        return Probe("streams", ok=not wrong, detail="; ".join(wrong))

    def _loop_alive(self) -> bool:
        try:
            self.loop.run(_no_operation(), timeout_s=PROBE_TIMEOUT_S)
        except TimeoutError:
            return False
        return True

    # --- gauges -----------------------------------------------------------------------------------

    def gauges(self) -> Iterable[GaugeValue]:
        """The gauges of ``ops/metrics.py``, read now."""
        kernel = self.kernel
        for family, depth in kernel.mailbox_depths.items():
            yield GaugeValue("rookery_mailbox_depth", depth, family)
        for family, cached in kernel.entities_cached.items():
            yield GaugeValue("rookery_entities_cached", cached, family)
        yield GaugeValue("rookery_run_in_flight", self.runs_in_flight())
        yield GaugeValue("rookery_run_executing", 0 if self.runs is None else self.runs.executing)
        yield GaugeValue("rookery_approval_waiting", self.approvals_waiting())
        yield GaugeValue("rookery_journal_skipped", self.messages_skipped())
        forged = 0 if self.runs is None else self.runs.approvers.forged
        yield GaugeValue("rookery_approver_forged", forged)
        yield GaugeValue("rookery_partition_owned", len(kernel.partitions.served))
        yield GaugeValue("rookery_journal_lost_ack_total", self.bus.journal.counters.lost_acks)
        if self.server is not None:
            yield GaugeValue("rookery_server_restart_total", self.server.restarts)
        yield from self._hook_gauges()
        yield from self._backlog()

    def _hook_gauges(self) -> Iterator[GaugeValue]:
        for hook, late in self.bus.hook_services.late.items():
            yield GaugeValue("rookery_hook_late_total", late, hook)
        observers = {} if self.runs is None else self.runs.observers.counts
        for hook, counts in observers.items():
            yield GaugeValue("rookery_hook_queue_depth", counts.queued, hook)
            yield GaugeValue("rookery_hook_observed_total", counts.invoked, hook)
            yield GaugeValue("rookery_hook_dropped_total", counts.dropped, hook)
            yield GaugeValue("rookery_hook_observer_failed_total", counts.failed, hook)

    def _backlog(self) -> list[GaugeValue]:
        reading = backlog_gauges(self.bus.connection, self.bus.subjects)
        try:
            return self.loop.run(reading, timeout_s=PROBE_TIMEOUT_S)
        except TimeoutError:
            return []


async def _no_operation() -> None:
    """Return; that it ran proves that the loop runs."""


_TIMEOUT_S = 1.0


async def backlog_gauges(connection: Connection, subjects: Subjects) -> list[GaugeValue]:
    """Commands that wait in the inbox, and how many dead letters were ever added."""
    try:
        dead, waiting = await asyncio.gather(
            connection.api(f"STREAM.INFO.{subjects.dead_stream}", timeout_s=_TIMEOUT_S),
            _waiting(connection, subjects.inbox_stream),
        )
    except (ApiError, Failed):
        return []
    return [
        GaugeValue("rookery_dead_letter_total", dead["state"]["last_seq"]),
        GaugeValue("rookery_inbox_lag_commands", waiting),
    ]


async def _waiting(connection: Connection, stream: str) -> int:
    """What the consumers have not delivered or not acknowledged. The leader of a cluster knows
    their names, and each one's own leader its state; a list of states would be gathered from all
    servers."""
    # One consumer per partition, so all are on the first page.
    listed = await connection.api(f"CONSUMER.NAMES.{stream}", timeout_s=_TIMEOUT_S)
    names = listed["consumers"] or ()
    states = await asyncio.gather(*(_state(connection, f"{stream}.{name}") for name in names))
    return sum(one["num_pending"] + one["num_ack_pending"] for one in states if one)


async def _state(connection: Connection, consumer: str) -> dict[str, Any] | None:
    try:
        return await connection.api(f"CONSUMER.INFO.{consumer}", timeout_s=_TIMEOUT_S)
    except ApiError as error:
        if error.err_code != CONSUMER_NOT_FOUND:
            raise
        return None  # A new owner of the partition has replaced it meanwhile.


# --- micro service --------------------------------------------------------------------------------

# A node as a NATS micro service: its verbs with their schemas, and its statistics.


def build_service(
    node: str, version: str, verbs: Iterable[str], metrics: NodeMetrics, *, now_ms: int
) -> MicroService:
    """The description of this node as a service."""
    return MicroService(
        node=node,
        version=version,
        started=datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(),
        endpoints=tuple(_endpoint(verb) for verb in sorted(verbs)),
        stats=metrics.endpoint_stats,
    )


@cache
def _endpoint(verb: str) -> Endpoint:
    audience = audience_of(verb).value
    request, response = _schema(strict(COMMANDS[verb])), _schema(REPLIES[verb])
    return Endpoint(verb, request, response, audience, inputs_of_verb(verb))


def _schema(kind: Any) -> str:
    """The JSON Schema of a struct, or of a union, which msgspec cannot express in one schema."""
    kinds = get_args(kind) or (kind,)
    schemas, made = msgspec.json.schema_components(
        kinds, schema_hook=ids.typed_text_schema, ref_template="#/$defs/{name}"
    )
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
    return encode_json({**schema, "$defs": made}).decode()
