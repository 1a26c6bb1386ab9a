"""Approvals as table rows and as detail lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rookery.actors.projections.lists import ApprovalProjection
from rookery.bus.ports import StoredMessage
from rookery.ops.cli.output import clock_time, print_table, printable
from rookery.ops.cli.rendering.timeline import duration
from rookery.schemas.approvals.lists import ApprovalState, ListedApproval

__all__ = ["approval_lines", "approval_row", "changed_approvals", "pending_table"]

_COLUMNS: Final = ("APPROVAL", "STATE", "TOOL", "ARGUMENTS", "EFFECT", "ASKED", "LEFT")


def pending_table(approvals: Sequence[ListedApproval], now_ms: int) -> None:
    rows = [approval_row(approval, now_ms) for approval in approvals]
    print_table(_COLUMNS, rows, empty="nothing waits for approval")


def approval_row(approval: ListedApproval, now_ms: int) -> tuple[str, ...]:
    return (
        approval.approval_id,
        _state(approval),
        approval.tool,
        printable(approval.summary),
        approval.side_effect,
        clock_time(approval.requested_at_ms),
        _time_left(approval, now_ms),
    )


def approval_lines(
    approval: ListedApproval, approvers: Sequence[str], now_ms: int
) -> list[tuple[str, str]]:
    """The details an approver needs, and the commands to decide."""
    pending = approval.state is ApprovalState.PENDING
    lines = [
        ("approval", approval.approval_id),
        ("state", _state(approval)),
        ("tool", f"{approval.tool} of {approval.surface}"),
        ("effect", approval.side_effect),
        ("arguments", printable(approval.summary)),
        ("exactly", f"{approval.arguments_ref} (--arguments shows them)"),
        ("digest", approval.request_digest),
        ("session", approval.session_id),
        ("run", approval.run_id),
        ("asking", _attempt_words(approval)),
        ("policy", ", ".join(approval.policy_refs) or approval.policy),
        ("asked", f"{clock_time(approval.requested_at_ms)}, {_names(approval.dispatchers)}"),
    ]
    if pending:
        lines += [
            ("who", _approver_names(approvers)),
            ("until", f"{clock_time(approval.due_ms)}, {_time_left(approval, now_ms)} left"),
            ("type", f"rookery approvals approve {approval.approval_id}"),
            ("or", f"rookery approvals deny {approval.approval_id} --reason TEXT"),
        ]
    else:
        lines.append(("ended", _end(approval)))
    if approval.answers_refused:
        lines.append(("refused", f"{approval.answers_refused} answers"))
    return lines


def changed_approvals(table: ApprovalProjection, stored: StoredMessage) -> list[ListedApproval]:
    """Fold a message; the approvals that it has ended or requested."""
    before = {approval.approval_id: approval for approval in table.approvals(ended=False)}
    table.apply(stored)
    after = {approval.approval_id: approval for approval in table.approvals(ended=False)}
    ended = (table.get(approval_id) for approval_id in before.keys() - after.keys())
    begun = (after[approval_id] for approval_id in after.keys() - before.keys())
    return [*(approval for approval in ended if approval is not None), *begun]


def _state(approval: ListedApproval) -> str:
    return approval.state.value.replace("_", " ")


def _time_left(approval: ListedApproval, now_ms: int) -> str:
    if approval.state is not ApprovalState.PENDING:
        return ""
    return duration(max(0, approval.due_ms - now_ms) // 1_000 * 1_000)


def _attempt_words(approval: ListedApproval) -> str:
    times = "for the first time" if approval.attempt == 1 else f"for the {approval.attempt}. time"
    return f"{times}: {printable(approval.why)}" if approval.why else times


def _names(dispatchers: Sequence[str]) -> str:
    return ", ".join(dispatchers) or "not dispatched yet"


def _approver_names(approvers: Sequence[str]) -> str:
    if not approvers:
        return "any operator or approver by its credential, unverified: no approver has a key"
    return f"{', '.join(approvers)}, with their keys"


def _end(approval: ListedApproval) -> str:
    words = [clock_time(approval.ended_at_ms or 0), approval.reason_code]
    if approval.actor:
        words.append(f"by {approval.actor}, {'' if approval.verified else 'un'}verified")
    if approval.reason:
        words.append(approval.reason)
    return printable(", ".join(words))
