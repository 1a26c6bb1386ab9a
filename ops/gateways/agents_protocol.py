"""The Synadia agent protocol 0.3: its clients discover sessions of this node, and prompt them.

A prompt is a request of peers in the name of the session ``agents``, whose answers are streamed to
the client. The exchange is durable, the stream is not: the protocol has no cursor.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import Any, Final, NamedTuple

from rookery.bus.client import Client
from rookery.bus.commands import is_reply_subject
from rookery.bus.event_loop import TaskSet
from rookery.bus.nats import Connection, Message, Outgoing
from rookery.bus.subjects import Subjects, agents_token
from rookery.schemas.codec import encode_json, fact_tag
from rookery.schemas.digest import canonical_json
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.facts import peer as facts
from rookery.schemas.peers.exchanges import SendEnvelope
from rookery.schemas.peers.items import INPUT_REQUIRED

__all__ = ["AgentsProtocol"]

VERSION: Final = "0.3"
SERVICE: Final = "agents"
CALLER: Final = "agents"
"""The session in whose name prompts are sent."""
INTENT: Final = "agents.prompt"
HEARTBEAT_S: Final = 30
KEEP_ALIVE_S: Final = 20.0
"""A client gives up after 60 s without a chunk."""
PROMPTS_MAX: Final = 256
PROMPT_S: Final = 86_400.0
PAYLOAD_MAX: Final = "160KB"
"""So much of a prompt fits into an envelope, quoted."""
_ENDED: Final = fact_tag(facts.ResponseEnded)
_PROGRESSED: Final = fact_tag(facts.ResponseProgressed)
_TIMED_OUT: Final = fact_tag(facts.RequestTimedOut)
_DECLINED: Final = (
    *("PEER_INTENT_NOT_ALLOWED", "PEER_PARAMS_INVALID"),
    *("INVALID_ARGUMENT", "PAYLOAD_TOO_LARGE"),
)
_ACK: Final = encode_json({"type": "status", "data": "ack"})


class PromptRefused(Exception):
    """An error as the protocol has it."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class Prompt(NamedTuple):
    """What a client asks."""

    text: str
    attachments: Sequence[Mapping[str, str]]

    @classmethod
    def read(cls, body: bytes) -> Prompt:
        """A JSON object, or plain text; ``PromptRefused`` otherwise."""
        if not body.lstrip(b" \t\r\n").startswith(b"{"):
            return cls._checked(body.decode("utf-8", "replace"), ())
        try:
            sent = json.loads(body)
        except ValueError:
            raise PromptRefused(400, "the prompt is no JSON object") from None
        return cls._checked(sent.get("prompt"), sent.get("attachments") or ())

    @classmethod
    def _checked(cls, text: Any, attachments: Any) -> Prompt:
        if not isinstance(text, str) or not text:
            raise PromptRefused(400, "a prompt has a text")
        names = ("filename", "content")
        if not isinstance(attachments, list | tuple) or not all(
            isinstance(one, dict) and all(isinstance(one.get(name), str) for name in names)
            for one in attachments
        ):
            raise PromptRefused(400, "an attachment has a filename and a content in base64")
        return cls(text, [{name: one[name] for name in names} for one in attachments])

    @property
    def params(self) -> dict[str, Any]:
        more = {"attachments": list(self.attachments)} if self.attachments else {}
        return {"prompt": self.text, **more}


