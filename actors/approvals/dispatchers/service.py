"""The dispatcher ``service``: sends requests to an outside service on a subject of its own.

The service decides at once, or replies ``pending`` and sends the command ``decide`` later. After an
outage or a crash the node repeats the request under the same id.
"""

from __future__ import annotations

from typing import Final

from rookery.actors.approvals.dispatchers.port import DispatchResult, Terms, Unavailable
from rookery.actors.approvals.dispatchers.protocol import decode_reply, dispatch_id, encode_request
from rookery.bus.ports import ExternalService
from rookery.schemas.approvals.records import ApprovalRequest
from rookery.schemas.errors import Failed

__all__ = ["ServiceDispatcher"]

REPLY_TIMEOUT_S: Final = 10.0
"""A service that needs longer replies ``pending``."""


class ServiceDispatcher:
    """One service."""

    name = "service"

    def __init__(
        self, service: ExternalService, realm: str, *, silence_s_max: float = REPLY_TIMEOUT_S
    ) -> None:
        self._service, self._realm, self._silence_s_max = service, realm, silence_s_max

    async def dispatch(self, request: ApprovalRequest, terms: Terms) -> DispatchResult:
        body = encode_request(self._realm, request, terms)
        try:
            answer = await self._service.ask(
                dispatch_id(request), body, silence_s_max=self._silence_s_max
            )
        except Failed:
            return Unavailable("service.no_answer")
        return decode_reply(request, answer)
