"""``rookery run``: submit a program or a prompt, show its progress on stderr, and print its result.

Ctrl-C cancels the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated

from cyclopts import App, Parameter

from rookery.bus.client import Client, Handle
from rookery.bus.clock import new_id
from rookery.ops.cli.access.realm_access import with_realm_client
from rookery.ops.cli.arguments import (
    NO_PROGRAM_OPTIONS,
    NO_PROMPT_OPTIONS,
    NO_RIGHTS_OPTIONS,
    File,
    ProgramOptions,
    PromptOptions,
    RightsOptions,
    run_request,
)
from rookery.ops.cli.options import NO_OPTIONS, NO_TOOLS, NodeTools, Options
from rookery.ops.cli.output import print_json, print_line
from rookery.ops.cli.rendering.run_output import (
    AnswerPrinter,
    LivePrinter,
    follow,
    print_stderr,
    show_result,
)
from rookery.ops.cli.usage_errors import STDIN
from rookery.schemas.envelope import InputSource, Mode
from rookery.schemas.errors import CODES, CodedError, Failed
from rookery.schemas.replies import RunAnswer
from rookery.schemas.run import RunRequest

__all__ = ["app"]

app = App(name="run", help_format="plaintext")

ACCEPTED_S = 30.0
CANCEL_S = 5.0
OUTPUT_S = 1.0
"""For printing what arrived before the result."""


@app.default
def run(
    file: File = None,
    /,
    *,
    words: ProgramOptions = NO_PROGRAM_OPTIONS,
    ask: PromptOptions = NO_PROMPT_OPTIONS,
    may: RightsOptions = NO_RIGHTS_OPTIONS,
    mode: Annotated[Mode, Parameter(help="How the run joins the session.")] = Mode.QUEUE,
    snapshot: Annotated[
        bool,
        Parameter(
            help="Take a snapshot of the session after the run.", negative="", show_default=False
        ),
    ] = False,
    detach: Annotated[
        bool,
        Parameter(help="Print the run's id and do not wait.", negative="", show_default=False),
    ] = False,
    wait: Annotated[bool, Parameter(help="Wait also while the run is parked.")] = True,
    tools: NodeTools = NO_TOOLS,
    options: Options = NO_OPTIONS,
) -> int:
    """Run a program, or a model with a prompt, and print its result."""
    request = run_request(file, words, ask, return_snapshot=snapshot, rights=may.rights())
    source = InputSource.STDIN if file == STDIN else ""
    submission = _RunSubmission(request, mode, source, wait=wait, json=options.json)
    return with_realm_client(
        options, tools, submission.submit if detach else submission.wait_for_end
    )


class _RunSubmission:
    """One run, submitted under one id, also if the request is repeated."""

    def __init__(
        self, request: RunRequest, mode: Mode, input_source: str, *, wait: bool, json: bool
    ) -> None:
        self._request, self._mode, self._wait, self._json = request, mode, wait, json
        self._input_source = input_source
        self._id = new_id()

    async def submit(self, client: Client) -> int:
        """Submit the run and print its id."""
        session = self._request.session_id
        client.input_source = self._input_source
        handle = await client.submit(session, self._request, message_id=self._id, mode=self._mode)
        run_id = await handle.accepted(ACCEPTED_S)
        if self._json:
            print_json({"run_id": run_id, "session_id": session})
        else:
            print_line(run_id)
        return 0

    async def wait_for_end(self, client: Client) -> int:
        """Print the result of the run or, without ``wait``, what it is parked for."""
        if self._request.has_prompt:
            answers = AnswerPrinter()
            answer = await self._result(client, answers)
            return show_result(answer, "", json=self._json, is_shown=answers.has_shown(answer))
        printer = LivePrinter()
        answer = await self._result(client, printer)
        show_rest = printer.print_rest
        return show_result(answer, self._request.code, json=self._json, show_output=show_rest)

    async def _result(self, client: Client, printer: LivePrinter | AnswerPrinter) -> RunAnswer:
        session = self._request.session_id
        client.input_source = self._input_source
        handle = await client.begin(
            session,
            self._request,
            message_id=self._id,
            mode=self._mode,
            through_parks=self._wait,
            output=not self._json,
        )
        say = _print_nothing if self._json else print_stderr
        following = [asyncio.create_task(follow(handle, say))]
        if not self._json:
            following.append(asyncio.create_task(printer.follow(handle)))
        try:
            answer = await handle.result()
            if not self._json:
                await asyncio.wait(following[1:], timeout=OUTPUT_S)
            return answer
        except asyncio.CancelledError:
            await _cancel(handle, say)
            raise
        except Failed as failure:
            if not (handle.run_id and CODES[failure.code].retryable):
                raise
            raise _unanswered(handle.run_id, failure) from None
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)


def _unanswered(run_id: str, failure: Failed) -> Failed:
    """The error for an accepted run without a reply: it may still run, so it is not repeated."""
    return Failed(
        "NO_ANSWER",
        f"run {run_id} was accepted and continues when a node replies: {failure.message}",
        hint=f"rookery runs show {run_id}",
    )


async def _cancel(handle: Handle, say: Callable[[str], None]) -> None:
    """Cancel the run after Ctrl-C, if it was accepted."""
    try:
        async with asyncio.timeout(CANCEL_S):
            await handle.cancel(reason="interrupted at the command line")
    except (CodedError, TimeoutError) as error:
        say(f"run {handle.run_id} continues: {str(error) or 'no node answers'}")
    else:
        say(f"run {handle.run_id} is cancelled")


def _print_nothing(_line: str) -> None:
    """Print no progress, as for programs."""
