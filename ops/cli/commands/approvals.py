"""``rookery approvals``: list and show approvals, and decide them.

No node is needed: approvals are read from the journal, and a decision waits in the inbox until a
node starts.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter
from cyclopts.validators import Number

from rookery.actors.projections.lists import ApprovalProjection, ApprovalQueryHandler
from rookery.bus.client import read_arguments
from rookery.bus.clock import SystemClock, new_id
from rookery.bus.ports import Filter
from rookery.ops.cli.access.realm_access import OfflineRealm, local_server, open_realm
from rookery.ops.cli.arguments import read_signer
from rookery.ops.cli.commands.approvers import approver_name, realm_keys
from rookery.ops.cli.commands.grants import app as grants
from rookery.ops.cli.options import NO_OPTIONS, ActorOption, Options, actor
from rookery.ops.cli.output import print_json, print_line
from rookery.ops.cli.rendering.approval_lines import (
    approval_lines,
    approval_row,
    changed_approvals,
    pending_table,
)
from rookery.schemas.approvals.lists import (
    ApprovalList,
    ApprovalState,
    ListedApproval,
    PendingQuery,
)
from rookery.schemas.approvals.records import DecideApproval, DecisionReceipt
from rookery.schemas.errors import Refused
from rookery.schemas.ids import check_session_id

__all__ = ["app"]

app = App(name="approvals", help_format="plaintext")
app.command(grants)

ID = Annotated[str, Parameter(help="The approval's id, as `approvals list` shows it.")]
Reason = Annotated[str, Parameter(help="Why, for the record.")]
Key = Annotated[Path | None, Parameter(help="Key file that signs the decision.")]


@app.command(name="list")
def list_(
    *,
    session: Annotated[str | None, Parameter(help="Only of this session.")] = None,
    all_: Annotated[bool, Parameter(name="--all", help="Include ended ones.", negative="")] = False,
    follow: Annotated[
        bool, Parameter(help="Print every change until Ctrl-C.", negative="")
    ] = False,
    limit: Annotated[
        int, Parameter(help="At most so many.", validator=Number(gte=1, lte=1_000))
    ] = 1_000,
    options: Options = NO_OPTIONS,
) -> int:
    """List the pending approvals, soonest due first."""
    session = session and check_session_id(session)
    if follow:
        try:
            asyncio.run(_follow(session, options))
        except KeyboardInterrupt:
            return 0
        return 0
    query = PendingQuery(session=session, ended=all_, limit=limit)
    with local_server(options):
        found = asyncio.run(_list(query, options))
    if options.json:
        print_json(found)
        return 0
    pending_table(found.approvals, SystemClock().now_ms())
    if found.total > len(found.approvals):
        print_line(f"{len(found.approvals)} of {found.total}")
    return 0


@app.command
def show(
    approval: ID,
    *,
    arguments: Annotated[
        bool, Parameter(help="Print the exact arguments, too.", negative="")
    ] = False,
    options: Options = NO_OPTIONS,
) -> int:
    """Show the request, its approvers and its deadline."""
    with local_server(options):
        found, approvers, exact = asyncio.run(_show(approval, arguments, options))
    if options.json:
        shown = {"arguments": exact} if arguments else {}
        print_json({"approval": found, "approvers": approvers, **shown})
        return 0
    for name, value in approval_lines(found, approvers, SystemClock().now_ms()):
        print_line(f"{name:11}{value}")
    if arguments:
        print_line(msgspec.json.format(msgspec.json.encode(exact), indent=2).decode())
    return 0


@app.command
def approve(
    approval: ID,
    *,
    for_session: Annotated[
        bool, Parameter(help="Approve this tool for the whole session.", negative="")
    ] = False,
    reason: Reason = "",
    as_: ActorOption = None,
    key: Key = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Approve the call, with exactly the arguments shown."""
    decision = ApprovalState.APPROVED_FOR_SESSION if for_session else ApprovalState.APPROVED
    return _decide(_answer(approval, decision, reason, as_), key, options)


