"""``rookery chat``: talk with a model in a session, line by line.

A line is a prompt, and a line with a slash a command. Answers are printed while they are written.
The session keeps the conversation, so a chat may be left and continued, also on another machine; a
prompt goes on while its node is replaced, because it is sent under one id.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec
from cyclopts import App, Parameter
from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.keys.approver_signatures import Signer
from rookery.bus.client import Client, Handle
from rookery.bus.clock import SystemClock, new_id
from rookery.ops.cli.access.realm_access import with_realm_client
from rookery.ops.cli.arguments import read_signer
from rookery.ops.cli.commands.session_memory import (
    compacted_words,
    conversation_rows,
    conversation_sum,
    undone_words,
)
from rookery.ops.cli.options import NO_OPTIONS, NO_TOOLS, ActorOption, NodeTools, Options, actor
from rookery.ops.cli.output import LAYOUT, print_line, printable
from rookery.ops.cli.rendering.approval_lines import approval_lines
from rookery.ops.cli.rendering.run_output import print_stderr, usage_words
from rookery.schemas.agents import KEPT_MESSAGES, Compaction, DeltaKind, ModelUsage, ToolMode
from rookery.schemas.approvals.lists import ListedApproval
from rookery.schemas.calls import WAITING_FOR_APPROVAL
from rookery.schemas.codec import fact_tag
from rookery.schemas.commands import ToolsQuery
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.facts.turn import Parked
from rookery.schemas.ids import check_session_id
from rookery.schemas.replies import RunAnswer, ToolList
from rookery.schemas.run import RunRequest, RunStatus

__all__ = ["app"]

app = App(name="chat", help_format="plaintext")

PROMPT: Final = "> "
HELP: Final = """\
/model NAME    ask this model from now on
/tools         the tools of the node
/append TEXT   add a message without asking
/context       what the next question would hold, with sizes
/compact [N]   replace all but the last N messages by a summary of the model
/undo [N]      go back to before the last N lines, or /compact; /undo N force: although tools acted
/fork NAME     go on in a new session NAME; this one stays as it is
/usage         what this chat has used so far
/quit          leave; the session keeps the conversation
Ctrl-C ends an answer at its next step, twice at once."""
POLL_S: Final = 0.2


@app.default
def chat(
    session: Annotated[str, Parameter(help="The session to talk in.")] = "chat",
    *,
    model: Annotated[str | None, Parameter(help="Model, as NAME of [models.NAME].")] = None,
    tool_mode: Annotated[
        ToolMode | None, Parameter(help="The model acts by calls of tools, by programs, or both.")
    ] = None,
    key: Annotated[Path | None, Parameter(help="Sign decisions with this approver's key.")] = None,
    as_: ActorOption = None,
    tools: NodeTools = NO_TOOLS,
    options: Options = NO_OPTIONS,
) -> int:
    """Talk with a model. Without a node, one runs here until the chat ends."""
    request = RunRequest(
        session_id=check_session_id(session),
        prompt="",
        model=UNSET if model is None else model,
        tool_mode=UNSET if tool_mode is None else tool_mode,
    )
    signer = None if key is None else read_signer(key)
    return with_realm_client(
        options, tools, lambda client: _Chat(client, request, signer, actor(as_)).talk()
    )


class _Chat:
    """One chat, from its first line to its last."""

    def __init__(
        self, client: Client, request: RunRequest, signer: Signer | None, name: str
    ) -> None:
        """``name``: of the person who decides about calls."""
        self._client, self._request, self._signer = client, request, signer
        self._actor = name
        self._session = request.session_id
        self._used = ModelUsage()
        self._interrupts = 0

    async def talk(self) -> int:
        """Read lines until there are no more."""
        commands: Mapping[str, Callable[[str], Awaitable[None]]] = {
            "/model": self._set_model,
            "/tools": self._show_tools,
            "/append": self._append,
            "/context": self._show_context,
            "/compact": self._compact,
            "/undo": self._undo,
            "/fork": self._fork,
            "/usage": self._show_usage,
            "/help": _show_help,
        }
        if sys.stdin.isatty():
            print_stderr(f"session {self._session}; /help lists what a line may be")
        while (line := await _read_line()) is not None:
            name, _, rest = line.strip().partition(" ")
            if name == "/quit":
                break
            work = commands.get(name)
            try:
                if work is not None:
                    await work(rest.strip())
                elif name.startswith("/"):
                    print_stderr(f"there is no command {printable(name)}: /help lists them")
                elif line.strip():
                    await self._ask(line.strip())
            except CodedError as error:
                _show_error(error.code, error.message, error.hint)
        return 0

    # --- prompts ----------------------------------------------------------------------------------

    async def _ask(self, text: str) -> None:
        """Ask, and print the answer while it is written; approvals are asked for meanwhile."""
        request, message_id = replace(self._request, prompt=text), new_id()
        loop, self._interrupts = asyncio.get_running_loop(), 0
        handle = await self._client.begin(
            self._session, request, message_id=message_id, output=True
        )
        loop.add_signal_handler(signal.SIGINT, lambda: loop.create_task(self._interrupt(handle)))
        printer = asyncio.create_task(_print_answers(handle))
        approving = asyncio.create_task(self._ask_approvals(handle))
        try:
            answer = await handle.result()
            with suppress(TimeoutError):
                shown = await asyncio.wait_for(asyncio.shield(printer), 1.0)
                _end_answer(answer, shown)
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            for task in (printer, approving):
                task.cancel()
            await asyncio.gather(printer, approving, return_exceptions=True)
        if answer.usage is not UNSET:
            self._used = self._used.plus(answer.usage)

    async def _interrupt(self, handle: Handle) -> None:
        """End the run: at its next boundary, and the second time at once."""
        self._interrupts += 1
        now = self._interrupts > 1
        print_stderr("\n[ends now]" if now else "\n[ends at the next step; Ctrl-C again: now]")
        with suppress(CodedError):
            await handle.cancel(now=now, reason="interrupted in a chat")

    async def _ask_approvals(self, handle: Handle) -> None:
        """Let the person decide about the calls of the run that wait for an approver."""
        await handle.accepted()
        asked: set[str] = set()
        async with aclosing(handle.events()) as facts:
            async for fact in facts:
                if fact["type"] != fact_tag(Parked) or fact["code"] != WAITING_FOR_APPROVAL:
                    continue
                for waiting in await self._client.approvals(self._session):
                    if waiting.approval_id not in asked:
                        asked.add(waiting.approval_id)
                        await self._decide(waiting)

    async def _decide(self, waiting: ListedApproval) -> None:
        for label, value in approval_lines(waiting, (), SystemClock().now_ms()):
            print_stderr(printable(f"  {label}  {value}", LAYOUT))
        while True:
            said = (await _read_line("approve? y/n ") or "n").strip().lower()
            if said in ("y", "yes", "n", "no"):
                break
        decision = "approved" if said.startswith("y") else "denied"
        signer = self._signer
        try:
            await self._client.decide(
                waiting,
                "approved" if decision == "approved" else "denied",
                actor=self._actor,
                sign=None if signer is None else signer.sign,
            )
        except CodedError as error:
            _show_error(error.code, error.message, error.hint or "rookery approvals --help")

    # --- commands ---------------------------------------------------------------------------------

    async def _set_model(self, name: str) -> None:
        self._request = replace(self._request, model=name or UNSET)
        print_stderr(f"the next line is for {name or 'the model of the session'}")

    async def _append(self, text: str) -> None:
        answer = await self._client.append(self._session, text)
        print_stderr("added" if answer["status"] == "ok" else str(answer["error"]["message"]))

    async def _show_tools(self, _: str) -> None:
        found = msgspec.convert(await self._client.ask("tools", "all", ToolsQuery()), ToolList)
        for tool in found.tools:
            said = tool.capability
            words, _, _ = said.description.partition("\n")
            print_stderr(printable(f"{said.name}  {said.side_effect}  {words}"))
        if not found.tools:
            print_stderr("no tools")

    async def _show_context(self, _: str) -> None:
        view = await self._client.conversation(self._session)
        for size, role, words in conversation_rows(view):
            print_stderr(f"{size:>9}  {role:9}  {words}")
        print_stderr(conversation_sum(view))

    async def _compact(self, text: str) -> None:
        keep = _number(text, "/compact", KEPT_MESSAGES, least=0)
        request = replace(
            self._request, prompt=UNSET, tool_mode=UNSET, compact=Compaction(keep=keep)
        )
        answer = await self._client.run(self._session, request)
        if answer.usage is not UNSET:
            self._used = self._used.plus(answer.usage)
        print_stderr(compacted_words(answer))

    async def _undo(self, text: str) -> None:
        count, _, word = text.partition(" ")
        if word not in ("", "force"):
            raise Refused("INVALID_ARGUMENT", "/undo takes a number and `force`")
        runs = _number(count, "/undo", 1, least=1)
        try:
            undone = await self._client.undo(self._session, runs, force=word == "force")
        except Refused as refusal:
            if refusal.code != "EFFECTS_REMAIN":
                raise
            hint = f"to go back all the same: /undo {runs} force"
            raise Refused(refusal.code, refusal.message, hint=hint) from None
        print_stderr(f"the session {undone_words(undone)}")

    async def _fork(self, name: str) -> None:
        """Continue in a new session with the memory and the conversation of this one."""
        if not name:
            raise Refused("INVALID_ARGUMENT", "the name of the new session is missing")
        check_session_id(name)
        taken = await self._client.snapshot(self._session)
        await self._client.restore(name, taken["snapshot_id"])
        self._session, self._request = name, replace(self._request, session_id=name)
        print_stderr(f"the next line is for session {name}")

    async def _show_usage(self, _: str) -> None:
        print_stderr(usage_words(self._used))


def _number(text: str, command: str, default: int, *, least: int) -> int:
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise Refused("INVALID_ARGUMENT", f"{command} takes a number from {least} on")
    return int(text)


async def _show_help(_: str) -> None:
    print_stderr(HELP)


def _end_answer(answer: RunAnswer, shown: str) -> None:
    """Print what is not on the terminal yet."""
    if answer.status is RunStatus.OK and answer.result != shown:
        print_line(printable(str(answer.result), LAYOUT))
    elif shown and not shown.endswith("\n"):
        print_line("")
    if answer.error is not None:
        _show_error(answer.error.code, answer.error.message, answer.error.hint or "")


def _show_error(code: str, message: str, hint: str) -> None:
    print_stderr(printable(f"{code}: {message}", LAYOUT))
    if hint:
        print_stderr(printable(f"hint: {hint}", LAYOUT))


async def _print_answers(handle: Handle) -> str:
    """Print each piece of text as it arrives; the text of the last answer."""
    text, place = "", (0, 0)
    async with aclosing(handle.answers()) as pieces:
        async for piece in pieces:
            if piece.kind is not DeltaKind.TEXT and not piece.cut:
                continue
            if (piece.step, piece.attempt) != place or piece.cut:
                print_line("" if not text or text.endswith("\n") else "\n", end="")
                text, place = "", (piece.step, piece.attempt)
            if piece.cut:
                print_stderr("[the answer was cut]")
                continue
            text += piece.text
            print_line(printable(piece.text, LAYOUT), end="")
    return text


async def _read_line(prompt: str = PROMPT) -> str | None:
    """The next line of standard input; ``None`` at its end."""
    if sys.stdin.isatty():
        print_stderr(prompt, end="")
    line = await asyncio.to_thread(sys.stdin.readline)
    return line.rstrip("\n") if line else None
