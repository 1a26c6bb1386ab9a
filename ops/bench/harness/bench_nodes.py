"""The processes under test: a kernel with the benches' own family, or a whole node.

A process prints ``ready`` and serves until its input ends. For every line it reads, it prints its
usage as JSON.
"""

from __future__ import annotations

import sys

import msgspec

from rookery.actors.kernel import Kernel, KernelSettings, NodeIdentity
from rookery.bus.clock import SystemClock, entropy
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.loop_thread import LoopThread
from rookery.ops.bench.harness.bench_decider import BenchDecider
from rookery.ops.bench.harness.load import Task
from rookery.ops.bench.harness.process_usage import usage_here
from rookery.ops.config import Config, NodeConfig, ServerConfig
from rookery.ops.logs import configure
from rookery.ops.memory_tuning import tune_memory
from rookery.ops.node import Node

__all__ = ["serve_runs", "serve_turns", "serve_whole"]


def serve_turns(task: Task) -> None:
    """Serve with a kernel alone, so that only the kernel is measured."""
    configure("warning", "text", sys.stderr)
    thread = LoopThread()
    bus = JetStreamBus(task.url, sync=task.sync)
    thread.run(bus.start())
    settings = KernelSettings(
        identity=NodeIdentity("bench", f"bench.{entropy(6).hex()}", b"", lambda _: False),
        now_ms=SystemClock().now_ms,
        uptime_s=SystemClock().uptime_s,
    )
    kernel = Kernel(bus, thread, [BenchDecider()], settings, effect_handlers={}, queries={})
    kernel.start()
    _wait_for_stdin_end()
    kernel.stop()
    thread.run(bus.stop())
    thread.close()


def serve_whole(task: Task) -> None:
    """Serve with the node of ``rookery up``, without executing runs."""
    configure("warning", "text", sys.stderr)
    server = ServerConfig(sync=task.sync, accept_unknown_durability=True)
    with Node(Config(url=task.url, server=server, node=NodeConfig(driver=task.driver))):
        _wait_for_stdin_end()


def serve_runs(task: Task) -> None:
    """Serve with a node that executes runs; its programs have a tool to call."""
    configure("warning", "text", sys.stderr)
    server = ServerConfig(sync=task.sync, accept_unknown_durability=True)
    settings = NodeConfig(driver="sandbox", tools="rookery.ops.bench.loads.run_tools:registry")
    with Node(Config(url=task.url, server=server, node=settings)):
        _wait_for_stdin_end()


def _wait_for_stdin_end() -> None:
    tune_memory()  # As `rookery up` does.
    print("ready", flush=True)
    for _ in sys.stdin:
        print(msgspec.json.encode(usage_here()).decode(), flush=True)
