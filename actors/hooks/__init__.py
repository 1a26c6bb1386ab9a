"""Hooks: functions and rules that judge or change the steps of a run, and their coordinator.

``authoring`` makes hooks of functions, ``node_hooks`` holds those of a node, ``points`` invokes
them for a run by ``coordinator``, and ``changes`` says what becomes of a call; the turn's decider
derives it again from the recorded facts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.hooks.authoring import (
        deny,
        hook,
        modify_arguments,
        require_approval,
        rewrite_result,
        rule_hook,
    )
    from rookery.actors.hooks.changes import call_verdict, outcome_after_hooks
    from rookery.actors.hooks.context import (
        HookInvocationOutcome,
        HookInvocationStatus,
        HookLifecycleContext,
    )
    from rookery.actors.hooks.coordinator import HookLifecycleCoordinator, validate_package_hooks
    from rookery.actors.hooks.executors import HookExecutors
    from rookery.actors.hooks.node_hooks import NodeHooks
    from rookery.actors.hooks.points import HookedCalls, HookPoints

__all__ = [
    "HookExecutors",
    "HookInvocationOutcome",
    "HookInvocationStatus",
    "HookLifecycleContext",
    "HookLifecycleCoordinator",
    "HookPoints",
    "HookedCalls",
    "NodeHooks",
    "call_verdict",
    "deny",
    "hook",
    "modify_arguments",
    "outcome_after_hooks",
    "require_approval",
    "rewrite_result",
    "rule_hook",
    "validate_package_hooks",
]

__getattr__ = lazy_names(
    __name__,
    {
        "authoring": (
            "deny",
            "hook",
            "modify_arguments",
            "require_approval",
            "rewrite_result",
            "rule_hook",
        ),
        "changes": ("call_verdict", "outcome_after_hooks"),
        "context": ("HookInvocationOutcome", "HookInvocationStatus", "HookLifecycleContext"),
        "coordinator": ("HookLifecycleCoordinator", "validate_package_hooks"),
        "executors": ("HookExecutors",),
        "node_hooks": ("NodeHooks",),
        "points": ("HookPoints", "HookedCalls"),
    },
)
