"""Starting effects: each is given to the performer of its kind, on the bus's loop.

An effect starts only after its fact is durable. If the process dies, the next owner of the
partition finds the fact above the horizon and starts the effect again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from rookery.actors.kernel.concern import Effect
from rookery.actors.kernel.failpoints import Failpoints
from rookery.actors.kernel.horizon import Horizon, Ticket
from rookery.actors.kernel.tasks import Tasks
from rookery.schemas.errors import CODES, Failed

__all__ = ["Effects", "Performer"]

log = logging.getLogger(__name__)

Performer = Callable[[Any], Awaitable[None]]
RETRY_S = 0.5


class Effects:
    """One a node; lives on the loop."""

    def __init__(
        self,
        performers: Mapping[type[Effect], Performer],
        horizon: Horizon,
        failpoints: Failpoints,
    ) -> None:
        self._performers, self._horizon, self._failpoints = performers, horizon, failpoints
        self.tasks = Tasks()

    def start(self, sequence: int, effects: Sequence[Effect]) -> None:
        """Perform these, each on its own, because a fact stands at ``sequence``."""
        self._failpoints.hit("effect_started")
        for effect in effects:
            self.tasks.begin(self._perform(effect, self._horizon.open(sequence)))

    async def _perform(self, effect: Effect, ticket: Ticket) -> None:
        """Outages are waited out; anything else is a bug and is left for the next owner."""
        while True:
            try:
                await self._performers[type(effect)](effect)
            except Exception as error:
                if not isinstance(error, Failed) or not CODES[error.code].retryable:
                    log.exception("an effect failed", extra={"key": effect.key})
                    return
                log.info("an effect is tried again", extra={"key": effect.key, "code": error.code})
                await asyncio.sleep(RETRY_S)
            else:
                ticket.close()
                return
