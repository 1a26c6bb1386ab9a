"""``ResultSender``: sends the results of runs whose turns have ended, whichever side drove them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from rookery.actors.kernel import Effect, EffectHandler
from rookery.actors.turns import SendResult, SendStoredResult
from rookery.schemas.run import RunResult

__all__ = ["ResultSender"]


class ResultReplies(Protocol):
    """Sends the result of a session's run to reply subjects."""

    def send_result(
        self, session: str, run_id: str, reply_to: Sequence[str], result: RunResult
    ) -> None: ...

    async def send_stored_result(
        self, session: str, run_id: str, reply_to: Sequence[str], part: RunResult, blob: str
    ) -> None:
        """Send a result whose whole is in the blob store."""


class ResultSender:
    """One per node; lives on the bus's loop."""

    def __init__(self, replies: ResultReplies) -> None:
        self._replies = replies

    @property
    def handlers(self) -> Mapping[type[Effect], EffectHandler]:
        return {SendResult: self.send_result, SendStoredResult: self.send_stored_result}

    def send_result(self, effect: SendResult) -> None:
        self._replies.send_result(effect.session, effect.run_id, effect.reply_to, effect.result)

    async def send_stored_result(self, effect: SendStoredResult) -> None:
        session, run_id, part = effect.session, effect.run_id, effect.result
        await self._replies.send_stored_result(
            session, run_id, effect.reply_to, part, effect.result_blob
        )
