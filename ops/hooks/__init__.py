"""Hooks of a realm, around its nodes: the files that operators write, and the process that serves
hooks outside of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.ops.hooks.doctor import check_hooks
    from rookery.ops.hooks.files import read_hooks
    from rookery.ops.hooks.service import HookProcess, hook_openers, hook_queries

__all__ = ["HookProcess", "check_hooks", "hook_openers", "hook_queries", "read_hooks"]

__getattr__ = lazy_names(
    __name__,
    {
        "doctor": ("check_hooks",),
        "files": ("read_hooks",),
        "service": ("HookProcess", "hook_openers", "hook_queries"),
    },
)
