"""Hooks: functions and rules that judge or change the steps of a run, and their coordinator.

``authoring`` makes hooks of functions, ``node_hooks`` holds those of a node, ``points`` invokes
them for a run by ``coordinator``, and ``changes`` says what becomes of a call; the turn's decider
derives it again from the recorded facts. Operators register hooks by ``realm``. ``observers``
are fed from committed facts, and no run waits for them. ``executors`` are how a hook is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.hooks.authoring import (
        LocalHook,
        add_input,
        change_approval,
        deny,
        hook,
        modify_arguments,
        report_cleanup,
        request_retry,
        require_approval,
        rewrite_result,
        rule_hook,
        stop_completion,
        stop_run,
    )
    from rookery.actors.hooks.node_hooks import NodeHooks
    from rookery.actors.hooks.observers import HookObservers

__all__ = [
    "HookObservers",
    "LocalHook",
    "NodeHooks",
    "add_input",
    "change_approval",
    "deny",
    "hook",
    "modify_arguments",
    "report_cleanup",
    "request_retry",
    "require_approval",
    "rewrite_result",
    "rule_hook",
    "stop_completion",
    "stop_run",
]

__getattr__ = lazy_names(
    __name__,
    {
        "authoring": (
            "LocalHook",
            "add_input",
            "change_approval",
            "deny",
            "hook",
            "modify_arguments",
            "report_cleanup",
            "request_retry",
            "require_approval",
            "rewrite_result",
            "rule_hook",
            "stop_completion",
            "stop_run",
        ),
        "node_hooks": ("NodeHooks",),
        "observers": ("HookObservers",),
    },
)
