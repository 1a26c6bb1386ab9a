"""Hooks that are programs of the sandbox: each invocation has a new session, without tools.

The program has the input as the variable ``hook``; its last expression is the response, or nothing.
So the code is on record with the registration, runs alike on every node, and reaches nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Final

import msgspec

from rookery.actors.sandbox import Sandbox
from rookery.schemas.digest import digest_json
from rookery.schemas.errors import Refused
from rookery.schemas.hook_protocol import invocation_id
from rookery.schemas.hooks import HookRegistration, ProgramHook
from rookery.schemas.ids import HookExecutorRef, decode_typed_text, encode_typed_text
from rookery.schemas.run import RunRequest, RunResult, RunStatus, SessionLimits
from rookery.schemas.seed.hook_invocation import (
    AnyHookResponse,
    HookInput,
    HookResponse,
    ObserveOnlyResponse,
)

__all__ = ["ProgramExecutor"]

MEMORY_MB: Final = 64
CPU_MS: Final = 100
STDOUT_BYTES: Final = 4_096
_OBSERVED: Final = ObserveOnlyResponse()
_numbers = count(1)


class ProgramExecutor:
    """The executor of one registered hook."""

    def __init__(
        self, sandbox: Sandbox, registration: HookRegistration, *, now_ms: Callable[[], int]
    ) -> None:
        assert isinstance(registration.executor, ProgramHook)
        self._sandbox, self._registration, self._now_ms = sandbox, registration, now_ms
        self._program: ProgramHook = registration.executor

    @property
    def executor_ref(self) -> HookExecutorRef:
        return self._registration.spec.executor_ref

    async def invoke(self, hook_input: HookInput) -> HookResponse:
        result = await self._sandbox.in_thread(self._run, hook_input)
        if result.status is not RunStatus.OK:
            code, message = "HOOK_FAILED", str(result.status)
            if result.error is not None:
                code, message = result.error.code, result.error.message
            raise Refused("HOOK_FAILED", f"{code}: {message[:400]}")
        if result.result is None:
            return _OBSERVED
        try:
            response: HookResponse = msgspec.convert(
                result.result, AnyHookResponse, dec_hook=decode_typed_text
            )
        except (msgspec.MsgspecError, ValueError) as error:
            text = f"the program of the hook: {str(error)[:400]}"
            raise Refused("HOOK_ANSWER_INVALID", text) from None
        return response

    async def invoke_dry(self, hook_input: HookInput) -> HookResponse:
        return await self.invoke(hook_input)

    async def probe(self) -> None:
        """Check the program; it is not run, because a trial has nothing to judge."""
        request = self._request("hook-trial", {"hook": None})
        result = await self._sandbox.in_thread(self._sandbox.validate, request)
        if result.error is not None:
            hook = self._registration.spec.hook_id.as_str()
            text = f"hook {hook}: executor: {result.error.code}: {result.error.message[:400]}"
            raise Refused("HOOK_INVALID", text)

    def _run(self, hook_input: HookInput) -> RunResult:
        """On a thread. A program that takes too long ends by its own limits."""
        session = f"_hook-{next(_numbers)}"
        given = msgspec.to_builtins(hook_input, enc_hook=encode_typed_text)
        self._sandbox.create(
            session,
            seed=bytes.fromhex(digest_json(invocation_id(hook_input))),
            now_ms=self._now_ms(),
            language=self._program.language,
            limits=SessionLimits(
                memory_mb=MEMORY_MB,
                cpu_ms=CPU_MS,
                wall_ms=max(1, self._registration.spec.timeout.timeout_ms),
                max_stdout_bytes=STDOUT_BYTES,
                max_external_calls=0,
            ),
        )
        try:
            outcome = self._sandbox.run(
                self._request(session, {"hook": given}), now_ms=self._now_ms()
            )
        finally:
            self._sandbox.destroy(session)
        if not isinstance(outcome, RunResult):
            raise Refused("HOOK_FAILED", "the program of the hook waits for something")
        return outcome

    def _request(self, session: str, inputs: dict[str, Any]) -> RunRequest:
        return RunRequest(
            session_id=session,
            code=self._program.code,
            language=self._program.language,
            inputs=inputs,
        )
