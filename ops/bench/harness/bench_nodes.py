"""The processes under test: a kernel with the benches' own family, or a whole node."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import msgspec

from rookery.actors.kernel import Decider
from rookery.actors.kernel.runtime import Kernel, KernelSettings, NodeIdentity
from rookery.bus.clock import SystemClock, entropy
from rookery.bus.event_loop import LoopThread
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.ops.bench.harness.load import Task
from rookery.ops.bench.harness.process_usage import usage_here
from rookery.ops.config import Config, NodeConfig, PeersConfig, ServerConfig
from rookery.ops.logs import configure
from rookery.ops.memory_tuning import tune_memory
from rookery.schemas.codec import FactCodec
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import Refused
from rookery.schemas.protection.bindings import (
    BindingSettings,
    ClientCredentialsSettings,
    StaticSettings,
)

__all__ = [
    "COMMAND",
    "FAMILY",
    "VERB",
    "Advance",
    "Advanced",
    "BenchDecider",
    "BenchState",
    "serve_hooks",
    "serve_leases",
    "serve_peers",
    "serve_runs",
    "serve_turns",
    "serve_whole",
]

# --- bench decider --------------------------------------------------------------------------------

# The benches' own family: a turn that advances step by step, with the smallest possible decider.
#
# A command of about 160 bytes leaves one fact of about 260 bytes, the usual sizes of a session.
# Nodes do not host this decider.


FAMILY = "bench"
VERB = "advance"
COMMAND = (
    b'{"tool":"files_read","arguments":{"path":"reports/2026/november.md","encoding":"utf-8",'
    b'"from_line":120,"to_line":180},"call_id":"call-0017","timeout_ms":2000}'
)
_TOOL_CHARACTERS_MAX = 64
_DAY_S = 86_400


class Advance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Take the next step, with this call."""

    tool: str
    arguments: dict[str, Any]
    call_id: str
    timeout_ms: int = 10_000


class Advanced(Fact, frozen=True, kw_only=True, tag="bench.advanced.v1"):
    """The turn has taken this step."""

    step: int
    tool: str
    call_id: str


class BenchState(msgspec.Struct, frozen=True):
    """A turn; also the reply."""

    step: int = 0


class BenchDecider(Decider):
    """Decides for turns; every key is a turn."""

    family = FAMILY
    verbs: Mapping[str, type[msgspec.Struct]] = MappingProxyType({VERB: Advance})
    codec: FactCodec[Any] = FactCodec(Advanced)
    initial_state = BenchState()

    def decide(
        self, state: BenchState, command: Command[Advance], *, now_ms: int
    ) -> Sequence[Advanced]:
        del now_ms
        call = command.body
        if len(call.tool) > _TOOL_CHARACTERS_MAX:
            raise Refused("INVALID_ARGUMENT", f"the tool's name has {len(call.tool)} characters")
        return [Advanced(step=state.step + 1, tool=call.tool, call_id=call.call_id)]

    def evolve(self, state: BenchState, fact: Advanced) -> BenchState:
        del state
        return BenchState(fact.step)


# --- bench nodes ----------------------------------------------------------------------------------

# A process prints ``ready`` and serves until its input ends. For every line it reads, it prints its
# usage as JSON.


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
    settings = NodeConfig(driver=task.driver)
    _serve(Config(url=task.url, store=task.store, server=server, node=settings))


def serve_runs(task: Task) -> None:
    """Serve with a node that executes runs; its programs have a tool to call."""
    configure("warning", "text", sys.stderr)
    server = ServerConfig(sync=task.sync, accept_unknown_durability=True)
    settings = NodeConfig(driver="sandbox", tools="rookery.ops.bench.loads.run_load:registry")
    config = Config(url=task.url, realm=task.realm, store=task.store, server=server, node=settings)
    _serve(config)


def serve_hooks(task: Task) -> None:
    """Serve with a node that executes runs, and has functions that hooks can name."""
    configure("warning", "text", sys.stderr)
    server = ServerConfig(sync=task.sync, accept_unknown_durability=True)
    settings = NodeConfig(driver="sandbox", tools="rookery.ops.bench.loads.hook_load:registry")
    _serve(Config(url=task.url, store=task.store, server=server, node=settings))


def serve_peers(task: Task) -> None:
    """Serve with a node whose programs have the tools of peers."""
    configure("warning", "text", sys.stderr)
    _serve(
        Config(
            url=task.url,
            realm=task.realm,
            store=task.store,
            server=ServerConfig(sync=task.sync, accept_unknown_durability=True),
            node=NodeConfig(driver="sandbox"),
            peers=PeersConfig(tools=task.realm == "default"),
        )
    )


def serve_leases(task: Task) -> None:
    """Serve with a node that executes runs and renews credentials: of a file, which last for a day,
    and of the authorization server."""
    configure("warning", "text", sys.stderr)
    with TemporaryDirectory(prefix="rookery-bench-") as folder:
        secret = Path(folder, "secret")
        secret.write_text("bench", encoding="utf-8")
        source = f"file:{secret}"
        tools = "rookery.ops.bench.loads.lease_load:registry"
        settings = NodeConfig(driver="sandbox", tools=tools)
        bindings: dict[str, BindingSettings] = {
            "held": StaticSettings(value=source, lasts_s=_DAY_S),
            "brief": ClientCredentialsSettings(
                token_url=task.token_url, client_id="bench", client_secret=source
            ),
        }
        server = ServerConfig(sync=task.sync, accept_unknown_durability=True)
        config = Config(
            url=task.url, store=task.store, server=server, node=settings, bindings=bindings
        )
        _serve(config)


def _serve(config: Config) -> None:
    from rookery.ops.node import Node  # noqa: PLC0415 - slow, and loads use the decider alone.

    with Node(config):
        _wait_for_stdin_end()


def _wait_for_stdin_end() -> None:
    tune_memory()  # As `rookery up` does.
    print("ready", flush=True)
    for _ in sys.stdin:
        print(msgspec.json.encode(usage_here()).decode(), flush=True)
