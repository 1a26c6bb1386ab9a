"""Hooks of a realm, around its nodes: the files that operators write, the process that serves hooks
outside of nodes, and the recorded calls that a hook is tried with."""

from rookery.ops.hooks.doctor import check_hooks
from rookery.ops.hooks.files import read_hooks
from rookery.ops.hooks.service import HookProcess, hook_openers, hook_queries
from rookery.ops.hooks.trials import recorded_calls, typed_call

__all__ = [
    "HookProcess",
    "check_hooks",
    "hook_openers",
    "hook_queries",
    "read_hooks",
    "recorded_calls",
    "typed_call",
]
