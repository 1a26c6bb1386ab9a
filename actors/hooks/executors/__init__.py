"""Executors of hooks: the ports, and the ways to hooks outside of the node's process."""

from rookery.actors.hooks.executors.ports import (
    ExternalExecutor,
    HookExecutor,
    HookExecutorRegistry,
    HookExecutors,
    RunJournal,
)
from rookery.actors.hooks.executors.service import ServiceExecutor, answer_invocation
from rookery.actors.hooks.executors.webhook import WebhookExecutor

__all__ = [
    "ExternalExecutor",
    "HookExecutor",
    "HookExecutorRegistry",
    "HookExecutors",
    "RunJournal",
    "ServiceExecutor",
    "WebhookExecutor",
    "answer_invocation",
]
