"""``rookery approvers``: the approvers of a realm and their public keys.

An approver signs every change. Private keys stay in their files.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from msgspec.structs import replace

from rookery.actors.approvals.state import APPROVERS_KEY
from rookery.actors.keys.approver_signatures import Signer
from rookery.actors.projections.reports import ApproverReport, ListedApproverKey
from rookery.bus.ports import Filter
from rookery.ops.cli.access.realm_access import OfflineRealm, local_server, open_realm
from rookery.ops.cli.arguments import make_key, read_public_key_file, read_signer
from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import clock_time, print_danger, print_json, print_line, print_table
from rookery.ops.cli.rendering.run_output import print_stderr
from rookery.schemas.commands import ChangeApprover
from rookery.schemas.errors import Refused
from rookery.schemas.replies import ApproverReceipt

__all__ = ["app", "approver_name", "realm_keys"]

app = App(name="approvers", help_format="plaintext")

Name = Annotated[str, Parameter(help="Name of the approver.")]
As = Annotated[
    Path | None, Parameter(name="--as", help="Private key of an approver, or the root key.")
]


@app.command
def add(
    name: Name,
    *,
    key: Annotated[Path | None, Parameter(help="File of the public or private key.")] = None,
    generate: Annotated[
        Path | None, Parameter(help="File to create for a new private key, mode 0600.")
    ] = None,
    as_: As = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Add a key to an approver, or a new approver. An approver may have several keys."""
    if (key is None) == (generate is None):
        raise Refused("INVALID_ARGUMENT", "give exactly one of --key and --generate")
    signer = None if as_ is None else read_signer(as_)
    asyncio.run(_check_reachable(options))
    public = make_key(generate).public_key if generate is not None else ""
    public = read_public_key_file(key) if key is not None else public
    body = ChangeApprover(name=name, public_key=public)
    try:
        receipt = asyncio.run(_change_approver(body, signer, options))
    except Refused:
        if generate is not None:
            generate.unlink()  # No approver has this key, and the corrected command makes one.
        raise
    return _print_receipt(receipt, options)


@app.command(name="list")
def list_(
    *,
    all_: Annotated[
        bool, Parameter(name="--all", help="Include revoked keys.", negative="")
    ] = False,
    options: Options = NO_OPTIONS,
) -> int:
    """List the keys of the approvers, and what signed each. Exit code 1: changes are forged."""
    with local_server(options):
        report = asyncio.run(_report(options))
    if report.damage is not None:
        print_stderr(f"{report.damage}; until that is clear no signed answer is valid")
    listed = [key for key in report.keys if all_ or key.revoked_at_ms is None]
    if options.json:
        print_json(listed)
    else:
        print_table(
            ["APPROVER", "KEY", "ADDED", "SIGNED BY", "REVOKED"],
            [_row(key) for key in listed],
            empty="no approvers: unsigned decisions are valid, unless the realm requires keys",
        )
    if report.forged and not report.root_key:
        print_stderr("if the realm has a root key, this command needs it, too: approvals.root_key")
    for forged in report.forged:
        print_danger(
            f"FORGED: message {forged.sequence} says that {forged.name} was {forged.change} with "
            f"the key {forged.key_id}, but {forged.reason}; every node skips it"
        )
    if any(not key.signed_by and key.revoked_at_ms is None for key in report.keys):
        print_stderr("sign what nothing proves: rookery approvers add NAME --key FILE --as KEYFILE")
    return 1 if report.forged else 0


@app.command
def revoke(name: Name, *, as_: As = None, options: Options = NO_OPTIONS) -> int:
    """Revoke all keys of an approver."""
    signer = None if as_ is None else read_signer(as_)
    return _print_receipt(
        asyncio.run(_change_approver(ChangeApprover(name=name), signer, options)), options
    )


async def realm_keys(realm: OfflineRealm) -> list[ListedApproverKey]:
    """All keys of the realm that count, revoked ones included."""
    return (await approver_report(realm)).keys


async def approver_name(realm: OfflineRealm, key_id: str, key: Path | None) -> str:
    """The name of the approver that has the key; ``key``: its file."""
    names = [known.name for known in await realm_keys(realm) if known.key_id == key_id]
    if not names:
        raise Refused(
            "APPROVER_UNKNOWN",
            f"the key {key_id} in {key} is no approver's in this realm",
            hint=f"rookery approvers list; approvers add NAME --key {key}",
        )
    return names[-1]


async def approver_report(realm: OfflineRealm) -> ApproverReport:
    """The approvers, read from the journal."""
    pages = realm.journal.scan(Filter("approval", APPROVERS_KEY))
    messages = [stored async for page in pages for stored in page]
    return ApproverReport.read(messages, realm.subjects.realm, realm.root_key)


async def _report(options: Options) -> ApproverReport:
    async with open_realm(options) as realm:
        return await approver_report(realm)


async def _check_reachable(options: Options) -> None:
    """Check that a node replies, before a key is created."""
    async with open_realm(options) as realm:
        await realm.ask("pending", APPROVERS_KEY, {"limit": 1}, dict)


async def _change_approver(
    body: ChangeApprover, signer: Signer | None, options: Options
) -> ApproverReceipt:
    async with open_realm(options) as realm:
        if signer is not None:
            change = (await approver_report(realm)).changes + 1
            body = signer.sign_change(realm.subjects.realm, replace(body, change=change))
        return await realm.ask("approvers", APPROVERS_KEY, body, ApproverReceipt)


def _print_receipt(receipt: ApproverReceipt, options: Options) -> int:
    if options.json:
        print_json(receipt)
    elif receipt.key_ids:
        print_line(f"{receipt.name} has the keys {', '.join(receipt.key_ids)}")
    else:
        print_line(f"{receipt.name} has no valid key")
    return 0


def _row(key: ListedApproverKey) -> tuple[str, ...]:
    revoked = "" if key.revoked_at_ms is None else clock_time(key.revoked_at_ms)
    proof = key.signed_by or "nothing"
    return key.name, key.key_id, clock_time(key.added_at_ms), proof, revoked
