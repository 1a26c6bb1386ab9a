"""Ports of hooks: the executors that invoke them, and the journal of the run they belong to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from rookery.schemas.ids import HookExecutorRef, JournalCursor
from rookery.schemas.seed.hook_invocation import HookInput, HookResponse
from rookery.schemas.seed.hook_spec import HookSpec, invalid_package, validate_hook_specs
from rookery.schemas.seed.records import JournalRecord

__all__ = [
    "ExternalExecutor",
    "HookExecutor",
    "HookExecutorRegistry",
    "HookExecutors",
    "RunJournal",
    "validate_package_hooks",
]


class HookExecutor(Protocol):
    """Port: invokes hooks."""

    @property
    def executor_ref(self) -> HookExecutorRef: ...

    async def invoke(self, hook_input: HookInput) -> HookResponse:
        """The response of the hook. Any exception means that there is none; a cancelled invocation
        ends at once."""


class ExternalExecutor(HookExecutor, Protocol):
    """Port: an executor outside of the node, which may be away."""

    async def invoke_dry(self, hook_input: HookInput) -> HookResponse:
        """The response to a trial, for which the hook changes nothing; it has more time."""

    async def probe(self) -> None:
        """Raise ``Refused`` as ``HOOK_EXECUTOR_MISSING`` if nothing answers a trial."""


class HookExecutorRegistry(Protocol):
    """Port: the executors of a node."""

    def resolve(self, executor_ref: HookExecutorRef) -> HookExecutor | None: ...

    def contains(self, executor_ref: HookExecutorRef) -> bool: ...


class RunJournal(Protocol):
    """Port: the journal of one run."""

    async def append(self, record: JournalRecord) -> JournalCursor:
        """Journal a record and return its position. Any exception means that the record is not
        journaled."""


class HookExecutors:
    """Executors in memory, by their refs."""

    def __init__(self, executors: Iterable[HookExecutor] = ()) -> None:
        self._executors: dict[HookExecutorRef, HookExecutor] = {}
        for executor in executors:
            self.register(executor)

    def register(self, executor: HookExecutor) -> None:
        """Add an executor; it replaces one of the same ref."""
        self._executors[executor.executor_ref] = executor

    def resolve(self, executor_ref: HookExecutorRef) -> HookExecutor | None:
        return self._executors.get(executor_ref)

    def contains(self, executor_ref: HookExecutorRef) -> bool:
        return executor_ref in self._executors


def validate_package_hooks(specs: Iterable[HookSpec], registry: HookExecutorRegistry) -> None:
    """Raise ``AgentError`` for the first invalid spec, then for the first missing executor."""
    specs = tuple(specs)
    validate_hook_specs(specs)
    for spec in specs:
        if not registry.contains(spec.executor_ref):
            ref = spec.executor_ref.as_str()
            raise invalid_package(f"hook executor {ref} is not resolved before start_run")
