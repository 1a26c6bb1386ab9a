"""A node: one process that hosts actors. Wires server, bus, kernel and concerns; owns no rule.

Without a URL it brings an embedded server of its own and takes it down again, after itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from collections.abc import Iterable
from importlib.metadata import version
from types import TracebackType

import msgspec

from rookery.actors.admission.claim import ClaimRegistry
from rookery.actors.admission.concern import AdmissionConcern, performers
from rookery.actors.admission.load import RealmLoad
from rookery.actors.approvals.concern import ApprovalsConcern
from rookery.actors.kernel.failpoints import Failpoints
from rookery.actors.kernel.kernel import Kernel, Settings
from rookery.actors.kernel.partitions import Holder
from rookery.actors.leases.concern import LeasesConcern
from rookery.actors.peers.concern import PeersConcern
from rookery.actors.surfaces.concern import SurfacesConcern
from rookery.actors.turns.concern import TurnsConcern
from rookery.actors.views.sessions import SessionsView
from rookery.bus.clock import SystemClock, entropy
from rookery.bus.connection import ApiError
from rookery.bus.jetstream import JetStreamBus
from rookery.bus.loop import LoopThread
from rookery.bus.ports import PARTITIONS, Pressure
from rookery.bus.server import EmbeddedServer
from rookery.bus.streams import mismatches, streams_of
from rookery.bus.subjects import Subjects
from rookery.ops.backlog import backlog_readings
from rookery.ops.config import Config
from rookery.ops.doctor import durability_of, is_embedded
from rookery.ops.health import Probe
from rookery.ops.metrics import Metrics, Reading
from rookery.ops.presence import is_dead, presence_here
from rookery.ops.reach import find_url, store_of
from rookery.ops.server_checks import streams_there
from rookery.schemas.errors import CodedError, Failed
from rookery.schemas.facts.node import Started, Stopped

__all__ = ["Node"]

log = logging.getLogger(__name__)

LOAD_S = 3.0
PROBE_S = 2.0


class Node:
    """Start it and it serves its realm until it is stopped."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._clock = SystemClock()
        self.metrics = Metrics(version("rookery"))
        self.name = config.node.name or _name()
        self._server: EmbeddedServer | None = None
        self._loop = LoopThread()
        self._bus: JetStreamBus | None = None
        self._kernel: Kernel | None = None
        self._watching: asyncio.Task[None] | None = None
        self.url = ""

    def start(self) -> None:
        """Serve; returns once this node has its share of the realm's partitions."""
        try:
            self._start_bus()
            self._start_kernel()
        except BaseException:
            self._tear_down()
            raise

    def stop(self, reason: str = "stopped") -> bool:
        """Drain and stop; ``False`` if work was left for the next node."""
        kernel = self._kernel
        try:
            return kernel is None or kernel.stop(Stopped(node=self.name, reason=reason))
        finally:
            self._kernel = None
            self._tear_down()

    def __enter__(self) -> Node:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop(kind.__name__ if kind else "stopped")

    def _start_bus(self) -> None:
        config = self._config
        url = find_url(config) if config.url else None
        if url is None:
            self._server = EmbeddedServer(store_of(config).path, sync=config.server.sync)
            self._server.start()
            url = self._server.url
        self.url = url
        bus = JetStreamBus(
            url,
            realm=config.realm,
            credentials=config.server.credentials_file,
            sync=config.server.sync if self._server else "always",
        )
        self._loop.run(bus.start())
        self._bus = bus

    def _start_kernel(self) -> None:
        bus, config = self._bus, self._config
        assert bus is not None
        durability = self._loop.run(self._durability(bus))
        here, realm_load = presence_here(), RealmLoad()
        self._sessions = SessionsView(bus.journal, realm_load)
        self._loop.run(self._sessions.refresh())
        kernel = Kernel(
            bus,
            self._loop,
            [
                AdmissionConcern(
                    queued_max=config.quotas.queue_length_max,
                    in_flight_max=config.quotas.runs_in_flight_max,
                    realm_load=realm_load,
                    claims=ClaimRegistry(),
                ),
                TurnsConcern(),
                SurfacesConcern(),
                LeasesConcern(),
                PeersConcern(),
                ApprovalsConcern(),
            ],
            Settings(
                holder=Holder(self.name, msgspec.json.encode(here), is_dead),
                epoch=f"{self.name}.{entropy(6).hex()}",
                now_ms=self._clock.now_ms,
                observer=self.metrics,
                failpoints=Failpoints(os.environ.get("ROOKERY_FAILPOINT", "")),
                passivate_after_ms=int(config.node.passivate_after_s * 1000),
                drain_timeout_s=config.node.drain_timeout_s,
                payload_bytes_max=config.limits.payload_bytes_max,
            ),
            performers=performers(bus.door),
            queries={"sessions": self._sessions.answer},
        )
        self._kernel = kernel
        self._load = realm_load
        self.metrics.pull_from(self._readings)
        kernel.start()
        self._loop.run(self._watch_load(kernel))
        kernel.record(
            Started(
                node=self.name,
                version=version("rookery"),
                host=here.host,
                pid=here.pid,
                durability=durability,
            )
        )

    async def _watch_load(self, kernel: Kernel) -> None:
        """What other nodes accept counts towards the realm's quota, some seconds late."""

        async def watch() -> None:
            while True:
                await asyncio.sleep(LOAD_S)
                if len(kernel.partitions.served) < PARTITIONS:
                    try:
                        await self._sessions.refresh()
                    except Failed as error:
                        log.info("the realm's load is not known", extra={"code": error.code})

        self._watching = asyncio.get_running_loop().create_task(watch())

    async def _durability(self, bus: JetStreamBus) -> str:
        """What an ack of this server is worth; refuses to serve where it may be worth nothing."""
        stream = Subjects(self._config.realm).journal_stream
        info = await bus.connection.api(f"STREAM.INFO.{stream}")
        return durability_of(
            self._config,
            embedded=self._server is not None or is_embedded(self._config),
            replicas=info["config"].get("num_replicas", 1),
        )

    def _tear_down(self) -> None:
        if self._bus is not None:
            self._loop.run(self._bus.stop())
            self._bus = None
        self._loop.close()
        if self._server is not None:
            self._server.stop()
            self._server = None

    # --- for whoever looks after it -------------------------------------------------------------

    def alive(self) -> list[Probe]:
        """What a restart would mend."""
        kernel = self._kernel
        if kernel is None:
            return [Probe("started", ok=False, detail="the node is not running")]
        probes = [Probe("loop", ok=self._loop_turns())]
        for family, alive in kernel.actors_alive.items():
            probes.append(Probe(f"actor {family}", ok=alive))
        return probes

    def ready(self) -> list[Probe]:
        """What must hold for work to be sent here."""
        kernel, bus = self._kernel, self._bus
        if kernel is None or bus is None:
            return [Probe("started", ok=False, detail="the node is not running")]
        served = len(kernel.partitions.served)
        full = kernel.pressure is Pressure.FULL
        return [
            Probe("server", ok=bus.connected),
            self._streams_right(bus),
            Probe("journal", ok=not full, detail="out of space" if full else ""),
            Probe("partitions", ok=served > 0, detail=f"{served} served"),
            Probe("draining", ok=not kernel.draining),
        ]

    def _streams_right(self, bus: JetStreamBus) -> Probe:
        """Somebody may have edited or removed a stream since we made or checked it."""
        specs = streams_of(Subjects(self._config.realm))
        try:
            found = self._loop.run(streams_there(bus.connection, specs), timeout_s=PROBE_S)
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

    def _loop_turns(self) -> bool:
        try:
            self._loop.run(_nothing(), timeout_s=PROBE_S)
        except TimeoutError:
            return False
        return True

    def _readings(self) -> Iterable[Reading]:
        kernel, bus = self._kernel, self._bus
        if kernel is None or bus is None:
            return
        for family, depth in kernel.mailbox_depths.items():
            yield Reading("rookery_mailbox_depth", depth, family)
        for family, cached in kernel.entities_cached.items():
            yield Reading("rookery_entities_cached", cached, family)
        yield Reading("rookery_run_in_flight", self._load.total)
        yield Reading("rookery_partition_owned", len(kernel.partitions.served))
        yield Reading("rookery_journal_lost_ack_total", bus.journal.counters.lost_acks)
        yield from self._backlog(bus)

    def _backlog(self, bus: JetStreamBus) -> list[Reading]:
        readings = backlog_readings(bus.connection, Subjects(self._config.realm))
        try:
            return self._loop.run(readings, timeout_s=PROBE_S)
        except TimeoutError:
            return []


async def _nothing() -> None:
    """Proof that the loop takes up work."""


def _name() -> str:
    """A name no other node has: a restarted process is another node."""
    host = "".join(c if c.isalnum() or c in "-_" else "-" for c in platform.node())[:32]
    return f"{host or 'node'}-{os.getpid()}-{entropy(2).hex()}"
