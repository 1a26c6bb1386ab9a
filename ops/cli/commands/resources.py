"""``rookery resources list, resolve, read``: resources of a node, as a session may read them.

A resolution captures bytes in the blob store and prints a ref. It leaves no fact, so a ref is read
here by its URI, or if a fact of the session names it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from rookery.bus.client import Client
from rookery.ops.cli.access.realm_access import with_realm_client
from rookery.ops.cli.options import NO_OPTIONS, NO_TOOLS, Options
from rookery.ops.cli.output import print_json, print_line, print_table, printable, write_content
from rookery.schemas.ids import check_session_id, encode_typed_text
from rookery.schemas.resources import CAPTURE_BYTES, ResolvedResource

__all__ = ["app"]

app = App(
    name="resources",
    help="List, resolve and read resources, for a session.",
    help_format="plaintext",
)

SESSION = Annotated[str, Parameter(help="The session that may read it.")]
URI = Annotated[str, Parameter(help="scheme://...; `rookery resources list` has the schemes.")]
MAX_BYTES = Annotated[int, Parameter(help="Where a longer resource is cut.")]


@app.command(name="list")
def list_(*, options: Options = NO_OPTIONS) -> int:
    """List the schemes that the node resolves, and what there is below them."""

    async def work(client: Client) -> int:
        found = await client.resources()
        if options.json:
            print_json(found)
            return 0
        rows = [
            [one.scheme, printable(one.form), printable(", ".join(one.names))]
            for one in found.schemes
        ]
        print_table(["SCHEME", "FORM", "NAMES"], rows, empty="the node resolves nothing")
        return 0

    return with_realm_client(options, NO_TOOLS, work)


@app.command
def resolve(
    session: SESSION,
    uri: URI,
    *,
    max_bytes: MAX_BYTES = CAPTURE_BYTES,
    options: Options = NO_OPTIONS,
) -> int:
    """Capture a resource in the blob store and print its ref."""
    check_session_id(session)

    async def work(client: Client) -> int:
        found = (await client.resolve_resource(session, uri, max_bytes=max_bytes)).resolution
        if options.json:
            print_json(msgspec.to_builtins(found, enc_hook=encode_typed_text))
        else:
            print_line(f"{found.content_ref.as_str()}  {_words(found)}")
        return 0

    return with_realm_client(options, NO_TOOLS, work)


@app.command
def read(
    session: SESSION,
    uri: Annotated[str, Parameter(help="A URI, or a ref that the session's facts name.")],
    *,
    max_bytes: MAX_BYTES = CAPTURE_BYTES,
    offset: Annotated[int, Parameter(help="First byte.")] = 0,
    out: Annotated[Path | None, Parameter(help="Write it to this file; default: stdout.")] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Print the bytes of a resource, as --json in base64 with what is known of them."""
    check_session_id(session)

    async def work(client: Client) -> int:
        piece = await client.read_resource(session, uri, max_bytes=max_bytes, offset=offset)
        if options.json and out is None:
            print_json(msgspec.to_builtins(piece, enc_hook=encode_typed_text))
        else:
            write_content(piece.data, out)
        return 0

    return with_realm_client(options, NO_TOOLS, work)


def _words(found: ResolvedResource) -> str:
    mime = "" if found.content is None else f" {found.content.mime}"
    cut = ", cut" if found.truncated else ""
    return printable(f"{found.byte_len:,} bytes{mime}{cut}, {found.privacy}")
