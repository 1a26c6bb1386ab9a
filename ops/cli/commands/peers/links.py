"""``rookery peers link``: the files by which the servers of several realms are joined."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from cyclopts import Parameter

from rookery.bus.clock import entropy
from rookery.bus.mesh_links import LinkFiles, MeshLink, link_config, make_links, read_link
from rookery.ops.cli.commands.peers.exchanges import app
from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import print_json, print_line
from rookery.schemas.errors import Refused

__all__ = ["app"]

PASSWORD_BYTES = 24


@app.command
def link(
    hub: Annotated[str, Parameter(help="Site whose server the others connect to.")],
    leaf: Annotated[list[str], Parameter(help="The other sites.", negative="")],
    *,
    url: Annotated[str, Parameter(help="Where they reach it: tls://HOST:7422, or nats-leaf://.")],
    listen: Annotated[
        str | None, Parameter(help="Where it listens; default: at all addresses, or as --url.")
    ] = None,
    folder: Annotated[Path, Parameter(help="Where the files are written.")] = Path("links"),
    servers: Annotated[
        bool,
        Parameter(help="Also SITE.mesh.conf, for a nats-server of one's own.", negative=""),
    ] = False,
    certificates: Annotated[
        str, Parameter(help="Folder of ca.pem, SITE.pem and SITE-key.pem, for SITE.mesh.conf.")
    ] = "",
    options: Options = NO_OPTIONS,
) -> int:
    """Write SITE.link.json for the server of each site: rookery up --mesh-link SITE.link.json.

    A site is the realm on one server; others accept its card under this name. The files have
    passwords, which stay as they were if the command is repeated with more sites."""
    realm = options.load().config.realm
    links = _links(hub, leaf, url, listen, folder)
    configs = {
        one.site: _server_config(one, realm, certificates) for one in links if servers
    }  # Refused before anything is written.
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = [_write(folder / f"{one.site}.link.json", msgspec.json.encode(one)) for one in links]
    files += [_write(folder / f"{site}.mesh.conf", text.encode()) for site, text in configs.items()]
    if options.json:
        print_json({"files": [str(file) for file in files]})
        return 0
    for one in links:
        where = f"listens on {one.listen}" if one.listen else f"connects to {one.url}"
        print_line(f"{one.site}: {folder}/{one.site}.link.json, {where}")
    print_line("each site starts with its own file: rookery up --mesh-link SITE.link.json")
    print_line("then pair the realms under these names: rookery peers accept CARD --as SITE")
    return 0


def _links(
    hub: str, leaves: Sequence[str], url: str, listen: str | None, folder: Path
) -> list[MeshLink]:
    former = folder / f"{hub}.link.json"
    known = read_link(former).passwords if former.exists() else {}
    passwords = {one: known.get(one) or entropy(PASSWORD_BYTES).hex() for one in leaves}
    address = urlsplit(url)
    try:
        port = address.port
    except ValueError as error:
        raise Refused("INVALID_ARGUMENT", f"{url[:200]}: {error}") from None
    everywhere = "0.0.0.0" if address.scheme == "tls" else address.hostname  # noqa: S104
    return list(make_links(hub, leaves, url, listen or f"{everywhere}:{port}", passwords))


def _server_config(made: MeshLink, realm: str, certificates: str) -> str:
    """To be included in the configuration of a server that has JetStream."""
    files = LinkFiles()
    if certificates:
        files = LinkFiles(
            ca_file=f"{certificates}/ca.pem",
            certificate_file=f"{certificates}/{made.site}.pem",
            key_file=f"{certificates}/{made.site}-key.pem",
        )
    return "\n".join(link_config(made, realm, ['include "auth.conf"'], files)) + "\n"


def _write(path: Path, body: bytes) -> Path:
    """For the owner only: it has passwords."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(body)
    return path
