"""What every run gets of its node: its guest, its tools and the highest limits."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import ExitStack

from msgspec import UNSET

from rookery.actors.agents import ModelBudgets, Models
from rookery.actors.execution import (
    RunProvisioner,
)
from rookery.actors.hooks import NodeHooks
from rookery.actors.policy import RunPolicies
from rookery.actors.sandbox import Sandbox
from rookery.actors.sandbox.python import GuestCache, RealmBuild, cache_folder
from rookery.actors.sandbox.runtime import open_sandbox
from rookery.actors.sandbox.typescript import JavaScriptBuild
from rookery.actors.tools.authoring import ToolRegistry
from rookery.bus.clock import entropy
from rookery.bus.ports import Bus, BusLoop
from rookery.ops.config import BudgetsConfig, LimitsConfig
from rookery.ops.policy import judged_tools
from rookery.ops.processes import ProcessShare
from rookery.ops.surfaces import SurfaceServices
from rookery.schemas.run import SessionLimits

__all__ = ["load_sandbox", "model_budgets", "provision", "retry_jitter"]

LIVE_MB_MAX = 2048
"""Of a node's programs that wait; while they hold more, no other run begins."""


async def provision(
    bus: Bus,
    sandbox: Sandbox,
    surfaces: SurfaceServices,
    limits: LimitsConfig,
    *,
    registry: ToolRegistry,
    models: Models,
    policies: RunPolicies,
) -> RunProvisioner:
    """To be called before the realm's catalogue adds to the node's tools."""
    return RunProvisioner(
        builds=sandbox.builds,
        tools=judged_tools(policies.current, surfaces.tools),
        catalogue=await bus.blobs.put(surfaces.tools.catalogue_bytes),
        limits_max=_limits_max(limits),
        entropy=entropy,
        hooks=NodeHooks(registry.hooks),
        surfaces=surfaces.live.visible_to,
        models=models,
        policy=policies.pinned,
    )


async def load_sandbox(
    bus: Bus,
    loop: BusLoop,
    node: str,
    *,
    key: bytes,
    packages: Sequence[str],
    share: ProcessShare,
    fibers: bool,
    opened: ExitStack,
) -> Sandbox:
    """Open the sandbox with the realm's guest, and store that guest for other nodes."""
    cache = GuestCache(cache_folder(os.environ), packages=packages)
    shared = RealmBuild(cache, bus.blobs, bus.claims, node)
    await shared.agree()
    await bus.blobs.put((await asyncio.to_thread(JavaScriptBuild.installed, cache)).piece)
    sandbox = await asyncio.to_thread(
        open_sandbox,
        key,
        cache,
        lambda build: loop.run(shared.fetch(build)),
        has_fibers=fibers,
        live_mb_max=share.divide(LIVE_MB_MAX),
    )
    opened.callback(sandbox.close)
    return sandbox


def _limits_max(limits: LimitsConfig) -> SessionLimits:
    """The highest limits a run or a session may request."""
    return SessionLimits(
        memory_mb=limits.memory_mb_max,
        cpu_ms=limits.cpu_ms_max,
        wall_ms=limits.wall_ms_max,
        max_stdout_bytes=limits.stdout_bytes_max,
        max_external_calls=limits.external_calls_max,
        max_stack_depth=limits.stack_depth_max,
    )


def model_budgets(config: BudgetsConfig) -> ModelBudgets:
    """What the runs of a session may use of models together."""
    tokens, cost = config.session_tokens, config.session_cost
    return ModelBudgets(
        UNSET if tokens is None else tokens, UNSET if cost is None else round(cost * 1_000_000)
    )


def retry_jitter() -> float:
    """By which the delay before a retry is multiplied, so that many do not come back together."""
    return 0.9 + 0.2 * int.from_bytes(entropy(2)) / 0xFFFF
