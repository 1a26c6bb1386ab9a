"""``rookery realm`` and ``rookery secrets``: change a realm as a whole.

An upgrade needs a realm without nodes. The key of its secrets is rotated beside serving nodes, too;
no command prints a value or a key, and no value is an argument: other users could see it."""

from __future__ import annotations

import asyncio
import sys
from getpass import getpass
from pathlib import Path
from typing import Annotated, Final

import msgspec
from cyclopts import App, Parameter

from rookery.bus.realm_upgrade import RealmUpgrade, upgrade_realm
from rookery.bus.replicas import StreamReplicas, change_replicas, plan_replicas
from rookery.bus.sealed_secrets import SecretKey
from rookery.ops.cli.access.realm_access import local_server, open_realm
from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import print_json, print_line, print_table, refuse_file_errors
from rookery.ops.keys import NodeSecrets, SecretsRotation
from rookery.ops.process_identity import is_dead
from rookery.schemas.errors import Failed, Refused

__all__ = ["app", "secrets_app"]

app = App(name="realm", help_format="plaintext")


@app.command
def upgrade(
    *,
    check: Annotated[
        bool, Parameter(help="Print what would change, and change nothing.", negative="")
    ] = False,
    options: Options = NO_OPTIONS,
) -> int:
    """Upgrade a realm of an older version to the format of this version, in place.

    No message of the journal changes. `rookery up` does the same when it starts. Stop all nodes of
    the realm first; older versions refuse the realm afterwards.

    Then every stream gets as many copies as `server.replicas` says, one stream at a time. A command
    that was interrupted goes on where it ended."""
    with local_server(options):
        plan, done, copies = asyncio.run(_upgrade(options, apply=not check))
    if options.json:
        print_json({**msgspec.structs.asdict(plan), "done": done, "replicas": copies})
        return 0
    print_line(_plan_words(plan, done=done))
    if check:
        for one in copies:
            print_line(f"{_copies_words(one)}; {one.wanted} shall be")
    return 0


async def _upgrade(
    options: Options, *, apply: bool
) -> tuple[RealmUpgrade, bool, list[StreamReplicas]]:
    """The plan, whether it was applied, and the streams without the copies they shall have."""
    setting = options.load().config.server.replicas
    async with open_realm(options) as realm:
        connection, subjects = realm.connection, realm.subjects
        plan, done = await upgrade_realm(connection, subjects, is_dead, apply=apply)
        copies = await plan_replicas(connection, subjects, setting)
        if apply and copies:
            if nodes := sorted(await realm.nodes()):
                raise Failed(
                    "REALM_IN_USE",
                    f"realm {plan.realm} lacks copies and is served by {', '.join(nodes)}",
                    hint="stop them first: rookery nodes list",
                )
            show = print_line if not options.json else _discard
            await change_replicas(connection, copies, lambda one: show(_copies_words(one)))
        return plan, done, copies


def _discard(_: str) -> None:
    """The progress is for people."""


def _copies_words(one: StreamReplicas) -> str:
    behind = f" ({', '.join(one.missing)} behind)" if one.missing else ""
    return f"stream {one.stream} has {one.current} whole copies of {one.replicas}{behind}"


def _plan_words(plan: RealmUpgrade, *, done: bool) -> str:
    if not plan.is_needed:
        return f"realm {plan.realm} has format {plan.format} already"
    change = "was brought" if done else "would be brought"
    return (
        f"realm {plan.realm} {change} from format {plan.format} to {plan.to}: its streams take "
        f"nothing but commands from clients; the {plan.messages} messages of {plan.stream} stay"
    )


# --- secrets --------------------------------------------------------------------------------------

secrets_app = App(name="secrets", help_format="plaintext")

VALUE_BYTES_MAX: Final = 64 << 10

SecretName = Annotated[str, Parameter(help="The name, as in `secret:NAME` of a binding.")]


