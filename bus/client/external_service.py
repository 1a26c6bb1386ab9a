"""A service outside of the realm, called by request-reply on a subject of its own.

After a lost connection the request is repeated under its id, because its reply may have been lost
too; the service recognises a duplicate by the id.
"""

from __future__ import annotations

import asyncio

from rookery.bus.commands.headers import command_headers, is_reply_subject
from rookery.bus.nats import NO_RESPONDERS, Connection, Outgoing, status_of
from rookery.schemas.errors import Failed, Refused

__all__ = ["NatsExternalService"]

_PAUSE_S = 0.2
"""Pause between two attempts without a listener or a connection."""


class NatsExternalService:
    """Port ``ExternalService``. To be used on the event loop of its connection."""

    def __init__(self, connection: Connection, subject: str) -> None:
        if not is_reply_subject(subject):
            raise Refused(
                "INVALID_SUBJECT",
                f"{subject[:80]!r} cannot be the subject of an outside service",
                hint="use a subject without wildcards, outside of the server's and rookery's own",
            )
        self._connection, self._subject = connection, subject

    async def ask(self, request_id: str, body: bytes, *, silence_s_max: float) -> bytes:
        loop = asyncio.get_running_loop()
        reply = self._connection.replies.expect()
        request = Outgoing(self._subject, body, reply.subject, command_headers(request_id))
        reason, since_s = "got no reply", loop.time()
        while True:
            if not self._connection.send([request]):
                await asyncio.sleep(_PAUSE_S)
                since_s = loop.time()
                continue
            message = await reply.next(since_s + silence_s_max - loop.time())
            if message is not None and status_of(message) != NO_RESPONDERS:
                return message.body
            if message is not None:
                reason = "had no listener"
                await asyncio.sleep(_PAUSE_S)
            if loop.time() >= since_s + silence_s_max:
                text = f"a request to {self._subject} {reason} for {silence_s_max} s"
                raise Failed("NO_ANSWER", text)
