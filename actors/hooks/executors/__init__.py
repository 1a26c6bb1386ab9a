"""Executors of hooks: the ports, and the ways to hooks outside of the node's process."""

from rookery.actors.hooks.executors.ports import ExternalExecutor
from rookery.actors.hooks.executors.service import (
    AnsweredExecutor,
    ServiceExecutor,
    answer_invocation,
)

__all__ = ["AnsweredExecutor", "ExternalExecutor", "ServiceExecutor", "answer_invocation"]
