"""``ResultSender``: sends the results of runs whose turns have ended, whichever side drove them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec import UnsetType

from rookery.actors.kernel import Effect, EffectHandler
from rookery.actors.turns import SendResult
from rookery.schemas.run import RunResult

__all__ = ["ResultSender"]


class ResultSender:
    """One per node; lives on the bus's loop."""

    def __init__(
        self,
        send: Callable[[str, str, Sequence[str], RunResult, str | UnsetType], Awaitable[None]],
    ) -> None:
        """``send`` sends the result of a session's run to reply subjects."""
        self._send = send

    @property
    def handlers(self) -> Mapping[type[Effect], EffectHandler]:
        return {SendResult: self.send_result}

    async def send_result(self, effect: SendResult) -> None:
        await self._send(
            effect.session, effect.run_id, effect.reply_to, effect.result, effect.result_blob
        )
