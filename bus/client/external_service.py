"""A service outside of the realm, asked by request-reply on a subject of its own.

What is sent and what an answer means is the asker's. A request is repeated under its id after the
connection was lost, for its answer may have been lost too: a service knows a repeat by the id.
"""

from __future__ import annotations

import asyncio

from rookery.bus.commands.headers import command_headers, is_reply_subject
from rookery.bus.nats import NO_RESPONDERS, Connection, Outgoing, status_of
from rookery.schemas.errors import Failed, Refused

__all__ = ["NatsExternalService"]

_PAUSE_S = 0.2
"""Between two tries, while nobody listens or there is no connection."""


class NatsExternalService:
    """Port ``Service``. To be used on the event loop of its connection."""

    def __init__(self, connection: Connection, subject: str) -> None:
        if not is_reply_subject(subject):
            raise Refused(
                "INVALID_SUBJECT",
                f"{subject[:80]!r} is no subject of an outside service",
                hint="one without wildcards, and neither the server's nor rookery's own",
            )
        self._connection, self._subject = connection, subject

    async def ask(self, request_id: str, body: bytes, *, silence_s_max: float) -> bytes:
        loop = asyncio.get_running_loop()
        reply = self._connection.replies.expect()
        request = Outgoing(self._subject, body, reply.subject, command_headers(request_id))
        why, since_s = "was not answered", loop.time()
        while True:
            if not self._connection.send([request]):
                await asyncio.sleep(_PAUSE_S)
                since_s = loop.time()
                continue
            message = await reply.next(since_s + silence_s_max - loop.time())
            if message is not None and status_of(message) != NO_RESPONDERS:
                return message.body
            if message is not None:
                why = "had no listener"
                await asyncio.sleep(_PAUSE_S)
            if loop.time() >= since_s + silence_s_max:
                text = f"a request to {self._subject} {why} for {silence_s_max} s"
                raise Failed("NO_ANSWER", text)
