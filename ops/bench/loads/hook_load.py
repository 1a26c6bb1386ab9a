"""Runs with one call, and hooks of every kind at it, which the load registers and removes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from time import perf_counter
from typing import Any, Final

from msgspec.structs import replace

from rookery.actors.hooks import hook, modify_arguments
from rookery.actors.hooks.executors import answer_invocation
from rookery.actors.tools import ToolRegistry
from rookery.bus.client import Client
from rookery.bus.nats import Connection, Message, Outgoing, ReplyInbox
from rookery.bus.subjects import Subjects
from rookery.bus.workers import NatsHookEndpoint
from rookery.ops.bench.harness.load import LoadResult, Task, timed
from rookery.ops.bench.harness.result_rows import percentile
from rookery.ops.bench.loads.run_load import CALLING, PLAIN, same, timed_run
from rookery.schemas.hooks import (
    ChangeHooks,
    HookExecutorKind,
    HookMode,
    HookRegistration,
    NatsHook,
    PythonHook,
    RuleHook,
)
from rookery.schemas.ids import REALM_KEY, HookExecutorRef
from rookery.schemas.run import RunRequest
from rookery.schemas.seed.hook import HookFailurePolicy, HookPoint, HookResponseClass
from rookery.schemas.seed.hook_invocation import (
    DenyResponse,
    HookInput,
    HookResponse,
    ObserveOnlyResponse,
    ReasonedSummary,
)
from rookery.schemas.seed.hook_spec import (
    HookMutationRights,
    HookSource,
    HookSpec,
    HookTimeoutPolicy,
    NonBlockingHook,
    hook_policy_ref,
)

__all__ = ["hook_calls", "inspect", "registry"]

HOOK: Final = "bench"
_ROUNDS: Final = 4
_WARM: Final = 3
"""Runs before the measured ones: the first opens the session."""
_CHANGED = RunRequest(code="same(1)")
_MODULE: Final = "rookery.ops.bench.loads.hook_load"
_BEFORE, _AFTER = HookPoint.BEFORE_TOOL_CALL, HookPoint.AFTER_TOOL_CALL


@hook("before_tool_call", mode="off")
def inspect(_call: HookInput) -> None:
    """Lets every call pass."""


@hook("before_tool_call", rights=["modify_tool_request"], mode="off", order=10)
def change(_call: HookInput) -> HookResponse:
    """Changes the argument."""
    return modify_arguments({"value": 2}, "the value is 2")


registry = ToolRegistry.of(same, inspect, change)


_PATIENT = HookTimeoutPolicy(timeout_ms=4_000)


def _registration(
    executor: HookExecutorKind,
    *rights: HookResponseClass,
    point: HookPoint = _BEFORE,
    **fields: Any,
) -> HookRegistration:
    spec = HookSpec.blocking(
        HOOK,
        point,
        HookSource.HOST_CONFIG,
        "unnamed",
        hook_policy_ref("policy.bench"),
        mutation_rights=HookMutationRights.from_rights(rights),
    )
    made = HookRegistration(
        spec=replace(spec, **{"failure": HookFailurePolicy.DENY, "timeout": _PATIENT, **fields}),
        mode=HookMode.ENFORCE,
        when='name == "nothing"' if isinstance(executor, RuleHook) else "",
        executor=executor,
    )
    named = replace(made.spec, executor_ref=HookExecutorRef(made.executor_ref()))
    return replace(made, spec=named)


_DENY = HookResponseClass.DENY
_INSPECT = PythonHook(function=f"{_MODULE}.inspect")
_REASON = ReasonedSummary(code="bench", redacted_summary="no")
_OPEN = HookFailurePolicy.FAIL_OPEN_OBSERVE_ONLY
KINDS: Final[Mapping[str, HookRegistration | None]] = {
    "without": None,
    "observer": _registration(_INSPECT, point=_AFTER, execution=NonBlockingHook(), failure=_OPEN),
    "rule": _registration(RuleHook(then=DenyResponse(payload=_REASON)), _DENY),
    "python": _registration(_INSPECT, _DENY),
    "nats": _registration(NatsHook(), _DENY),
    "change": _registration(
        PythonHook(function=f"{_MODULE}.change"), HookResponseClass.MODIFY_TOOL_REQUEST
    ),
}


async def hook_calls(connection: Connection, task: Task) -> LoadResult:
    """The extra time of a program with one call, with a hook of each kind in turn; ``bare``, a
    request between two connections as the one with which a node invokes a hook."""
    taken: dict[str, list[float]] = {"bare": [], **{kind: [] for kind in KINDS}}
    numbers = _Numbers()
    start_s = perf_counter()
    async with Client(task.client_url) as client, _served(connection) as echo:
        for _ in range(_ROUNDS):
            for kind, registration in KINDS.items():
                calling = _CHANGED if kind == "change" else CALLING
                async with _registered(client, registration):
                    found = taken[kind]
                    found += await _measure(client, task, calling, numbers)
            for _ in range(task.count):
                sent_s = perf_counter()
                await echo()
                taken["bare"].append(perf_counter() - sent_s)
    figures = {kind: 1e6 * percentile(found, 0.5) for kind, found in taken.items()}
    outcome = timed(taken["without"], perf_counter() - start_s)
    return replace(outcome, figures=figures)


class _Numbers:
    def __init__(self) -> None:
        self._next = 0

    def __call__(self) -> int:
        self._next += 1
        return self._next


async def _measure(
    client: Client, task: Task, calling: RunRequest, number: Callable[[], int]
) -> list[float]:
    found = []
    for _ in range(task.count + _WARM):
        plain_s = await timed_run(client, task, number(), PLAIN)
        found.append(await timed_run(client, task, number(), calling) - plain_s)
    return found[_WARM:]


@asynccontextmanager
async def _served(connection: Connection) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """The hook is served in this process; a bare request, to an echo beside it."""
    subjects = Subjects("default")
    endpoint = NatsHookEndpoint(connection, subjects, HOOK)
    echo, answers = f"{subjects.root}.hook.echo", ReplyInbox(f"{subjects.root}.verdict.echo.bench")

    async def observe(_input: HookInput) -> HookResponse:
        await asyncio.sleep(0)
        return ObserveOnlyResponse()

    await endpoint.open(partial(answer_invocation, hook=observe))

    def answer(messages: list[Message]) -> None:
        connection.send([Outgoing(message.reply, b"{}") for message in messages])

    async def request() -> None:
        reply = answers.expect()
        connection.send([Outgoing(echo, b"{}", reply.subject)])
        await reply.next(5)

    open_ones = [
        await connection.subscribe(echo, answer),
        await connection.subscribe(answers.wildcard, answers.route),
    ]
    try:
        yield request
    finally:
        for subscription in open_ones:
            await subscription.cancel()
        await endpoint.close()


@asynccontextmanager
async def _registered(client: Client, registration: HookRegistration | None) -> AsyncIterator[None]:
    if registration is None:
        yield
        return
    await client.ask("hooks", REALM_KEY, ChangeHooks(add=(registration,)))
    try:
        yield
    finally:
        await client.ask("hooks", REALM_KEY, ChangeHooks(remove=(HOOK,)))
