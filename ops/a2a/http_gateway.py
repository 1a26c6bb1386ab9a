"""The gateway by HTTP: its sessions as agents, each under its name; the card of the first at ``/``.

Agent cards and keys are public, all else needs the token of a client. Routes, types and errors are
those of the SDK; each event of a stream gets its cursor as the id by which a client resumes.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from a2a.auth.user import User
from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.server.routes.agent_card_routes import create_agent_card_routes
from a2a.server.routes.common import DefaultServerCallContextBuilder
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from a2a.server.routes.rest_routes import create_rest_routes
from a2a.types import AgentCard
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH
from a2a.utils.errors import ContentTypeNotSupportedError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rookery.bus.event_loop import TaskSet
from rookery.bus.roles import Role
from rookery.ops.a2a.cards import KEYS_PATH, SessionCards
from rookery.ops.a2a.handler import SessionHandler
from rookery.ops.a2a.messages import cursor_of
from rookery.ops.a2a.push import PushNetworks, PushNotifications
from rookery.ops.a2a.task_book import TaskBook
from rookery.ops.config import Config
from rookery.ops.gateways import HttpAddress, RealmLink, TokenGuard, serve_app

__all__ = ["A2aGateway"]

BODY_BYTES_MAX: Final = 1 << 20
"""Of a request; an envelope has a quarter of it at most."""
CARD_CACHE: Final = "public, max-age=60"
_STREAM: Final = b"text/event-stream"
_JSON: Final = "application/json"
_JSON_OF_SDK: Final = b"application/a2a+json"


class A2aGateway:
    """Some sessions of a realm for A2A clients."""

    def __init__(
        self,
        config: Config,
        sessions: Sequence[str],
        tokens: Mapping[str, bytes],
        networks: PushNetworks,
    ) -> None:
        """``tokens``: of the clients, by their names; ``networks``: where push notifications may
        go."""
        self._link = RealmLink(config, Role.GATEWAY)
        self._sessions, self._tokens = sessions, tokens
        self._books = {one: TaskBook(self._link, one) for one in sessions}
        self._push = {
            one: PushNotifications(self._link, book, tokens, networks)
            for one, book in self._books.items()
        }

    async def serve(
        self, listener: socket.socket, url: str, on_ready: Callable[[str], None]
    ) -> None:
        """Serve until the task is cancelled. ``url``: by which clients reach the gateway; empty if
        they reach it where it listens."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._following())
            app = self._app(url or HttpAddress.of_socket(listener).url)
            await serve_app(app, listener, on_ready, lambda: None)

    @asynccontextmanager
    async def _following(self) -> AsyncIterator[None]:
        """Follow the sessions in this block; afterwards the connection is closed."""
        tasks = TaskSet()
        for session, book in self._books.items():
            tasks.start(book.run())
            tasks.start(self._push[session].run())
        try:
            yield
        finally:
            await tasks.cancel()
            await self._link.close()

    def _app(self, url: str) -> ASGIApp:
        cards = SessionCards(self._link, self._books, url)
        routes: list[BaseRoute] = [_keys_route(cards)]
        for session, book in self._books.items():
            handler = SessionHandler(self._link, book, cards, self._push[session])
            routes += _session_routes(handler, cards)
        first = self._sessions[0]
        routes.append(_card_route(cards, first))
        app = AttendedRequests(EventIds(Starlette(routes=routes)))
        return TokenGuard(app, self._tokens, _is_public)


def _is_public(path: str) -> bool:
    return path.endswith((AGENT_CARD_WELL_KNOWN_PATH, KEYS_PATH))


def _session_routes(handler: SessionHandler, cards: SessionCards) -> list[BaseRoute]:
    """JSON-RPC with and without a slash at the end, then HTTP+JSON under the same path."""
    contexts = ClientContexts()
    dispatcher = JsonRpcDispatcher(handler, contexts, enable_v0_3_compat=True)

    async def call(request: Request) -> Response:
        media_type = request.headers.get("content-type", "").partition(";")[0].strip()
        if media_type.lower() != _JSON:
            error = ContentTypeNotSupportedError(f"content of {media_type[:80]!r}, not {_JSON}")
            return JSONResponse(build_error_response(None, error))
        return await dispatcher.handle_requests(request)

    path = f"/{handler.session}"
    rpc = [Route(one, call, methods=["POST"]) for one in (path, f"{path}/")]
    rest = create_rest_routes(handler, contexts)
    return [*rpc, Mount(path, routes=[_card_route(cards, handler.session), *rest])]


def _card_route(cards: SessionCards, session: str) -> BaseRoute:
    async def signed(_: AgentCard) -> AgentCard:
        return await cards.read(session)

    (route,) = create_agent_card_routes(
        cards.unsigned(session), card_modifier=signed, cache_control=CARD_CACHE
    )
    return route


def _keys_route(cards: SessionCards) -> BaseRoute:
    async def read(_: Request) -> Response:
        return JSONResponse(await cards.keys(), headers={"Cache-Control": CARD_CACHE})

    return Route(KEYS_PATH, read, methods=["GET"])


class ClientUser(User):
    """The client whose token a request has."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def user_name(self) -> str:
        return self._name


class ClientContexts(DefaultServerCallContextBuilder):
    """Tells the handler which client calls."""

    def build_user(self, request: Request) -> User:
        return ClientUser(TokenGuard.client_of(request.scope))


class AttendedRequests:
    """Reads no more than a message may have, and ends the work on a request whose client has gone:
    its task goes on without it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_body, size = asyncio.Event(), 0

        async def receive_body() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > BODY_BYTES_MAX:
                raise HTTPException(413)
            if not message.get("more_body", False):
                has_body.set()
            return message

        async def until_gone() -> None:
            await has_body.wait()
            while (await receive())["type"] != "http.disconnect":
                """Nothing else is to come."""

        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        serving = asyncio.ensure_future(self._app(scope, receive_body, send))
        leaving = asyncio.ensure_future(until_gone())
        try:
            await asyncio.wait({serving, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
        finally:
            serving.cancel()
            leaving.cancel()
            await asyncio.gather(serving, leaving, return_exceptions=True)


class EventIds:
    """Gives each event of a stream its cursor as its id, and JSON the media type that the
    specification demands (11.1)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_stream = False

        async def send_with_ids(message: Message) -> None:
            nonlocal is_stream
            if message["type"] == "http.response.start":
                headers = [_with_media_type(*header) for header in message["headers"]]
                is_stream = dict(headers).get(b"content-type", b"").startswith(_STREAM)
                message = {**message, "headers": headers}
            elif is_stream and message.get("body"):
                message = {**message, "body": _with_id(message["body"])}
            await send(message)

        await self._app(scope, receive, send_with_ids)


def _with_media_type(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    is_own = name == b"content-type" and value.startswith(_JSON_OF_SDK)
    return name, _JSON.encode() if is_own else value


def _with_id(event: bytes) -> bytes:
    """The event with its id; the server writes whole events."""
    data = b"\n".join(
        line.removeprefix(b"data:").strip()
        for line in event.splitlines()
        if line.startswith(b"data:")
    )
    try:
        cursor = cursor_of(json.loads(data)) if data else ""
    except ValueError:
        return event
    return f"id: {cursor}\r\n".encode() + event if cursor else event
