"""``rookery peers ask / send / respond / serve / stop / exchanges / follow``: speak for a session
to its peers, or let a program of it answer them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from cyclopts import Parameter
from msgspec import UNSET

from rookery.bus.client import Client
from rookery.bus.clock import new_id
from rookery.bus.roles import Role
from rookery.ops.cli.commands.peers.roster import app
from rookery.ops.cli.options import NO_OPTIONS, Options, parse_duration_ms
from rookery.ops.cli.output import clock_time, print_json, print_line, print_table
from rookery.ops.cli.rendering.run_output import print_stderr
from rookery.ops.server import ConfiguredServer
from rookery.schemas.errors import Refused
from rookery.schemas.machines.peer import DrainMode
from rookery.schemas.peers.envelope import PeerFailure
from rookery.schemas.peers.exchanges import EnvelopeReceipt, ExchangeList, ListedRequest
from rookery.schemas.peers.items import Responder, ResponderView
from rookery.schemas.run import Language, RunRequest

__all__ = ["app"]

T = TypeVar("T")

Address = Annotated[str, Parameter(help="SESSION@ALIAS, or a session of this realm.")]
Session = Annotated[str, Parameter(help="Session in whose name it is sent.")]
RequestId = Annotated[str, Parameter(help="Id of the request.")]
_SESSION = RunRequest().session_id


@app.command
def ask(
    to: Address,
    intent: Annotated[str, Parameter(help="What is requested.")],
    *,
    param: Annotated[
        list[str] | None,
        Parameter(
            name=["-p", "--param"],
            help="A parameter: NAME=JSON, NAME=TEXT, or NAME=@FILE of text.",
            negative="",
        ),
    ] = None,
    session: Session = _SESSION,
    timeout: Annotated[str, Parameter(help="How long the response is awaited.")] = "1d",
    no_wait: Annotated[
        bool, Parameter(help="Print the id of the request instead of its result.", negative="")
    ] = False,
    stream: Annotated[
        bool, Parameter(help="Print every fact of the exchange, a JSON object a line.", negative="")
    ] = False,
    options: Options = NO_OPTIONS,
) -> int:
    """Send a request to a peer and print its result. Without this command it waits on."""
    params = dict(_param(text) for text in param or ()) or UNSET
    timeout_s = parse_duration_ms(timeout) / 1_000

    async def work(client: Client) -> Any:
        request = partial(client.send_request, session, to, intent, params, timeout_s=timeout_s)
        if stream:
            return await _stream(client, session, request)
        if no_wait:
            return await request()
        return await client.ask_peer(session, to, intent, params, timeout_s=timeout_s)

    found = _with_client(options, work)
    if no_wait and not options.json:
        print_line(found.id)
    elif not stream:
        print_json(found)
    return 0


async def _stream(
    client: Client, session: str, request: Callable[..., Awaitable[EnvelopeReceipt]]
) -> None:
    after, reader = await client.journal.end(), f"cli.{new_id()}"
    sent = await request(stream=True)
    print_stderr(
        f"if this ends early: rookery peers follow {sent.id} --session {session} "
        f"--reader {reader} --from SEQ"
    )
    await _print_exchange(client, session, sent.id, reader, after)


async def _print_exchange(
    client: Client, session: str, request_id: str, reader: str, after: int
) -> None:
    found = client.follow_exchange(session, request_id, reader=reader, after=after)
    async with aclosing(found):
        async for fact in found:
            print_line(msgspec.json.encode(fact).decode())


@app.command
def send(
    to: Address,
    text: Annotated[str, Parameter(help="The message: JSON, or any text.")],
    *,
    in_reply_to: Annotated[
        str | None, Parameter(help="Id of the request that asks for more.")
    ] = None,
    session: Session = _SESSION,
    options: Options = NO_OPTIONS,
) -> int:
    """Send a message to a peer. It is delivered as soon as the peer's realm can be reached."""
    receipt = _with_client(
        options,
        lambda client: client.send_message(session, to, _json(text), in_reply_to=in_reply_to),
    )
    if options.json:
        print_json(receipt)
    else:
        print_line(receipt.id)
    return 0


@app.command
def respond(
    request_id: RequestId,
    result: Annotated[str | None, Parameter(help="The result: JSON, or any text.")] = None,
    *,
    failed: Annotated[
        str | None, Parameter(help="The request failed: CODE, or 'CODE: message'.")
    ] = None,
    session: Session = _SESSION,
    options: Options = NO_OPTIONS,
) -> int:
    """Respond to a peer's request, once."""
    if result is not None and failed is not None:
        raise Refused("INVALID_ARGUMENT", "a request has a result, or it failed")
    value = UNSET if result is None else _json(result)
    error = None if failed is None else _failure(failed)
    receipt = _with_client(
        options, lambda client: client.send_response(session, request_id, result=value, error=error)
    )
    if options.json:
        print_json(receipt)
    else:
        print_line(f"responded to {request_id}")
    return 0


class Serving(StrEnum):
    """How long a responder serves."""

    ATTACHED = "attached"
    TIMED = "timed"
    PERSISTENT = "persistent"


_MODES = {
    Serving.ATTACHED: DrainMode.ATTACHED_SESSION,
    Serving.TIMED: DrainMode.TIMED,
    Serving.PERSISTENT: DrainMode.PERSISTENT_HOST,
}


