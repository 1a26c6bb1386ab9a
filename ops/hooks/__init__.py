"""Hooks of a realm, around its nodes: the files that operators write, and the process that serves
hooks outside of nodes."""

from __future__ import annotations

from rookery.ops.hooks.doctor import check_hooks
from rookery.ops.hooks.files import read_hooks
from rookery.ops.hooks.service import HookProcess, hook_openers, hook_queries

__all__ = ["HookProcess", "check_hooks", "hook_openers", "hook_queries", "read_hooks"]