@app.command
def deny(
    approval: ID,
    *,
    reason: Reason = "",
    as_: ActorOption = None,
    key: Key = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Deny the call; the program gets an error."""
    return _decide(_answer(approval, ApprovalState.DENIED, reason, as_), key, options)


# --- queries --------------------------------------------------------------------------------------


async def _list(query: PendingQuery, options: Options) -> ApprovalList:
    async with open_realm(options) as realm:
        found = await realm.try_ask("pending", query, ApprovalList)
        if found is None:
            clock, session = SystemClock(), query.session
            view = ApprovalQueryHandler.without_node(
                realm.journal, clock.now_ms, session=session, store=realm.checkpoints
            )
            found = await view.list_approvals(query)
        return found


async def _follow(session: str | None, options: Options) -> None:
    """Print the pending approvals, then every new and every ended one."""
    table, where = ApprovalProjection(), Filter("approval", session)
    async with open_realm(options) as realm:
        end = await realm.journal.end()
        async for page in realm.journal.scan(where):
            for stored in page:
                table.apply(stored)
        _print_changes(list(table.approvals(ended=False)), options)
        async with aclosing(realm.feed.follow(where, end)) as pages:
            async for page in pages:
                for stored in page:
                    _print_changes(changed_approvals(table, stored), options)


def _print_changes(changed: list[ListedApproval], options: Options) -> None:
    now_ms = SystemClock().now_ms()
    for approval in changed:
        if options.json:
            print_json(approval)
        else:
            print_line("  ".join(str(cell) for cell in approval_row(approval, now_ms)))


async def _show(approval_id: str, arguments: bool, options: Options) -> tuple[Any, Any, Any]:
    async with open_realm(options) as realm:
        found = await _find(realm, approval_id)
        exact = await read_arguments(realm.blobs, found) if arguments else None
        keys = await realm_keys(realm)
        approvers = sorted({key.name for key in keys if key.revoked_at_ms is None})
        return found, approvers, exact


async def _find(realm: OfflineRealm, approval_id: str) -> ListedApproval:
    """The approval, read from the journal: a signature must cover what is there."""
    session = check_session_id(approval_id.partition(".")[0])
    view = ApprovalQueryHandler.without_node(realm.journal, SystemClock().now_ms, session=session)
    found = (await view.list_approvals(PendingQuery(approval_id=approval_id))).approvals
    if not found:
        raise Refused(
            "APPROVAL_NOT_FOUND",
            f"no approval {approval_id[:120]!r} here",
            hint="rookery approvals list --all",
        )
    return found[0]


# --- decisions ------------------------------------------------------------------------------------


def _answer(
    approval_id: str, decision: ApprovalState, reason: str, name: str | None
) -> DecideApproval:
    return DecideApproval(
        approval_id=approval_id,
        decision=decision.value,
        actor=name or "",
        answered_at_ms=SystemClock().now_ms(),
        reason=reason,
    )


def _decide(answer: DecideApproval, key: Path | None, options: Options) -> int:
    with local_server(options):
        receipt = asyncio.run(_submit(answer, key, options))
    if options.json:
        print_json({"stored": True} if receipt is None else receipt)
    elif receipt is None:
        print_line("the decision is stored until a node of the realm starts: rookery up")
    else:
        check = "verified" if receipt.verified else "unverified"
        print_line(f"{receipt.approval_id} is {receipt.status.value.replace('_', ' ')} ({check})")
    return 0


async def _submit(
    answer: DecideApproval, key: Path | None, options: Options
) -> DecisionReceipt | None:
    """The node's receipt; ``None`` if the decision waits in the inbox for a node."""
    signer = None if key is None else read_signer(key)
    async with open_realm(options) as realm:
        approval = await _find(realm, answer.approval_id)
        name = answer.actor
        if not name and signer is not None:
            name = await approver_name(realm, signer.key_id, key)
        answer = msgspec.structs.replace(
            answer,
            actor=actor(name),
            request_digest=approval.request_digest,
            tool_digest=approval.tool_digest,
        )
        if signer is not None:
            answer = signer.sign(realm.subjects.realm, answer)
        if await realm.nodes():
            return await realm.ask("decide", approval.session_id, answer, DecisionReceipt)
        if approval.state is not ApprovalState.PENDING:
            raise Refused("APPROVAL_CLOSED", f"it is {approval.state.value.replace('_', ' ')}")
        body = msgspec.json.encode(answer)
        await realm.inbox.submit(
            "decide", approval.session_id, body, message_id=new_id(), identity=realm.identity
        )
        return None
