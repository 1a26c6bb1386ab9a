"""Hooks: functions and rules that judge or change the steps of a run, and their coordinator.

``authoring`` makes hooks of functions, ``node_hooks`` holds those of a node, ``points`` invokes
them for a run by ``coordinator``, and ``changes`` says what becomes of a call; the turn's decider
derives it again from the recorded facts. Operators register hooks by ``realm``. ``observers``
are fed from committed facts, and no run waits for them.
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
    from rookery.actors.hooks.changes import call_verdict, outcome_after_hooks
    from rookery.actors.hooks.executors.ports import ExternalExecutor
    from rookery.actors.hooks.executors.service import (
        AnsweredExecutor,
        ServiceExecutor,
        answer_invocation,
    )
    from rookery.actors.hooks.invocations import HookStop
    from rookery.actors.hooks.node_hooks import NodeHooks
    from rookery.actors.hooks.observers import HookObservers
    from rookery.actors.hooks.points import Hooked, HookPoints, requests_retry
    from rookery.actors.hooks.realm.live_hooks import HookChanges, LiveHooks
    from rookery.actors.hooks.realm.trials import HookTrials
    from rookery.actors.hooks.records import journal_records
    from rookery.actors.hooks.run_changes import (
        check_recorded,
        injected_inputs,
        is_retried,
        run_ending,
    )

__all__ = [
    "AnsweredExecutor",
    "ExternalExecutor",
    "HookChanges",
    "HookObservers",
    "HookPoints",
    "HookStop",
    "HookTrials",
    "Hooked",
    "LiveHooks",
    "LocalHook",
    "NodeHooks",
    "ServiceExecutor",
    "add_input",
    "answer_invocation",
    "call_verdict",
    "change_approval",
    "check_recorded",
    "deny",
    "hook",
    "injected_inputs",
    "is_retried",
    "journal_records",
    "modify_arguments",
    "outcome_after_hooks",
    "report_cleanup",
    "request_retry",
    "requests_retry",
    "require_approval",
    "rewrite_result",
    "rule_hook",
    "run_ending",
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
        "changes": ("call_verdict", "outcome_after_hooks"),
        "executors.ports": ("ExternalExecutor",),
        "executors.service": ("AnsweredExecutor", "ServiceExecutor", "answer_invocation"),
        "invocations": ("HookStop",),
        "node_hooks": ("NodeHooks",),
        "observers": ("HookObservers",),
        "points": ("HookPoints", "Hooked", "requests_retry"),
        "realm.live_hooks": ("HookChanges", "LiveHooks"),
        "realm.trials": ("HookTrials",),
        "records": ("journal_records",),
        "run_changes": ("check_recorded", "injected_inputs", "is_retried", "run_ending"),
    },
)
