"""``rookery auth``: the credentials of an embedded server's realm."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from rookery.bus.credentials import Credential, CredentialStore, ServerFormat
from rookery.bus.roles import PRIVACY_MAX, ROLES_FOR_ONE, Role, permissions
from rookery.bus.server import Store
from rookery.bus.subjects import Subjects
from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import print_json, print_line, print_table
from rookery.ops.cli.rendering.run_output import print_stderr
from rookery.ops.config import address_of
from rookery.ops.server import ConfiguredServer
from rookery.schemas.errors import Refused

__all__ = ["app"]

app = App(name="auth", help_format="plaintext")

Name = Annotated[str, Parameter(help="The credential's name.")]
Surface = Annotated[str, Parameter(help="The surface whose tools a worker serves, or the hook.")]


@app.command
def url(
    name: Annotated[str, Parameter(help="A role, or the name of a credential.")] = Role.CLIENT,
    *,
    surface: Surface = "",
    options: Options = NO_OPTIONS,
) -> int:
    """Print the server's URL with a credential: no other command prints one.

    Clients of NATS also need the prefix of the credential's inbox, for replies:
    _INBOX.REALM.NAME, such as _INBOX.default.client."""
    found = _url_of_role(Role(name), surface, options) if name in set(Role) else ""
    found = found or _url_of(name, options)
    if options.json:
        print_json({"url": found})
    else:
        print_line(found)
    return 0


def _url_of_role(role: Role, surface: str, options: Options) -> str:
    """The URL with the configured credential if it has the role, else with that of the store."""
    _check_surface(role, surface)
    config = options.load().config
    server = ConfiguredServer(config).require(role, surface)
    configured = server.credential
    if configured is None or (configured.role, configured.surface) == (role, surface):
        return server.url_with_credential()
    without_file = msgspec.structs.replace(config.server, credentials_file="")
    local = ConfiguredServer(msgspec.structs.replace(config, server=without_file)).require(
        role, surface
    )
    if local.credential is None:
        raise Refused(
            "CREDENTIAL_NOT_FOUND",
            f"server.credentials_file has the role {configured.role}, not {role}",
            hint=f"ask for a credential made by `rookery auth create NAME --role {role}`",
        )
    return local.url_with_credential()


def _url_of(name: str, options: Options) -> str:
    """The URL with a credential that ``auth create`` made."""
    store, realm = _store_and_realm(options)
    credential = store.credentials.get(realm, name)
    if credential is None:
        text = f"realm {realm} has no credential {name[:80]!r}"
        raise Refused("CREDENTIAL_NOT_FOUND", text, hint="rookery auth list")
    config = options.load().config
    running = store.running_server() if store.is_locked() else None
    if not config.url and running is None:
        raise ConfiguredServer(config).missing_error()
    return credential.url(address_of(config.url) if running is None else running.address)


@app.command
def init(
    folder: Annotated[Path, Parameter(help="Where the credentials are kept, for you only.")],
    *,
    format_: Annotated[
        ServerFormat, Parameter(name="--format", help="How the server knows its users.")
    ] = ServerFormat.NKEYS,
    account: Annotated[
        bool, Parameter(help="Only the users, for the block of an account.", negative="")
    ] = False,
    options: Options = NO_OPTIONS,
) -> int:
    """Make the credentials of a realm for a NATS server elsewhere, and print its configuration.

    The text contains no secret. Print and load it again after create, rotate and revoke with
    --store FOLDER. Hand each file of the folder to its holder alone."""
    config = options.load().config
    store = CredentialStore(folder.expanduser().absolute())
    store.prepare(config.realm, format_)
    print_line(store.server_config(in_account=account).rstrip())
    print_stderr(f"credentials, a file each, for their holders alone: {folder}/credentials")
    return 0


@app.command(name="list")
def list_(*, options: Options = NO_OPTIONS) -> int:
    """List the credentials in the store, without their secrets."""
    store, _ = _store_and_realm(options)
    listed = [_described(store, one) for one in store.credentials.all()]
    if options.json:
        print_json(listed)
        return 0
    print_table(
        ["REALM", "NAME", "ROLE", "SURFACE", "FILE"],
        [
            tuple(one[name] for name in ("realm", "name", "role", "surface", "file"))
            for one in listed
        ],
        empty="no credentials: the first `rookery up` makes them",
    )
    return 0


@app.command
def roles(*, options: Options = NO_OPTIONS) -> int:
    """Print the subjects that each role may publish and subscribe to, and the highest privacy class
    of content that it may read; NAME and SURFACE are those of its credential."""
    realm = options.load().config.realm
    table = {role: permissions(role, Subjects(realm), f"{realm}.NAME", "SURFACE") for role in Role}
    if options.json:
        print_json(
            {
                role: {**allowed._asdict(), "privacy_max": PRIVACY_MAX[role]}
                for role, allowed in table.items()
            }
        )
        return 0
    for role, allowed in table.items():
        print_line(f"{role:9} reads     up to {PRIVACY_MAX[role]}")
        for what, subjects in allowed._asdict().items():
            for subject in subjects:
                print_line(f"{role:9} {what:9} {subject}")
    return 0


@app.command
def create(
    name: Name,
    *,
    role: Annotated[Role, Parameter(help="What it may do.")],
    surface: Surface = "",
    options: Options = NO_OPTIONS,
) -> int:
    """Make a credential, and print its file: hand it to its holder, for `server.credentials_file`
    or `connect(credential=...)`."""
    _check_surface(role, surface)
    store, realm = _store_and_realm(options)
    made = store.credentials.create(realm, name, role, surface)
    store.reload(made, accepted=True)
    return _print(store, made, "created", options)


@app.command
def rotate(name: Name, *, options: Options = NO_OPTIONS) -> int:
    """Replace the secrets of a credential. Connections with the former ones end at once."""
    store, realm = _store_and_realm(options)
    _check_no_node_uses(store, realm, name)
    made = store.credentials.rotate(realm, name)
    store.reload(made, accepted=True)
    return _print(store, made, "rotated", options)


@app.command
def revoke(name: Name, *, options: Options = NO_OPTIONS) -> int:
    """Remove a credential. Its connections end at once, and the server refuses it."""
    store, realm = _store_and_realm(options)
    _check_no_node_uses(store, realm, name)
    former = store.credentials.revoke(realm, name)
    store.reload(former, accepted=False)
    return _print(store, former, "revoked", options)


def _store_and_realm(options: Options) -> tuple[Store, str]:
    config = options.load().config
    return ConfiguredServer(config).store, config.realm


def _check_surface(role: Role, surface: str) -> None:
    if (role in ROLES_FOR_ONE) is not bool(surface):
        raise Refused(
            "INVALID_ARGUMENT",
            "a credential of a worker or a hook is for one surface or hook, and no other role has"
            " one",
            hint="rookery auth create NAME --role worker --surface SURFACE",
        )


def _check_no_node_uses(store: Store, realm: str, name: str) -> None:
    found = store.credentials.get(realm, name)
    if found is not None and found.role is Role.NODE and store.is_locked():
        raise Refused(
            "REALM_IN_USE",
            f"the node on {store.path} may use the credential {name!r}",
            hint="stop the node first: it would be cut off, and serve no client",
        )


def _described(store: Store, credential: Credential) -> dict[str, str]:
    return {
        "realm": credential.realm,
        "name": credential.name,
        "role": credential.role.value,
        "surface": credential.surface,
        "public_key": credential.key.public,
        "file": str(store.credentials.path(credential)),
    }


def _print(store: Store, credential: Credential, done: str, options: Options) -> int:
    described = _described(store, credential)
    if options.json:
        print_json({**described, "done": done})
    else:
        print_line(f"{done} {credential.name}, {credential.role}: {described['file']}")
    if server := store.credentials.server_format:
        print_stderr(f"load it into your server: rookery auth init {store.path} --format {server}")
    return 0
