"""``rookery approvals grants``: list and revoke grants."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from rookery.actors.projections.lists import ApprovalQueryHandler
from rookery.bus.clock import SystemClock
from rookery.ops.cli.access.realm_access import OfflineRealm, local_server, open_realm
from rookery.ops.cli.arguments import read_signer
from rookery.ops.cli.commands.approvers import approver_name, realm_keys
from rookery.ops.cli.options import NO_OPTIONS, ActorOption, Options, actor
from rookery.ops.cli.output import clock_time, print_danger, print_json, print_line, print_table
from rookery.ops.journal import find_forged_approvals
from rookery.schemas.approvals.lists import GrantedQuery, GrantList, ListedGrant
from rookery.schemas.commands import RevokeGrant
from rookery.schemas.errors import Refused
from rookery.schemas.ids import check_session_id
from rookery.schemas.replies import GrantReceipt

__all__ = ["app"]

app = App(name="grants", help="List and revoke grants.", help_format="plaintext")


@app.command(name="list")
def list_(
    *,
    session: Annotated[str | None, Parameter(help="Only of this session.")] = None,
    all_: Annotated[
        bool,
        Parameter(name="--all", help="Include consumed, expired and revoked ones.", negative=""),
    ] = False,
    options: Options = NO_OPTIONS,
) -> int:
    """List the valid grants, newest first. Exit code 1: grants or revocations are forged."""
    query = GrantedQuery(session=session and check_session_id(session), ended=all_)
    with local_server(options):
        found, forged = asyncio.run(_list(query, options))
    if options.json:
        print_json(found)
    else:
        print_table(
            ["GRANT", "STATE", "SESSION", "TOOL", "COVERS", "BY", "UNTIL"],
            [_row(grant) for grant in found.grants],
            empty="no grants",
        )
    for one in forged:
        print_danger(f"FORGED: {one}")
    return 1 if forged else 0


@app.command
def revoke(
    grant: Annotated[str, Parameter(help="The grant's id, as `grants list` shows it.")],
    *,
    as_: ActorOption = None,
    key: Annotated[
        Path | None, Parameter(help="Key file that signs it; with require_keys needed.")
    ] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Revoke a grant; for a grant of a session, also the grants issued from it."""
    receipt = asyncio.run(_revoke(grant, as_, key, options))
    if options.json:
        print_json(receipt)
    else:
        print_line(f"grant {receipt.grant_id} is {receipt.state}")
    return 0


async def _list(query: GrantedQuery, options: Options) -> tuple[GrantList, Sequence[str]]:
    """The list, and what is forged of the facts that it was made from."""
    config = options.load().config
    async with open_realm(options) as realm:
        found = await realm.try_ask("granted", query, GrantList)
        if found is None:
            found = await _list_offline(realm, query)
        if not (config.approvals.require_keys or await realm_keys(realm)):
            return found, ()
        return found, await find_forged_approvals(realm.journal, config, query.session)


async def _list_offline(realm: OfflineRealm, query: GrantedQuery) -> GrantList:
    clock, session = SystemClock(), query.session
    view = ApprovalQueryHandler.without_node(
        realm.journal, clock.now_ms, session=session, store=realm.checkpoints
    )
    return await view.list_grants(query)


async def _revoke(
    grant_id: str, name: str | None, key: Path | None, options: Options
) -> GrantReceipt:
    signer = None if key is None else read_signer(key)
    async with open_realm(options) as realm:
        known = (await _list_offline(realm, GrantedQuery(ended=True))).grants
        session = next((g.session_id for g in known if g.grant_id == grant_id), None)
        if session is None:
            raise Refused(
                "GRANT_NOT_FOUND",
                f"no grant {grant_id[:120]!r} here",
                hint="rookery approvals grants list --all",
            )
        if not name and signer is not None:
            name = await approver_name(realm, signer.key_id, key)
        command = RevokeGrant(grant_id=grant_id, actor=actor(name))
        if signer is not None:
            command = signer.sign_revocation(realm.subjects.realm, command)
        return await realm.ask("grants", session, command, GrantReceipt)


def _row(grant: ListedGrant) -> tuple[object, ...]:
    return (
        grant.grant_id,
        grant.state.value,
        grant.session_id,
        grant.tool,
        "every call in the session" if grant.operation_id is None else grant.operation_id,
        grant.actor,
        clock_time(grant.expires_at_ms),
    )
