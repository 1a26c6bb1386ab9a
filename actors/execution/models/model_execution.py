"""What executes the runs of a node's models: their drivers, and the conversations in memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rookery.actors.credentials import (
    NO_CREDENTIALS,
    CredentialSource,
    LeaseGate,
    every_lease_fresh,
)
from rookery.actors.execution.agents import Models
from rookery.actors.execution.agents.model_calls import CheckArguments
from rookery.actors.execution.conversation_cache import ConversationCache
from rookery.actors.execution.conversation_history import ConversationReader
from rookery.actors.execution.executor import AgentExecution
from rookery.actors.execution.history import RunHistoryReader
from rookery.actors.execution.models.budgets import RealmBudget
from rookery.actors.execution.models.code_programs import CodePrograms
from rookery.actors.execution.models.model_attempt import ModelServices
from rookery.actors.execution.models.model_driver import ModelDriver
from rookery.actors.execution.models.model_failures import ModelKeys
from rookery.actors.execution.result_sender import SendOutput
from rookery.actors.kernel.executors import AskActor, Failpoints
from rookery.bus.ports import Blobs

__all__ = ["model_execution"]


def model_execution(
    models: Models,
    history: RunHistoryReader,
    *,
    blobs: Blobs,
    check: CheckArguments,
    failpoints: Failpoints,
    send_output: SendOutput,
    ask: AskActor,
    now_ms: Callable[[], int],
    jitter: Callable[[], float],
    credentials: CredentialSource = NO_CREDENTIALS,
    lease_gate: LeaseGate = every_lease_fresh,
) -> AgentExecution:
    """What executes the runs of a node's models. ``jitter``: between 0.9 and 1.1."""
    conversations = ConversationCache(ConversationReader(history))
    services = ModelServices(
        models=models,
        conversation_of=conversations.get,
        put_blob=blobs.put,
        check=check,
        failpoints=failpoints,
        send_output=send_output,
        now_ms=now_ms,
        jitter=jitter,
        keys=ModelKeys(models, credentials, lease_gate),
        realm_budget=RealmBudget(models, now_ms),
        ask=ask,
    )
    programs = partial(CodePrograms, now_ms=now_ms, on_ended=conversations.end_program)
    return AgentExecution(lambda: ModelDriver(services), conversations, programs)
