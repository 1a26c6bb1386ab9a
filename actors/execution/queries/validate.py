"""The query ``validate``: why a run could not begin, without executing it.

The request gets the environment that a run would get here and is refused for the same reasons.
Nothing is executed or recorded; the session, if it exists, is only read.
"""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from rookery.actors.admission import with_session_id
from rookery.actors.execution.driver import RunProvisioner
from rookery.actors.execution.history import RunHistoryReader, without_limits
from rookery.actors.kernel.executors import AskActor
from rookery.actors.kernel.machines import DESTROYED, INITIALIZING
from rookery.actors.sandbox import Sandbox
from rookery.bus.ports import Delivery
from rookery.schemas.calls import RunEnvironment
from rookery.schemas.codec import decode_command
from rookery.schemas.commands import SessionQuery
from rookery.schemas.errors import Refused
from rookery.schemas.ids import check_client_session
from rookery.schemas.replies import RunAnswer, SessionView
from rookery.schemas.run import RunRequest, RunResult, SessionMeta

__all__ = ["RequestValidator"]


class RequestValidator:
    """One per node; lives on the bus's loop."""

    def __init__(
        self,
        sandbox: Sandbox,
        provisioner: RunProvisioner,
        reader: RunHistoryReader,
        ask: AskActor,
        *,
        bytes_max: int,
    ) -> None:
        self._sandbox, self._provisioner = sandbox, provisioner
        self._reader, self._ask = reader, ask
        self._bytes_max = bytes_max

    async def reply(self, delivery: Delivery) -> RunAnswer:
        """The query ``validate``, and ``run`` requests with ``validate_only``."""
        session = check_client_session(delivery.key)
        request = decode_command(
            delivery.body,
            RunRequest,
            content_type=delivery.content_type,
            bytes_max=self._bytes_max,
        )
        result = await self._validate(session, with_session_id(session, request))
        return RunAnswer.of(result, "", session)

    async def _validate(self, session: str, request: RunRequest) -> RunResult:
        self._provisioner.validate(request)
        if request.has_prompt:
            return RunResult()
        meta = await self._meta(session, request)
        meta.check_language(request.language)
        environment = self._provisioner(request, meta.limits, session)
        assert isinstance(environment, RunEnvironment), "an immediate message is not validated"
        tools = await self._reader.tools(environment)
        checked_request = replace(
            without_limits(request), validate_only=True, limits=environment.limits, timeout_ms=None
        )
        checked = self._sandbox.submit(checked_request, now_ms=0, tools=tools)
        outcome = await asyncio.wrap_future(checked)
        assert isinstance(outcome, RunResult), "what is not run does not wait"
        return outcome

    async def _meta(self, session: str, request: RunRequest) -> SessionMeta:
        """The session's settings, or those of a new session."""
        try:
            view = await self._ask("session", session, SessionQuery(), SessionView)
        except Refused as refusal:
            if refusal.code != "SESSION_NOT_FOUND":
                raise
        else:
            if view.phase not in (INITIALIZING, DESTROYED):
                return view.meta
        return SessionMeta(id=session, language=request.language)
