"""An agent on the official SDK's server: it knows nothing of Rookery.

It prints its URL, and answers each message with one artifact. Needs ``pip install 'rookery[a2a]'``.
"""

from __future__ import annotations

import sys

import uvicorn
from a2a.helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part
from starlette.applications import Starlette

__all__ = ["ForecastAgent", "forecast_card", "main"]


class ForecastAgent(AgentExecutor):
    """Says that the sun shines, wherever that is."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message and context.task_id and context.context_id  # noqa: PT018 - one fact.
        await event_queue.enqueue_event(new_task_from_user_message(context.message))
        task = TaskUpdater(event_queue, context.task_id, context.context_id)
        await task.start_work()
        await task.add_artifact([Part(text=f"sunny in {context.get_user_input()}")])
        await task.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id and context.context_id  # noqa: PT018 - one fact.
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def forecast_card(url: str) -> AgentCard:
    """What the agent says of itself."""
    return AgentCard(
        name="Weather",
        description="Says what the weather is.",
        version="1",
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0")
        ],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="ask", name="ask", description="Asks.", tags=["weather"])],
    )


def main() -> None:
    """Serve the agent on a free port of this machine."""
    server = uvicorn.Server(config := uvicorn.Config(Starlette(), port=0, log_level="warning"))
    socket = config.bind_socket()
    socket.listen()  # A client that reads the URL may connect at once.
    url = f"http://127.0.0.1:{socket.getsockname()[1]}"
    card = forecast_card(url)
    handler = DefaultRequestHandler(ForecastAgent(), InMemoryTaskStore(), card)
    config.app = Starlette(
        routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/")]
    )
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()
    server.run(sockets=[socket])


if __name__ == "__main__":
    main()
