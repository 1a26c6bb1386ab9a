"""Clients: one that sends once, one that retries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from rookery.bus.ports import Delivery, ReplyMessage
from rookery.schemas.errors import CODES
from tests.kernel.tally import Total

if TYPE_CHECKING:
    from tests.kernel.world import World


class SentRequest:
    """A request and its replies."""

    def __init__(self, request: Delivery, on_answer: Callable[[SentRequest], None]) -> None:
        self.request, self._on_answer = request, on_answer
        self.answers: list[ReplyMessage] = []

    def hear(self, answer: ReplyMessage) -> None:
        self.answers.append(answer)
        self._on_answer(self)

    @property
    def code(self) -> str:
        """The code of the last reply; empty without an error."""
        return self.answers[-1].code

    @property
    def total(self) -> Total:
        assert not self.code, self.answers[-1].body
        return msgspec.json.decode(self.answers[-1].body, type=Total)


class Patient:
    """Sends a sum under one id until it is committed."""

    def __init__(self, world: World, key: str, command_id: str, amount: int) -> None:
        self._world, self._key, self._id, self._by = world, key, command_id, amount
        self.asked: SentRequest = self._ask()

    def _ask(self) -> SentRequest:
        return self._world.ask("add", self._key, id=self._id, amount=self._by)

    @property
    def done(self) -> bool:
        answers = self.asked.answers
        if answers and self.asked.code and CODES[self.asked.code].retryable:
            self.asked = self._ask()
        return bool(self.asked.answers)

    def insist(self) -> None:
        """No reply came in time."""
        if not self.asked.answers:
            self.asked = self._ask()