@secrets_app.command(name="set")
def set_(
    name: SecretName,
    *,
    file: Annotated[
        Path | None, Parameter(help="Read the value from a file instead of a prompt or stdin.")
    ] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Store a secret, or replace its value, for bindings that name it `secret:NAME`.

    The value is typed at a prompt, or comes from stdin or a file, without the end of its last line.
    A lease that uses it gets the new value at its next refresh."""
    NodeSecrets.stored_name(name)
    value = _read_value(name, file)
    with local_server(options):
        generation = asyncio.run(_set(options, name, value))
    if options.json:
        print_json({"name": f"secret:{name}", "generation": generation})
    else:
        print_line(f"stored secret:{name}, generation {generation}")
    return 0


@secrets_app.command
def remove(name: SecretName, *, options: Options = NO_OPTIONS) -> int:
    """Remove a secret that `secrets set` has stored, in all its generations."""
    NodeSecrets.stored_name(name)
    with local_server(options):
        asyncio.run(_remove(options, name))
    if options.json:
        print_json({"name": f"secret:{name}", "removed": True})
    else:
        print_line(f"removed secret:{name}")
    return 0


def _read_value(name: str, file: Path | None) -> bytes:
    if file is not None:
        with refuse_file_errors(file), file.open("rb") as opened:
            value = opened.read(VALUE_BYTES_MAX + 2)
    elif sys.stdin.isatty():
        value = getpass(f"value of secret:{name}, not shown: ").encode("utf-8", "surrogateescape")
    else:
        value = sys.stdin.buffer.read(VALUE_BYTES_MAX + 2)
    value = value.removesuffix(b"\n").removesuffix(b"\r")
    if not value or len(value) > VALUE_BYTES_MAX:
        raise Refused(
            "INVALID_ARGUMENT",
            f"the value of secret:{name} has {len(value) or 'no'} bytes: 1 to {VALUE_BYTES_MAX} "
            "are stored",
        )
    return value


@secrets_app.command(name="list")
def list_(*, options: Options = NO_OPTIONS) -> int:
    """List the realm's secrets: name, generation, and the id of the key that seals it."""
    with local_server(options):
        listed = [_shown(one) for one in asyncio.run(_list(options))]
    if options.json:
        print_json(listed)
    else:
        print_table(
            ["NAME", "GENERATION", "KEY"],
            [(one.name, str(one.generation), one.key_id or "in clear") for one in listed],
            empty="no secrets: the first `rookery up` makes them",
        )
    return 0


@secrets_app.command
def rotate(*, options: Options = NO_OPTIONS) -> int:
    """Seal every secret with a new key, then remove the older one from the key file.

    Nodes that use the file go on. A rotation that was interrupted is finished by the next one. Copy
    the file afterwards: an older copy opens nothing any more."""
    with local_server(options):
        rotated = asyncio.run(_rotate(options))
    if options.json:
        print_json(rotated)
        return 0
    removed = ", ".join(rotated.removed)
    print_line(f"key {rotated.key_id} seals all secrets; {rotated.resealed} were sealed again")
    print_line(f"removed {removed}" if removed else "remove the older keys from their source now")
    return 0


def _shown(one: SecretKey) -> SecretKey:
    """A secret with the name that people and bindings use."""
    return msgspec.structs.replace(one, name=NodeSecrets.shown_name(one.name))


async def _set(options: Options, name: str, value: bytes) -> int:
    async with open_realm(options, current=True) as realm:
        sealed = realm.sealed_secrets(realm.keys)
        await sealed.require_keys()
        return await sealed.replace(NodeSecrets.stored_name(name), value)


async def _remove(options: Options, name: str) -> None:
    async with open_realm(options, current=True) as realm:
        if not await realm.sealed_secrets(realm.keys).remove(NodeSecrets.stored_name(name)):
            raise Refused(
                "SECRET_NOT_FOUND",
                f"the realm has no secret:{name}",
                hint="rookery secrets list",
            )


async def _list(options: Options) -> list[SecretKey]:
    async with open_realm(options, current=True) as realm:
        return await realm.sealed_secrets(realm.keys).list()


async def _rotate(options: Options) -> SecretsRotation:
    async with open_realm(options, current=True) as realm:
        keys = realm.keys
        return await SecretsRotation.perform(realm.sealed_secrets(keys), keys)
