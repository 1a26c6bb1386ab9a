"""The supervisor of a node's processes: one server, one ready line, one health port, one drain.

A process that ends is started again, after a pause that grows; meanwhile the others own its
partitions. The supervisor itself serves no partition. If it is killed, all processes end at once.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from rookery.actors.slot_limits import AllocationRound, SlotAllocator
from rookery.bus.clock import SystemClock
from rookery.bus.event_loop import LoopThread
from rookery.bus.ports import PARTITIONS, Backoff
from rookery.bus.roles import Role
from rookery.ops.approval_dispatchers import open_callback
from rookery.ops.config import Config
from rookery.ops.http_server import Page, Probe
from rookery.ops.metrics import GaugeValue
from rookery.ops.probes import NOT_RUNNING
from rookery.ops.process_identity import process_name
from rookery.ops.processes.managed_process import (
    DeclareTools,
    DrainRequested,
    FromProcess,
    ManagedProcess,
    ProcessReady,
    ReportSlots,
    Setup,
    StateName,
)
from rookery.ops.processes.process_metrics import METRICS_FOLDER, ProcessMetrics
from rookery.ops.processes.process_share import read_slot_usage
from rookery.ops.server import ConfiguredServer, RealmServer, ServerSupervisor
from rookery.schemas.errors import CodedError, Refused

__all__ = ["ProcessGroup"]

log = logging.getLogger(__name__)

PAUSE_S_MIN: Final = 0.1
PAUSE_S_MAX: Final = 10.0
STABLE_AFTER_S: Final = 60.0
"""A process that has run for so long is started again without a long pause."""
STATE_TIMEOUT_S: Final = 5.0
"""For an answer about its state; longer than the timeouts of its own probes."""
PAGE_TIMEOUT_S: Final = 8.0
START_POLL_S: Final = 0.5
"""The main thread wakes so often during a start: only then does Python run signal handlers."""
STOP_GRACE_S: Final = 15.0
"""Beyond its drain time; then a process is killed."""


class ProcessGroup:
    """Serves its realm in ``node.processes`` processes, from ``start`` to ``stop``."""

    def __init__(
        self,
        config: Config,
        on_drain: Callable[[], None],
        on_loss: Callable[[CodedError], None],
        stopping: threading.Event,
    ) -> None:
        """As ``Node``; ``Refused`` if the limits cannot be divided."""
        _check(config)
        self.name = config.node.name or process_name()
        self._config = replace(config, node=replace(config.node, name=self.name))
        self._on_drain, self._on_loss, self._start_stopped = on_drain, on_loss, stopping
        self._count = config.node.processes
        self._server: ServerSupervisor | None = None
        self._loop: LoopThread | None = None
        """Set while the processes run."""
        self._clock = SystemClock()
        self._allocator = SlotAllocator(self._count)
        self._allocating: asyncio.TimerHandle | None = None
        self._processes: dict[int, ManagedProcess] = {}
        """Those that run now."""
        self._supervising: list[asyncio.Task[None]] = []
        self._started: dict[int, asyncio.Future[None]] = {}
        """Done once the process has served for the first time, or could not."""
        self._folder = Path()
        self._metrics: ProcessMetrics | None = None
        self._stopping = asyncio.Event()
        self._stop_reason, self._drained = "", False
        self._opened = ExitStack()
        self._realm_server: RealmServer
        self.url = self.callback_url = ""

    def start(self) -> bool:
        """Return once each process owns its share of the realm's partitions; ``False`` if the node
        was stopped before. Such a start, and one that fails, ends everything it started."""
        with ExitStack() as opened:
            self._open_server(opened)
            folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="rookery-metrics-"))
            self._folder = Path(folder)
            self._metrics = ProcessMetrics(self._folder, version("rookery"), self._count)
            loop = LoopThread("rookery-processes")
            opened.callback(loop.close)
            opened.callback(lambda: loop.run(self._stop("stopped")))
            self._loop = loop
            loop.run(self._start_processes())
            while not loop.run(self._are_started(START_POLL_S)):
                if self._start_stopped.is_set():
                    return False
            self._open_callback(loop, opened)
            self._opened = opened.pop_all()
        return True

    def stop(self, reason: str = "stopped") -> bool:
        """Drain all processes and stop; ``False`` if the next node has to finish some work."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.run(self._stop(reason))
        self._opened.close()
        return self._drained

    def _open_server(self, opened: ExitStack) -> None:
        config = self._config
        server = ConfiguredServer(config).find(Role.NODE) if config.url else None
        if server is None:
            self._server = ServerSupervisor(ConfiguredServer(config).embedded(), self._on_loss)
            self._server.start()
            opened.callback(self._server.stop)
            server = self._server.realm_server
        self._realm_server, self.url = server, server.url

    def _open_callback(self, loop: LoopThread, opened: ExitStack) -> None:
        """The supervisor has the webhook's endpoint: a port has one owner."""
        config = self._config
        client = self._realm_server.client(config.realm)
        self.callback_url = open_callback(
            config.approvals, loop, client, opened, self._clock.now_ms
        )

    # --- processes, on the loop -------------------------------------------------------------------

    async def _start_processes(self) -> None:
        loop = asyncio.get_running_loop()
        self._started = {number: loop.create_future() for number in range(1, self._count + 1)}
        self._supervising = [loop.create_task(self._supervise(number)) for number in self._started]

    async def _are_started(self, timeout_s: float) -> bool:
        """Whether all processes serve; raises the error of one that cannot start."""
        done, waiting = await asyncio.wait(
            self._started.values(), timeout=timeout_s, return_when=asyncio.FIRST_EXCEPTION
        )
        if errors := [error for future in done if (error := future.exception())]:
            for future in waiting:
                future.cancel()
            raise errors[0]
        return not waiting

    async def _supervise(self, number: int) -> None:
        """Run one process, and its successors, until the group stops. No error ends that, except
        one at the start of the node."""
        loop, pauses = asyncio.get_running_loop(), Backoff(PAUSE_S_MIN, PAUSE_S_MAX)
        started = self._started[number]
        while not self._stopping.is_set():
            began_s = loop.time()
            try:
                await self._run_process(number)
            except Exception as error:
                if not started.done():
                    return started.set_exception(error)
                log.error("process not started", extra={"number": number}, exc_info=error)
            if loop.time() - began_s >= STABLE_AFTER_S:
                pauses.reset()
            with suppress(TimeoutError):
                async with asyncio.timeout(pauses.next_s()):
                    await self._stopping.wait()
        return None

    async def _run_process(self, number: int) -> None:
        """Run one process to its end; raise its error if it does not start."""
        setup = Setup(self._config, number, self._realm_server, self._server is not None)
        process = await ManagedProcess.start(setup, {METRICS_FOLDER: str(self._folder)})
        self._processes[number] = process
        if self._stopping.is_set():
            process.stop(self._stop_reason)
        try:
            code = await process.run(self._on_message)
        finally:
            del self._processes[number]
            self._on_end(process)
        self._drained = self._drained and process.drained
        if not (process.is_ready or process.drained):
            raise process.error
        if not self._stopping.is_set():
            about = {"node": self.name, "number": number, "exit": code}
            log.error("process of the node ended, starting another", extra=about)

    def _on_message(self, process: ManagedProcess, message: FromProcess) -> None:
        match message:
            case ProcessReady():
                if not self._started[process.number].done():
                    self._started[process.number].set_result(None)
            case DrainRequested():
                self._on_drain()
            case DeclareTools(limits):
                process.tools = [limit.tool for limit in limits]
                for notice in self._allocator.join(process.number, limits):
                    process.send(notice)
            case ReportSlots(reports):
                now_ms = self._clock.now_ms()
                self._allocate(self._allocator.report(process.number, reports, now_ms))
            case _:
                """The process has handled it."""

    def _on_end(self, process: ManagedProcess) -> None:
        assert self._metrics is not None
        self._metrics.drop(process.number)
        used = read_slot_usage(self._folder, process.number, process.tools)
        now_ms = self._clock.now_ms()
        self._allocate(self._allocator.release(process.number, now_ms, used))

    def _allocate(self, allocated: AllocationRound) -> None:
        """Send what the allocator decided, and ask it again when time frees a slot."""
        for number, notice in allocated.notices:
            if (process := self._processes.get(number)) is not None:
                process.send(notice)
        if self._allocating is not None:
            self._allocating.cancel()
            self._allocating = None
        if allocated.due_in_ms is not None:
            loop = asyncio.get_running_loop()
            self._allocating = loop.call_later(allocated.due_in_ms / 1_000, self._allocate_again)

    def _allocate_again(self) -> None:
        self._allocate(self._allocator.serve(self._clock.now_ms()))

    async def _stop(self, reason: str) -> None:
        if self._stopping.is_set():
            return
        self._stop_reason, self._drained = reason, True
        self._stopping.set()
        for process in self._processes.values():
            process.stop(reason)
        grace_s = self._config.node.drain_timeout_s + STOP_GRACE_S
        running = [task for task in self._supervising if not task.done()]
        if running:
            await asyncio.wait(running, timeout=grace_s)
        for process in self._processes.values():
            log.error("process does not end, killed", extra={"number": process.number})
            process.kill()
        await asyncio.gather(*self._supervising, return_exceptions=True)

    # --- probes and metrics -----------------------------------------------------------------------

    def alive(self) -> list[Probe]:
        """Failures that a restart of the node would repair."""
        return self._read_probes("alive")

    def ready(self) -> list[Probe]:
        """Conditions for sending work to this node: all its processes serve."""
        return self._read_probes("ready")

    def page(self) -> Page:
        """The answer to ``/metrics``."""
        if self._loop is None:
            return Page(503, "text/plain", b"the node is not running\n")
        return self._loop.run(self._page(), PAGE_TIMEOUT_S)

    def _read_probes(self, name: StateName) -> list[Probe]:
        if self._loop is None:
            return [NOT_RUNNING]
        return self._loop.run(self._probes(name), PAGE_TIMEOUT_S)

    async def _probes(self, name: StateName) -> list[Probe]:
        numbers = range(1, self._count + 1)
        read = await asyncio.gather(*(self._probes_of(number, name) for number in numbers))
        return [probe for probes in read for probe in probes]

    async def _probes_of(self, number: int, name: StateName) -> Iterable[Probe]:
        """A process that is being started again fails to be ready, and needs no restart."""
        what, process = f"process {number}", self._processes.get(number)
        if process is None or not process.is_ready:
            return [Probe(what, ok=name == "alive", detail="starting")]
        read = await process.read_state(name, STATE_TIMEOUT_S)
        if read is None:
            return [Probe(what, ok=False, detail="does not answer")]
        return [replace(probe, name=f"{what} {probe.name}") for probe in read.probes]

    async def _page(self) -> Page:
        assert self._metrics is not None
        asked = [process for process in self._processes.values() if process.is_ready]
        answers = await asyncio.gather(
            *(process.read_state("gauges", STATE_TIMEOUT_S) for process in asked)
        )
        gauges = {
            process.number: answer.gauges
            for process, answer in zip(asked, answers, strict=True)
            if answer is not None and process.number in self._processes
        }
        own = (
            []
            if self._server is None
            else [GaugeValue("rookery_server_restart_total", self._server.restarts)]
        )
        pids = {process.number: process.pid for process in self._processes.values()}
        return self._metrics.page(gauges, pids, own)


def _check(config: Config) -> None:
    """Refuse limits of which some process would have nothing."""
    if config.quotas.runs_in_flight_max < PARTITIONS:
        raise Refused(
            "CONFIG_INVALID",
            f"quotas.runs_in_flight_max = {config.quotas.runs_in_flight_max}: the processes of a "
            f"node divide it by their partitions, and it is at least {PARTITIONS}",
            hint="raise it, or set node.processes to 1",
        )
