"""Executors of hooks: the ports, and the ways to hooks outside of the node's process."""

from rookery.actors.hooks.executors.ports import (
    ExternalExecutor,
    HookExecutor,
    HookExecutorRegistry,
    HookExecutors,
    RunJournal,
)
from rookery.actors.hooks.executors.service import (
    AnsweredExecutor,
    ServiceExecutor,
    answer_invocation,
)

__all__ = [
    "AnsweredExecutor",
    "ExternalExecutor",
    "HookExecutor",
    "HookExecutorRegistry",
    "HookExecutors",
    "RunJournal",
    "ServiceExecutor",
    "answer_invocation",
]
