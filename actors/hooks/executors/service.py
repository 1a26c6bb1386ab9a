"""Hooks that a process serves on the bus: the executor of a node, and the answers of the process.

An answer counts if it is to this very invocation. Anything else fails the invocation with its
reason, and the hook's failure policy decides.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from rookery.bus.ports import HookServices
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import CodedError, Failed, Refused
from rookery.schemas.hook_protocol import (
    HookAnswer,
    HookFault,
    HookInvocation,
    decode_answer,
    decode_invocation,
    invocation_id,
)
from rookery.schemas.hooks import HookRegistration
from rookery.schemas.ids import AgentId, HookExecutorRef, RunId
from rookery.schemas.seed.hook_invocation import (
    HookCancellationToken,
    HookInput,
    HookResponse,
    HookView,
)
from rookery.schemas.seed.package import RuntimePackageFingerprint
from rookery.schemas.seed.refs import SourceKind, SourceRef

__all__ = ["AnsweredExecutor", "ServiceExecutor", "answer_invocation"]

log = logging.getLogger(__name__)

INVOCATION_BYTES_MAX: Final = 512 << 10
PROBE_S: Final = 2.0
"""How long a trial waits for a process, which may be about to start."""
GRACE_S: Final = 1.0
"""Beyond the limits of the executors themselves, whose errors say more."""
_PATIENCE: Final = 0.8
"""Of a hook's time: how much of it passes before an unserved hook fails for that reason."""


class AnsweredExecutor(ABC):
    """An executor of one registered hook whose invocations have an answer by a message."""

    def __init__(
        self, registration: HookRegistration, *, realm: str, now_ms: Callable[[], int]
    ) -> None:
        self._registration, self._realm, self._now_ms = registration, realm, now_ms

    @property
    def executor_ref(self) -> HookExecutorRef:
        return self._registration.spec.executor_ref

    async def invoke(self, hook_input: HookInput) -> HookResponse:
        limit_s = self._registration.spec.timeout.timeout_ms / 1_000
        return await self._ask(hook_input, limit_s * _PATIENCE)

    async def invoke_dry(self, hook_input: HookInput) -> HookResponse:
        return await self._ask(hook_input, PROBE_S, dry_run=True)

    async def probe(self) -> None:
        """Also a process that hangs is no answer: a change of the hooks would wait for it, and all
        later changes for that one."""
        limit_s = max(PROBE_S, self._registration.spec.timeout.timeout_ms / 1_000) + GRACE_S
        try:
            try:
                async with asyncio.timeout(limit_s):
                    await self.invoke_dry(_trial(self._registration))
            except TimeoutError:
                raise Failed("NO_ANSWER", f"no answer came in {limit_s:g} s") from None
        except Refused as refusal:
            if refusal.code != "HOOK_FAILED":  # An error that it reports proves that it is there.
                raise
        except Failed as failure:
            hook = self._registration.spec.hook_id.as_str()
            text = f"hook {hook}: {failure.message}"
            raise Refused("HOOK_EXECUTOR_MISSING", text, hint=self._hint(hook)) from None

    @abstractmethod
    async def _send(self, invocation: str, body: bytes, patience_s: float) -> bytes:
        """The answer to an invocation. ``Failed`` if there was none; ``patience_s``: how long to
        wait until it is clear that nothing serves the hook."""

    @abstractmethod
    def _hint(self, hook: str) -> str:
        """What helps if nothing answers."""

    async def _ask(
        self, hook_input: HookInput, patience_s: float, *, dry_run: bool = False
    ) -> HookResponse:
        invocation = HookInvocation(
            invocation_id=invocation_id(hook_input),
            realm=self._realm,
            dry_run=dry_run,
            due_ms=self._now_ms() + self._registration.spec.timeout.timeout_ms,
            input=hook_input,
        )
        body = encode_json(invocation)
        if len(body) > INVOCATION_BYTES_MAX:
            text = f"the hook would see {len(body)} bytes, {INVOCATION_BYTES_MAX} are the limit"
            raise Refused("HOOK_FAILED", text, hint="let it see references: content_refs_only")
        answer = await self._send(invocation.invocation_id, body, patience_s)
        return decode_answer(answer, invocation.invocation_id)


class ServiceExecutor(AnsweredExecutor):
    """By a process on the bus."""

    def __init__(
        self,
        services: HookServices,
        registration: HookRegistration,
        *,
        realm: str,
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__(registration, realm=realm, now_ms=now_ms)
        self._services = services

    async def _send(self, invocation: str, body: bytes, patience_s: float) -> bytes:
        hook = self._registration.spec.hook_id.as_str()
        return await self._services.ask(hook, invocation, body, patience_s=patience_s)

    def _hint(self, hook: str) -> str:
        return f"rookery hooks serve MODULE:OBJECT, for hook {hook}; or register it in mode off"


def _trial(registration: HookRegistration) -> HookInput:
    """An input of no run, for the question whether anything answers."""
    spec = registration.spec
    hook_id = spec.hook_id
    return HookInput(
        hook_id=hook_id,
        point=spec.point,
        run_id=RunId("trial"),
        agent_id=AgentId("agent.trial"),
        source=SourceRef.new(hook_id.as_str(), SourceKind.HOOK),
        package_fingerprint=RuntimePackageFingerprint("trial"),
        view=HookView.redacted("a trial of the hook"),
        policy_refs=(spec.policy_ref,),
        cancellation=HookCancellationToken(),
    )


async def answer_invocation(
    body: bytes, hook: Callable[[HookInput], Awaitable[HookResponse]]
) -> bytes:
    """The answer of a process that serves ``hook``. An error of the hook is an answer, too."""
    try:
        invocation = decode_invocation(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        log.warning("invocation of another form")
        fault = HookFault(code="HOOK_ANSWER_INVALID", message="the invocation has another form")
        return encode_json(HookAnswer(invocation_id="", error=fault))
    try:
        response = await hook(invocation.input)
    except Exception as error:
        log.warning("hook failed", exc_info=error)
        code = error.code if isinstance(error, CodedError) else "HOOK_FAILED"
        fault = HookFault(code=code, message=f"{type(error).__name__}: {error}"[:400])
        return encode_json(HookAnswer(invocation_id=invocation.invocation_id, error=fault))
    answer = HookAnswer(
        invocation_id=invocation.invocation_id,
        response=response,  # type: ignore[arg-type] # Each class is in the union.
    )
    return encode_json(answer)
