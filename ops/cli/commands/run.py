"""``rookery run``: a program's way from the shell to its result.

Submits, tells on stderr what a run that takes its time waits for, and prints its end. Ctrl-C ends
the run. What a session or a run is, is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated

from cyclopts import App, Parameter

from rookery.bus.client.client import Client, Handle, new_id
from rookery.ops.cli.access.node_access import Tools, with_realm_client
from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import print_json, print_line
from rookery.ops.cli.program_args import NO_PROGRAM_OPTIONS, File, ProgramOptions, run_request
from rookery.ops.cli.rendering.run_progress import follow
from rookery.ops.cli.rendering.run_result import print_stderr, show_result
from rookery.schemas.envelope import Mode
from rookery.schemas.errors import CODES, CodedError, Failed
from rookery.schemas.replies import RunAnswer
from rookery.schemas.run import RunRequest

__all__ = ["app"]

app = App(name="run", help_format="plaintext")

ACCEPTED_S = 30.0
CANCEL_S = 5.0


@app.default
def run(
    file: File = None,
    /,
    *,
    words: ProgramOptions = NO_PROGRAM_OPTIONS,
    mode: Annotated[Mode, Parameter(help="How it joins the session.")] = Mode.QUEUE,
    snapshot: Annotated[
        bool,
        Parameter(help="Keep the session as the run leaves it.", negative="", show_default=False),
    ] = False,
    detach: Annotated[
        bool,
        Parameter(help="Print the run's id and do not wait.", negative="", show_default=False),
    ] = False,
    wait: Annotated[bool, Parameter(help="Wait also while it is parked.")] = True,
    tools: Tools = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Run a program and wait for what it comes to."""
    request = run_request(file, words, return_snapshot=snapshot)
    asked = _RunSubmission(request, mode, wait=wait, json=options.json)
    return with_realm_client(options, tools, asked.submit if detach else asked.wait_for_end)


class _RunSubmission:
    """One run, asked for under one id, however often it takes."""

    def __init__(self, request: RunRequest, mode: Mode, *, wait: bool, json: bool) -> None:
        self._request, self._mode, self._wait, self._json = request, mode, wait, json
        self._id = new_id()

    async def submit(self, client: Client) -> int:
        """Hand it over and show its id."""
        session = self._request.session_id
        handle = await client.submit(session, self._request, message_id=self._id, mode=self._mode)
        run_id = await handle.accepted(ACCEPTED_S)
        if self._json:
            print_json({"run_id": run_id, "session_id": session})
        else:
            print_line(run_id)
        return 0

    async def wait_for_end(self, client: Client) -> int:
        """Show how it ended or, if nobody wants to wait for that, what it is parked for."""
        return show_result(await self._result(client), self._request.code, json=self._json)

    async def _result(self, client: Client) -> RunAnswer:
        session = self._request.session_id
        handle = await client.begin(
            session,
            self._request,
            message_id=self._id,
            mode=self._mode,
            through_parks=self._wait,
        )
        say = _print_nothing if self._json else print_stderr
        following = asyncio.create_task(follow(handle, say))
        try:
            return await handle.result()
        except asyncio.CancelledError:
            await _cancel(handle, say)
            raise
        except Failed as failure:
            if not (handle.run_id and CODES[failure.code].retryable):
                raise
            raise _unanswered(handle.run_id, failure) from None
        finally:
            following.cancel()


def _unanswered(run_id: str, failure: Failed) -> Failed:
    """It was accepted: it is not ours to begin elsewhere, and nobody has said that it failed."""
    return Failed(
        "NO_ANSWER",
        f"run {run_id} was accepted, stands and goes on when a node answers: {failure.message}",
        hint=f"rookery runs show {run_id}",
    )


async def _cancel(handle: Handle, say: Callable[[str], None]) -> None:
    """Whoever waits has gone: end the run, if it has come that far."""
    try:
        async with asyncio.timeout(CANCEL_S):
            await handle.cancel(reason="interrupted at the command line")
    except (CodedError, TimeoutError) as error:
        say(f"run {handle.run_id} goes on: {str(error) or 'no node answers'}")
    else:
        say(f"run {handle.run_id} is cancelled")


def _print_nothing(_line: str) -> None:
    """To programs only the end is told."""
