"""``rookery validate``: check a program without running it."""

from __future__ import annotations

from cyclopts import App

from rookery.bus.client import Client
from rookery.ops.cli.access.realm_access import with_realm_client
from rookery.ops.cli.arguments import (
    NO_PROGRAM_OPTIONS,
    NO_PROMPT_OPTIONS,
    File,
    ProgramOptions,
    PromptOptions,
    run_request,
)
from rookery.ops.cli.options import NO_OPTIONS, NO_TOOLS, NodeTools, Options
from rookery.ops.cli.output import print_line
from rookery.ops.cli.rendering.run_output import show_result
from rookery.schemas.run import RunStatus

__all__ = ["app"]

app = App(name="validate", help_format="plaintext")


@app.default
def validate(
    file: File = None,
    /,
    *,
    words: ProgramOptions = NO_PROGRAM_OPTIONS,
    ask: PromptOptions = NO_PROMPT_OPTIONS,
    tools: NodeTools = NO_TOOLS,
    options: Options = NO_OPTIONS,
) -> int:
    """Check a program or a prompt; nothing is executed and no session changes."""
    request = run_request(file, words, ask)

    async def check(client: Client) -> int:
        answer = await client.validate(request.session_id, request)
        if answer.status is RunStatus.OK and not options.json:
            print_line("ok")
        return show_result(answer, request.code, json=options.json)

    return with_realm_client(options, tools, check)
