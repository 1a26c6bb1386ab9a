"""Hooks: functions that observe, judge or change the steps of a run, and their coordinator."""

from __future__ import annotations

from rookery.actors.hooks.context import (
    HookInvocationOutcome,
    HookInvocationStatus,
    HookLifecycleContext,
)
from rookery.actors.hooks.coordinator import HookLifecycleCoordinator, validate_package_hooks
from rookery.actors.hooks.executors import HookExecutors

__all__ = [
    "HookExecutors",
    "HookInvocationOutcome",
    "HookInvocationStatus",
    "HookLifecycleContext",
    "HookLifecycleCoordinator",
    "validate_package_hooks",
]