class AgentsProtocol:
    """Serves published sessions to clients of the protocol; used on the event loop of its
    connection."""

    def __init__(
        self,
        connection: Connection,
        client: Client,
        sessions: Sequence[str],
        *,
        node: str,
        now_ms: Callable[[], int],
    ) -> None:
        """``client``: to be opened; it sends requests for those who prompt."""
        self._connection, self._client, self._now_ms = connection, client, now_ms
        self._subjects = Subjects(client.realm)
        self._sessions = {agents_token(session): session for session in sessions}
        self._instances = {token: f"{agents_token(node)}-{token}" for token in self._sessions}
        self._tasks = TaskSet()
        self._prompts = 0

    async def run(self) -> None:
        """Serve until cancelled."""
        async with AsyncExitStack() as opened:
            await opened.enter_async_context(self._client)
            opened.push_async_callback(self._tasks.cancel)
            for subject, on_batch, queue in self._subscribed():
                found = await self._connection.subscribe(subject, on_batch, queue=queue)
                opened.push_async_callback(found.cancel)
            while True:
                for token in self._sessions:
                    self._send(self._subjects.agents("hb", token), self._heartbeat(token))
                await asyncio.sleep(HEARTBEAT_S)

    def _subscribed(self) -> Sequence[tuple[str, Callable[[list[Message]], None], str]]:
        found = []
        for token in self._sessions:
            found.append((self._subjects.agents("prompt", token), self._on_prompts, SERVICE))
            found.append((self._subjects.agents("status", token), self._on_status, SERVICE))
        for verb, made in (("PING", self._ping), ("INFO", self._info), ("STATS", self._stats)):
            for place in ("", f".{SERVICE}", f".{SERVICE}.*"):
                on_batch = partial(self._on_discovery, made)
                found.append((f"$SRV.{verb}{place}", on_batch, ""))
        return found

    # --- discovery --------------------------------------------------------------------------------

    def _on_discovery(
        self, made: Callable[[str], Mapping[str, Any]], messages: list[Message]
    ) -> None:
        for message in messages:
            instance = message.subject.split(".")[3:]
            for token, name in self._instances.items():
                if is_reply_subject(message.reply) and instance in ([], [name]):
                    self._send(message.reply, made(token))

    def _ping(self, token: str) -> Mapping[str, Any]:
        return {"type": "io.nats.micro.v1.ping_response", **self._identity(token)}

    def _info(self, token: str) -> Mapping[str, Any]:
        return {
            "type": "io.nats.micro.v1.info_response",
            **self._identity(token),
            "description": f"session {self._sessions[token]} of realm {self._client.realm}",
            "endpoints": [
                {
                    "name": verb,
                    "subject": self._subjects.agents(verb, token),
                    "queue_group": SERVICE,
                    "metadata": metadata,
                }
                for verb, metadata in (("prompt", self._terms()), ("status", {}))
            ],
        }

    def _stats(self, token: str) -> Mapping[str, Any]:
        kind = "io.nats.micro.v1.stats_response"
        return {"type": kind, **self._identity(token), "endpoints": []}

    def _identity(self, token: str) -> Mapping[str, Any]:
        metadata = {
            "agent": self._subjects.AGENT,
            "owner": agents_token(self._client.realm),
            "session": token,
            "protocol_version": VERSION,
        }
        name = {"name": SERVICE, "id": self._instances[token], "version": version("rookery")}
        return {**name, "metadata": metadata}

    @staticmethod
    def _terms() -> Mapping[str, str]:
        return {"max_payload": PAYLOAD_MAX, "attachments_ok": "true"}

    def _heartbeat(self, token: str) -> Mapping[str, Any]:
        return {
            **{name: self._identity(token)["metadata"][name] for name in ("agent", "owner")},
            "session": token,
            "instance_id": self._instances[token],
            "ts": datetime.fromtimestamp(self._now_ms() / 1_000, UTC).isoformat(),
            "interval_s": HEARTBEAT_S,
            "protocol_version": VERSION,
        }

    def _on_status(self, messages: list[Message]) -> None:
        for message in messages:
            if is_reply_subject(message.reply):
                self._send(message.reply, self._heartbeat(message.subject.rpartition(".")[2]))

    # --- prompts ----------------------------------------------------------------------------------

    def _on_prompts(self, messages: list[Message]) -> None:
        for message in messages:
            if is_reply_subject(message.reply):
                self._tasks.start(self._answer(message))

    async def _answer(self, message: Message) -> None:
        """Stream the answer to a prompt; an error comes before the end of the stream."""
        session = self._sessions[message.subject.rpartition(".")[2]]
        self._prompts += 1
        try:
            if self._prompts > PROMPTS_MAX:
                raise PromptRefused(503, f"{PROMPTS_MAX} prompts wait for their answers")
            prompt = Prompt.read(message.body)
            self._send(message.reply, _ACK)
            await self._converse(message.reply, session, prompt)
        except PromptRefused as refusal:
            self._refuse(message.reply, refusal)
        except CodedError as error:
            self._refuse(message.reply, _as_refusal(error.code, error.message))
        except asyncio.CancelledError:
            self._refuse(message.reply, PromptRefused(503, "the node stops"))
            raise
        finally:
            self._prompts -= 1
            self._send(message.reply, b"")

    async def _converse(self, reply: str, session: str, prompt: Prompt) -> None:
        after = await self._client.journal.end()
        request_id = await self._request(session, prompt)
        keeping = self._tasks.start(self._keep_alive(reply))
        try:
            following = self._client.follow_exchange(CALLER, request_id, after=after)
            async with aclosing(following) as found:
                async for fact in found:
                    await self._on_fact(reply, session, request_id, fact)
        finally:
            keeping.cancel()

    async def _request(self, session: str, prompt: Prompt) -> str:
        send = partial(
            self._client.send_request, CALLER, session, INTENT, prompt.params, timeout_s=PROMPT_S
        )
        try:
            return (await send()).id
        except Refused as refusal:
            if refusal.code != "SESSION_NOT_FOUND":
                raise
        with suppress(Refused):  # Another prompt may have created it meanwhile.
            await self._client.create(CALLER)
        return (await send()).id

    async def _on_fact(
        self, reply: str, session: str, request_id: str, fact: Mapping[str, Any]
    ) -> None:
        kind, response = fact["type"], fact.get("response") or {}
        result: Any = response.get("result")
        error = response.get("error")
        if kind == _ENDED and error:
            raise _as_refusal(error["code"], error.get("message", ""))
        if kind == _TIMED_OUT:
            raise PromptRefused(504, "the session did not answer in time")
        is_question = isinstance(result, dict) and list(result) == [INPUT_REQUIRED]
        if kind == _PROGRESSED and is_question:
            asking = self._ask(reply, session, request_id, result[INPUT_REQUIRED])
            self._tasks.start(asking)
        elif kind in (_ENDED, _PROGRESSED) and result is not None:
            self._send(reply, {"type": "response", "data": _as_text(result)})

    async def _ask(self, reply: str, session: str, request_id: str, question: Any) -> None:
        """Put the question of a responder to the client, and send it what the client replies."""
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def on_replies(messages: list[Message]) -> None:
            if not answered.done():
                answered.set_result(messages[0].body)

        subject = self._subjects.agents("reply", request_id)
        subscription = await self._connection.subscribe(subject, on_replies)
        try:
            data = {"id": request_id, "reply_subject": subject, "prompt": _as_text(question)}
            self._send(reply, {"type": "query", "data": data})
            async with asyncio.timeout(PROMPT_S):
                prompt = Prompt.read(await answered)
            with suppress(CodedError):  # The request has ended.
                message = SendEnvelope(to=session, body=prompt.params, in_reply_to=request_id)
                await self._client.ask("send", CALLER, message)
        except (PromptRefused, TimeoutError):
            """The client has no answer; the request waits until it is due."""
        finally:
            await subscription.cancel()

    async def _keep_alive(self, reply: str) -> None:
        while True:
            await asyncio.sleep(KEEP_ALIVE_S)
            self._send(reply, _ACK)

    def _refuse(self, reply: str, refusal: PromptRefused) -> None:
        reason = " ".join(refusal.reason.split())[:200].encode("ascii", "replace").decode()
        headers = (
            ("Nats-Service-Error-Code", str(refusal.status)),
            ("Nats-Service-Error", reason),
        )
        self._connection.send([Outgoing(reply, b"", headers=headers)])

    def _send(self, subject: str, body: Mapping[str, Any] | bytes) -> None:
        """A reply subject that the server refuses is that of no client: nothing is sent."""
        data = body if isinstance(body, bytes) else encode_json(body)
        with suppress(CodedError):
            self._connection.send([Outgoing(subject, data)])


def _as_text(result: Any) -> str:
    return result if isinstance(result, str) else canonical_json(result).decode()


def _as_refusal(code: str, message: str) -> PromptRefused:
    return PromptRefused(400 if code in _DECLINED else 500, f"{code}: {message}")
