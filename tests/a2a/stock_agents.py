"""An agent on the official Python SDK's server, which nobody here wrote: its task store, request
handler, routes and signatures. Only what the agent does with a message is the test's.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Self

import uvicorn
from a2a.helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    APIKeySecurityScheme,
    Message,
    Part,
    Role,
    SecurityScheme,
)
from a2a.utils.signing import create_agent_card_signer
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from jwt import PyJWK
from jwt.algorithms import ECAlgorithm, OKPAlgorithm
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

__all__ = ["API_KEY", "StockAgent"]

API_KEY: Final = "open-sesame-0123456789"
HEADER: Final = "X-Agent-Key"
KEYS_PATH: Final = "/.well-known/jwks.json"


class _Executor(AgentExecutor):
    """What the agent does follows from the text of a message."""

    def __init__(self, agent: StockAgent) -> None:
        self._agent = agent

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        message = context.message
        assert message is not None
        text = context.get_user_input()
        self._agent.executed.append(message.message_id)
        if text == "message":
            reply = Message(message_id="m", role=Role.ROLE_AGENT, parts=[Part(text="at once")])
            await event_queue.enqueue_event(reply)
            return
        if context.current_task is None:
            await event_queue.enqueue_event(new_task_from_user_message(message))
        assert context.task_id is not None
        assert context.context_id is not None
        task = TaskUpdater(event_queue, context.task_id, context.context_id)
        await self._work(task, text)

    async def _work(self, task: TaskUpdater, text: str) -> None:
        said = task.new_agent_message([Part(text=f"about {text}")])
        match text.split(maxsplit=1)[0]:
            case "fail":
                await task.failed(said)
            case "reject":
                await task.reject(said)
            case "question":
                await task.requires_input(said)
            case "login":
                await task.requires_auth(said)
            case "hold":
                await task.start_work(said)
                while not self._agent.is_released:
                    await asyncio.sleep(0.01)
                await self._complete(task, text)
            case _:
                await self._complete(task, text)

    @staticmethod
    async def _complete(task: TaskUpdater, text: str) -> None:
        await task.add_artifact([Part(text=f"sunny: {text}")])
        await task.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        self._agent.cancelled.append(context.task_id)
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


class StockAgent:
    """The agent on loopback. ``signs``: how its card is signed, ``EdDSA``, ``ES256`` or not."""

    def __init__(self, *, signs: str = "", key: str = "") -> None:
        """``key``: what its clients have to send as an API key."""
        self.executed: list[str] = []
        """Ids of messages."""
        self.cancelled: list[str] = []
        self.called: Counter[str] = Counter()
        """Methods."""
        self.lost = 0
        """How many answers to messages are still to be lost."""
        self.is_released = False
        self.description = "Says what the weather is."
        self._signs, self._key = signs, key
        self._private, self.public = _keys(signs)
        self._store = InMemoryTaskStore()
        config = uvicorn.Config(
            self._app, port=0, log_level="critical", lifespan="off", interface="asgi3"
        )
        self._server = uvicorn.Server(config)

    def __enter__(self) -> Self:
        socket = self._server.config.bind_socket()
        socket.listen()
        self.url = f"http://127.0.0.1:{socket.getsockname()[1]}"
        self._routes = self._application()
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [socket]}, daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(10.0)

    def card(self) -> AgentCard:
        """As it is now."""
        card = AgentCard(
            name="Weather agent",
            description=self.description,
            version="1",
            supported_interfaces=[
                AgentInterface(url=self.url, protocol_binding="JSONRPC", protocol_version="1.0")
            ],
            capabilities=AgentCapabilities(streaming=True),
            default_input_modes=["text/plain"],
            default_output_modes=["text/plain"],
            skills=[AgentSkill(id="ask", name="ask", description="Asks.", tags=["weather"])],
        )
        if self._key:
            scheme = APIKeySecurityScheme(location="header", name=HEADER)
            found = SecurityScheme(api_key_security_scheme=scheme)
            card.security_schemes["key"].CopyFrom(found)
        if self._signs:
            header: Any = {"kid": "k1", "alg": self._signs, "jku": f"{self.url}{KEYS_PATH}"}
            card = create_agent_card_signer(self._private, {**header, "typ": "JOSE"})(card)
        return card

    def _application(self) -> Starlette:
        card = self.card()
        handler = DefaultRequestHandler(_Executor(self), self._store, card)

        async def present(_: AgentCard) -> AgentCard:
            return self.card()

        async def keys(_: Request) -> JSONResponse:
            return JSONResponse({"keys": [{**self.public, "kid": "k1"}]})

        return Starlette(
            routes=[
                *create_agent_card_routes(card, card_modifier=present),
                *create_jsonrpc_routes(handler, "/"),
                Route(KEYS_PATH, keys),
            ]
        )

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        """Count methods, ask for the key, and lose answers."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._routes(scope, receive, send)
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        if self._key and headers.get(HEADER.lower()) != self._key:
            await JSONResponse({"detail": "no key"}, 401)(scope, receive, send)
            return
        body = await receive()
        method = json.loads(body["body"])["method"]
        self.called[method] += 1

        async def again() -> Any:
            return body

        async def drop(_: Any) -> None:
            """The answer is lost."""

        if method == "SendMessage" and self.lost:
            self.lost -= 1
            await self._routes(scope, again, drop)
            raise ConnectionAbortedError("the answer is lost")
        await self._routes(scope, again, send)


def _keys(signs: str) -> tuple[Any, Mapping[str, Any]]:
    """A key and its public half as a JSON Web Key."""
    if not signs:
        return None, {}
    is_curve = signs == "ES256"
    private: Any = (
        ec.generate_private_key(ec.SECP256R1())
        if is_curve
        else ed25519.Ed25519PrivateKey.generate()
    )
    algorithm = ECAlgorithm if is_curve else OKPAlgorithm
    public = json.loads(algorithm.to_jwk(private.public_key()))
    return PyJWK(json.loads(algorithm.to_jwk(private)), signs).key, public