@app.command
def serve(
    session: Annotated[str, Parameter(help="The session whose peers are answered.")],
    *,
    handler: Annotated[
        Path | None,
        Parameter(help="The program: it runs once for each `item`; its result is the answer."),
    ] = None,
    agent: Annotated[
        str | None,
        Parameter(help="The agent in its place: `params` of a request are its arguments."),
    ] = None,
    intents: Annotated[
        Path | None,
        Parameter(help='JSON: {INTENT: {"description": ..., "silent": true}}; default: any.'),
    ] = None,
    description: Annotated[str, Parameter(help="What the session does for its peers.")] = "",
    mode: Annotated[
        Serving,
        Parameter(
            help="attached: until the session ends; timed: until it is idle; persistent: also "
            "again after failures."
        ),
    ] = Serving.ATTACHED,
    idle: Annotated[str, Parameter(help="Of timed: how long without an item.")] = "60s",
    timeout: Annotated[str | None, Parameter(help="Time limit of each run.")] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Let a program or an agent answer the peers of a session, on any node, without this
    command."""
    fields = {
        **_responder_of(handler, agent),
        "description": description,
        "mode": _MODES[mode],
        "idle_ms": parse_duration_ms(idle),
    }
    if intents is not None:
        fields["intents"] = _json(_text_of(intents))
    if timeout is not None:
        fields["wall_ms"] = parse_duration_ms(timeout)
    try:
        responder = msgspec.convert(fields, Responder)
    except msgspec.ValidationError as error:
        raise Refused("INVALID_ARGUMENT", str(error)) from None
    view = _with_client(options, lambda client: client.serve_peers(session, responder))
    _print_responder(options, f"{session} serves its peers", view)
    return 0


def _responder_of(handler: Path | None, agent: str | None) -> dict[str, Any]:
    """What answers: exactly one of the two."""
    if (handler is None) == (agent is None):
        raise Refused("INVALID_ARGUMENT", "give exactly one of --handler FILE and --agent NAME")
    if handler is None:
        return {"agent": agent}
    language = Language.TYPESCRIPT if handler.suffix == ".ts" else Language.PYTHON
    return {"code": _text_of(handler), "language": language}


@app.command
def stop(
    session: Annotated[str, Parameter(help="The session.")],
    *,
    now: Annotated[
        bool, Parameter(help="Cancel the run that handles an item, too.", negative="")
    ] = False,
    options: Options = NO_OPTIONS,
) -> int:
    """Hand no more items to the session's responder; they wait in its queue."""
    view = _with_client(options, lambda client: client.stop_serving(session, now=now))
    _print_responder(options, f"{session} serves no peers", view)
    return 0


def _print_responder(options: Options, words: str, view: ResponderView) -> None:
    if options.json:
        print_json(view)
    else:
        print_line(f"{words}; {view.queued} items wait")


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused("INVALID_ARGUMENT", f"{file}: {error}") from None


@app.command
def event(
    session: Annotated[str, Parameter(help="The session that gets it.")],
    text: Annotated[str, Parameter(help="What has happened: JSON, or any text.")],
    *,
    source: Annotated[str, Parameter(help="Where it comes from: webhook, cron ...")] = "cli",
    options: Options = NO_OPTIONS,
) -> int:
    """Give an event from outside to a session: a program receives it, or its responder."""
    receipt = _with_client(
        options, lambda client: client.publish_event(session, source, _json(text))
    )
    if options.json:
        print_json(receipt)
    else:
        print_line(receipt.id)
    return 0


@app.command
def exchanges(
    session: Annotated[str, Parameter(help="The session.")] = _SESSION,
    *,
    options: Options = NO_OPTIONS,
) -> int:
    """List the requests of a session that wait for a response, and those of peers to it."""
    found: ExchangeList = _with_client(options, lambda client: client.exchanges(session))
    if options.json:
        print_json(found)
        return 0
    rows = [_row(one, "to") for one in found.requests]
    rows += [_row(one, "from") for one in found.unanswered]
    print_table(["REQUEST", "", "PEER", "INTENT", "STATE", "DUE"], rows, empty="no open exchanges")
    if found.undelivered:
        print_line(f"{found.undelivered} envelopes are not delivered yet")
    return 0


@app.command
def follow(
    request_id: RequestId,
    *,
    session: Session = _SESSION,
    from_: Annotated[int, Parameter(name="--from", help="After this sequence of the journal.")] = 0,
    reader: Annotated[
        str, Parameter(help="Attach to its stream under this name, or come back to it.")
    ] = "",
    options: Options = NO_OPTIONS,
) -> int:
    """Print the facts of an exchange, one JSON object a line, until it ends."""
    _with_client(
        options, lambda client: _print_exchange(client, session, request_id, reader, from_)
    )
    return 0


def _with_client(options: Options, work: Callable[[Client], Awaitable[T]]) -> T:
    config = options.load().config

    async def run() -> T:
        async with ConfiguredServer(config).require(Role.OPERATOR).client(config.realm) as client:
            return await work(client)

    return asyncio.run(run())


def _row(request: ListedRequest, direction: str) -> tuple[str, ...]:
    due, state = clock_time(request.due_at_ms), request.state or "Received"
    return request.id, direction, request.peer, request.intent, state, due


def _param(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise Refused("INVALID_ARGUMENT", f"{text[:80]!r} is not NAME=JSON")
    if not value.startswith("@"):
        return name, _json(value)
    return name, _text_of(Path(value[1:]))


def _json(text: str) -> Any:
    """The value of JSON; any other text is itself."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _failure(text: str) -> PeerFailure:
    code, _, message = text.partition(":")
    return PeerFailure(code=code.strip(), message=message.strip())
