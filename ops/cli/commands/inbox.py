"""``rookery inbox dead``: list, show, retry and drop dead letters."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from rookery.bus.ports import DeadLetter
from rookery.ops.cli.access.realm_access import local_server, open_realm
from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import clock_time, print_json, print_line, print_table
from rookery.schemas.errors import Refused

__all__ = ["app"]

app = App(name="inbox", help_format="plaintext")
dead = App(name="dead", help="Commands that no node could process.", help_format="plaintext")
app.command(dead)

Number = Annotated[int, Parameter(help="Its number, as `inbox dead list` shows it.")]


@dead.command(name="list")
def list_(*, options: Options = NO_OPTIONS) -> int:
    """List the dead letters, oldest first."""
    letters = _letters(options)
    if options.json:
        print_json([_fields(letter) for letter in letters])
        return 0
    print_table(
        ["NUMBER", "BURIED", "VERB", "KEY", "ID", "CODE", "MESSAGE"],
        [
            (d.number, clock_time(d.buried_at_ms), d.verb, d.key, d.id, d.code, d.message)
            for d in letters
        ],
        empty="no dead letters",
    )
    return 0


@dead.command
def show(number: Number, *, options: Options = NO_OPTIONS) -> int:
    """Show a dead letter with its body."""
    letters = {letter.number: letter for letter in _letters(options)}
    if number not in letters:
        raise Refused(
            "DEAD_LETTER_NOT_FOUND", f"no dead letter {number}", hint="rookery inbox dead list"
        )
    fields = _fields(letters[number])
    if options.json:
        print_json(fields)
        return 0
    for name, value in fields.items():
        print_line(f"{name:14}{value}")
    return 0


@dead.command
def retry(number: Number, *, options: Options = NO_OPTIONS) -> int:
    """Submit the command again, under its id."""
    asyncio.run(_retry(number, options))
    return _done(number, "submitted again", options)


@dead.command
def drop(number: Number, *, options: Options = NO_OPTIONS) -> int:
    """Delete a dead letter."""
    asyncio.run(_drop(number, options))
    return _done(number, "removed", options)


def _letters(options: Options) -> list[DeadLetter]:
    with local_server(options):
        return asyncio.run(_dead(options))


async def _dead(options: Options) -> list[DeadLetter]:
    async with open_realm(options) as realm:
        return await realm.inbox.dead_letters()


async def _retry(number: int, options: Options) -> None:
    async with open_realm(options, current=True) as realm:
        await realm.inbox.retry_dead_letter(number)


async def _drop(number: int, options: Options) -> None:
    async with open_realm(options) as realm:
        await realm.inbox.drop_dead_letter(number)


def _done(number: int, what: str, options: Options) -> int:
    if options.json:
        print_json({"number": number, "done": what})
    else:
        print_line(f"dead letter {number}: {what}")
    return 0


def _fields(letter: DeadLetter) -> dict[str, Any]:
    """The fields of a dead letter; its body as text, or as base64 if it is no text."""
    fields = msgspec.structs.asdict(letter)
    try:
        fields["body"] = letter.body.decode()
    except UnicodeDecodeError:
        fields["body_base64"] = fields.pop("body")
    return fields
