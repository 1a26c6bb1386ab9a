"""Saying what would keep a run from beginning, without running any of it: the query ``validate``.

The request is given what a run would be given here, and refused as a run would be. Nothing is
executed and nothing is put on record; the session, if there is one, is not even looked at.
"""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from rookery.actors.admission.queue import of_session
from rookery.actors.runs.history import Reader, plain
from rookery.actors.runs.offering import NodeOffers
from rookery.actors.sandbox.pool import Sandbox
from rookery.actors.sandbox.results import refused
from rookery.bus.ports import Delivery
from rookery.schemas.codec import decode_command
from rookery.schemas.commands import RunAnswer
from rookery.schemas.errors import Refused
from rookery.schemas.ids import check_session_id
from rookery.schemas.run import RunRequest, RunResult

__all__ = ["Validation"]


class Validation:
    """One a node; lives on the bus's loop."""

    def __init__(
        self, sandbox: Sandbox, offers: NodeOffers, reader: Reader, *, bytes_max: int
    ) -> None:
        self._sandbox, self._offers, self._reader = sandbox, offers, reader
        self._bytes_max = bytes_max

    async def answer(self, delivery: Delivery) -> RunAnswer:
        """The query ``validate``, and requests to ``run`` that are only to be validated."""
        session = check_session_id(delivery.key)
        request = decode_command(
            delivery.body,
            RunRequest,
            content_type=delivery.content_type,
            bytes_max=self._bytes_max,
        )
        result = await self._checked(of_session(session, request))
        return RunAnswer.of(result, "", session)

    async def _checked(self, request: RunRequest) -> RunResult:
        try:
            offer = self._offers(request)
        except Refused as refusal:
            return refused(refusal)
        tools = await self._reader.tools(offer)
        checked = self._sandbox.submit(
            replace(plain(request), validate_only=True), now_ms=0, tools=tools
        )
        outcome = await asyncio.wrap_future(checked)
        assert isinstance(outcome, RunResult), "what is not run does not wait"
        return outcome
