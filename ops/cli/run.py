"""``rookery run``: a program's way from the shell to its result.

Submits, tells on stderr what a run that takes its time waits for, and prints its end. Ctrl-C ends
the run. What a session or a run is, is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated

from cyclopts import App, Parameter

from rookery.bus.client import Client, Handle, new_id
from rookery.ops.cli.ended import show_end, tell
from rookery.ops.cli.following import follow
from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import print_json, print_line
from rookery.ops.cli.program import NO_WORDS, File, ProgramWords, request_of
from rookery.ops.cli.reaching import Tools, reaching
from rookery.schemas.commands import RunAnswer
from rookery.schemas.envelope import Mode
from rookery.schemas.errors import CodedError
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
    words: ProgramWords = NO_WORDS,
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
    request = request_of(file, words, return_snapshot=snapshot)
    asked = _Asked(request, mode, wait=wait, quiet=options.json)
    if detach:
        run_id = reaching(options, tools, asked.accepted)
        if options.json:
            print_json({"run_id": run_id, "session_id": request.session_id})
        else:
            print_line(run_id)
        return 0
    answer = reaching(options, tools, asked.ended)
    return show_end(answer, request.code, json=options.json)


class _Asked:
    """One run, asked for under one id, however often it takes."""

    def __init__(self, request: RunRequest, mode: Mode, *, wait: bool, quiet: bool) -> None:
        self._request, self._mode, self._wait, self._quiet = request, mode, wait, quiet
        self._id = new_id()

    async def accepted(self, client: Client) -> str:
        """Hand it over; its id."""
        session = self._request.session_id
        handle = await client.submit(session, self._request, message_id=self._id, mode=self._mode)
        return await handle.accepted(ACCEPTED_S)

    async def ended(self, client: Client) -> RunAnswer:
        """How it ended or, if nobody wants to wait for that, what it is parked for."""
        session = self._request.session_id
        handle = await client.begin(
            session,
            self._request,
            message_id=self._id,
            mode=self._mode,
            through_parks=self._wait,
        )
        say = _silently if self._quiet else tell
        following = asyncio.create_task(follow(handle, say))
        try:
            return await handle.result()
        except asyncio.CancelledError:
            await _end(handle, say)
            raise
        finally:
            following.cancel()


async def _end(handle: Handle, say: Callable[[str], None]) -> None:
    """Whoever waits has gone: end the run, if it has come that far."""
    try:
        async with asyncio.timeout(CANCEL_S):
            await handle.cancel(reason="interrupted at the command line")
    except (CodedError, TimeoutError) as error:
        say(f"run {handle.run_id} goes on: {error}")
    else:
        say(f"run {handle.run_id} is cancelled")


def _silently(_line: str) -> None:
    """To programs only the end is told."""
