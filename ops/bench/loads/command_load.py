"""Commands as clients send them, to the request endpoint and to the inbox."""

from __future__ import annotations

from rookery.bus.commands import command_headers
from rookery.bus.nats import Connection, Message, Outgoing
from rookery.bus.subjects import Subjects
from rookery.ops.bench.harness.bench_decider import COMMAND, VERB
from rookery.ops.bench.harness.load import LoadResult, LoadWindow, Task, command_id, is_error

__all__ = ["inbox", "requests"]

_SUBJECTS = Subjects("default")


async def requests(connection: Connection, task: Task) -> LoadResult:
    """Send by request-reply, over the entities in turn."""
    window = LoadWindow(connection, task)
    messages = [
        Outgoing(
            _SUBJECTS.request(VERB, _key(number, task)),
            COMMAND,
            window.reply(number),
            command_headers(command_id(task.cell, number)),
        )
        for number in range(task.count)
    ]
    return await window.run(messages)


async def inbox(connection: Connection, task: Task) -> LoadResult:
    """Send to the durable inbox: acked by JetStream, answered on ``Rookery-Reply``."""
    window, acks = LoadWindow(connection, task), connection.client.new_inbox()

    def on_acks(messages: list[Message]) -> None:
        if any(map(is_error, messages)):
            window.fail("the inbox refuses commands")

    await connection.subscribe(acks, on_acks)
    messages = [
        Outgoing(
            _SUBJECTS.command(VERB, _key(number, task)),
            COMMAND,
            acks,
            command_headers(command_id(task.cell, number), reply_to=window.reply(number)),
        )
        for number in range(task.count)
    ]
    return await window.run(messages)


def _key(number: int, task: Task) -> str:
    return f"e{(task.first + number) % task.entities}"
