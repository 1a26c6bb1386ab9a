"""Rookery's own MCP tools: runs, sessions and approvals of the realm."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from rookery.bus.client import Client, read_arguments
from rookery.ops.gateways import RealmLink
from rookery.ops.mcp_server.approver import McpApprover
from rookery.ops.mcp_server.arguments import (
    ApproveArguments,
    CreateSessionArguments,
    DenyArguments,
    DestroySessionArguments,
    ListApprovalsArguments,
    ListRunsArguments,
    ListSessionsArguments,
    RunCancelArguments,
    RunCodeArguments,
    RunIdArguments,
    RunResultArguments,
    ShowApprovalArguments,
    ValidateArguments,
    decode_arguments,
    object_schema,
    reply_schema,
)
from rookery.ops.mcp_server.run_follower import ProgressReporter, RunFollower, find_run
from rookery.ops.mcp_server.run_report import (
    PATIENCE_S,
    RunReport,
    ValidationReport,
    validation_report,
)
from rookery.schemas.approvals.lists import (
    ApprovalList,
    ApprovalState,
    ListedApproval,
    PendingQuery,
)
from rookery.schemas.approvals.records import DecisionReceipt
from rookery.schemas.commands import Cancel, CreateSession, RunsQuery, SessionsQuery
from rookery.schemas.replies import RunList, RunReceipt, SessionList, SessionView
from rookery.schemas.run import SessionLimits

__all__ = ["ApprovalReply", "RealmTool", "RealmTools"]


class ApprovalReply(msgspec.Struct, frozen=True, kw_only=True):
    """An approval with the exact arguments of its call."""

    approval: ListedApproval
    arguments: Any


class RealmTool(NamedTuple):
    """One tool, for clients and for this server."""

    name: str
    description: str
    arguments: type[msgspec.Struct]
    replies: type[msgspec.Struct]
    act: Callable[[Any, ProgressReporter], Awaitable[msgspec.Struct]]
    reads: bool = False
    destroys: bool = False

    @property
    def input_schema(self) -> dict[str, Any]:
        return object_schema(self.arguments)

    @property
    def output_schema(self) -> dict[str, Any]:
        return reply_schema(self.replies)

    @property
    def hints(self) -> dict[str, bool]:
        return {"read_only_hint": self.reads, "destructive_hint": self.destroys}

    async def call(
        self, arguments: Mapping[str, Any], progress: ProgressReporter
    ) -> msgspec.Struct:
        """Decode the arguments and act; a coded error if either fails."""
        return await self.act(decode_arguments(self.arguments, dict(arguments)), progress)


class RealmTools:
    """The table of Rookery's own tools."""

    def __init__(
        self, link: RealmLink, follower: RunFollower, session: str, approver: McpApprover | None
    ) -> None:
        """``session``: where programs run that name no session. ``approver``: decides approvals."""
        self._link, self._follower, self._session = link, follower, session
        rows = [*self._program_tools(), *self._run_tools()]
        rows += [*self._session_tools(), *self._approval_tools()]
        if approver is not None:
            rows += _deciding_tools(approver)
        self.by_name: Final = {row.name: row for row in rows}

    def _program_tools(self) -> list[RealmTool]:
        return [
            RealmTool(
                "run_code",
                "Run a program in a sandbox session that keeps its variables. Programs reach the "
                "world only through the session's tools; list_tools() in a program lists them. "
                "The value of the last expression is the result. A run that needs an approval or "
                "another event answers at once with what it waits for.",
                RunCodeArguments,
                RunReport,
                self._run_code,
                destroys=True,
            ),
            RealmTool(
                "validate",
                "Check a program without running it.",
                ValidateArguments,
                ValidationReport,
                self._validate,
                reads=True,
            ),
        ]

    def _run_tools(self) -> list[RealmTool]:
        return [
            RealmTool(
                "runs_list",
                "List runs, newest first.",
                ListRunsArguments,
                RunList,
                self._list_runs,
                reads=True,
            ),
            RealmTool(
                "runs_show",
                "Show the state of a run and what it waits for.",
                RunIdArguments,
                RunReport,
                self._show_run,
                reads=True,
            ),
            RealmTool(
                "runs_result",
                "The result of a run: waits for its end, but not if it waits for a person.",
                RunResultArguments,
                RunReport,
                self._run_result,
                reads=True,
            ),
            RealmTool(
                "runs_cancel",
                "End a run, or withdraw it if it has not started.",
                RunCancelArguments,
                RunReceipt,
                self._cancel_run,
                destroys=True,
            ),
        ]

    def _session_tools(self) -> list[RealmTool]:
        return [
            RealmTool(
                "sessions_list",
                "List sessions.",
                ListSessionsArguments,
                SessionList,
                self._list_sessions,
                reads=True,
            ),
            RealmTool(
                "sessions_create",
                "Create a session with a language, limits and rights of its own. The first run of "
                "a session creates it, too.",
                CreateSessionArguments,
                SessionView,
                self._create_session,
            ),
            RealmTool(
                "sessions_destroy",
                "End a session: its variables and files are gone, its runs stay on record.",
                DestroySessionArguments,
                SessionView,
                self._destroy_session,
                destroys=True,
            ),
        ]

    def _approval_tools(self) -> list[RealmTool]:
        return [
            RealmTool(
                "approvals_list",
                "List the approvals that calls wait for, the earliest due first.",
                ListApprovalsArguments,
                ApprovalList,
                self._list_approvals,
                reads=True,
            ),
            RealmTool(
                "approvals_show",
                "Show an approval with the exact arguments of its call.",
                ShowApprovalArguments,
                ApprovalReply,
                self._show_approval,
                reads=True,
            ),
        ]

    # --- runs -------------------------------------------------------------------------------------

    async def _run_code(
        self, arguments: RunCodeArguments, progress: ProgressReporter
    ) -> msgspec.Struct:
        fields: dict[str, Any] = {"code": arguments.code, "language": arguments.language}
        if arguments.inputs:
            fields["inputs"] = arguments.inputs
        if arguments.rights is not None:
            fields["rights"] = arguments.rights
        if arguments.timeout_ms is not None:
            fields["timeout_ms"] = arguments.timeout_ms
        return await self._follower.run(
            arguments.session or self._session,
            fields,
            progress,
            wait_s=arguments.wait_s,
            message_id=arguments.message_id,
        )

    async def _validate(
        self, arguments: ValidateArguments, _progress: ProgressReporter
    ) -> msgspec.Struct:
        client = await self._link.client()
        answer = await client.validate(
            arguments.session or self._session,
            arguments.code,
            language=arguments.language,
            inputs=arguments.inputs,
            timeout_s=PATIENCE_S,
        )
        return validation_report(answer)

    async def _list_runs(
        self, arguments: ListRunsArguments, _progress: ProgressReporter
    ) -> msgspec.Struct:
        query = RunsQuery(
            session=arguments.session,
            status=arguments.status,
            limit=arguments.limit,
            before=arguments.before,
        )
        return await self._ask("runs", "all", query, RunList)

    async def _show_run(
        self, arguments: RunIdArguments, progress: ProgressReporter
    ) -> msgspec.Struct:
        return await self._follower.result(arguments.run_id, progress, wait_s=0)

    async def _run_result(
        self, arguments: RunResultArguments, progress: ProgressReporter
    ) -> msgspec.Struct:
        return await self._follower.result(arguments.run_id, progress, arguments.wait_s)

    async def _cancel_run(
        self, arguments: RunCancelArguments, _progress: ProgressReporter
    ) -> msgspec.Struct:
        view = await find_run(await self._link.client(), arguments.run_id)
        body = Cancel(run_id=view.run_id, reason=arguments.reason, now=not arguments.after_boundary)
        return await self._ask("cancel", view.session_id, body, RunReceipt)

    # --- sessions ---------------------------------------------------------------------------------

    async def _list_sessions(
        self, arguments: ListSessionsArguments, _progress: ProgressReporter
    ) -> msgspec.Struct:
        query = SessionsQuery(limit=arguments.limit, before=arguments.before)
        return await self._ask("sessions", "all", query, SessionList)

    async def _create_session(
        self, arguments: CreateSessionArguments, _progress: ProgressReporter
    ) -> msgspec.Struct:
        body = CreateSession(
            language=arguments.language,
            limits=arguments.limits or SessionLimits(),
            rights=arguments.rights or UNSET,
        )
        return await self._ask("create", arguments.session, body, SessionView)

    async def _destroy_session(
        self, arguments: DestroySessionArguments, _progress: ProgressReporter
    ) -> msgspec.Struct:
        return await self._ask("destroy", arguments.session, None, SessionView)

    # --- approvals --------------------------------------------------------------------------------

    async def _list_approvals(
        self, arguments: ListApprovalsArguments, _progress: ProgressReporter
    ) -> msgspec.Struct:
        query = PendingQuery(
            session=arguments.session, ended=arguments.ended, limit=arguments.limit
        )
        return await self._ask("pending", "all", query, ApprovalList)

    async def _show_approval(
        self, arguments: ShowApprovalArguments, _progress: ProgressReporter
    ) -> msgspec.Struct:
        client = await self._link.client()
        approval = await client.approval(arguments.approval_id)
        return ApprovalReply(
            approval=approval, arguments=await read_arguments(client.blobs, approval)
        )

    async def _ask(
        self, verb: str, key: str, body: object, kind: type[msgspec.Struct]
    ) -> msgspec.Struct:
        client: Client = await self._link.client()
        return msgspec.convert(await client.ask(verb, key, body, timeout_s=PATIENCE_S), kind)


def _deciding_tools(approver: McpApprover) -> list[RealmTool]:
    """Only of a server that was started with the key of an approver."""

    async def approve(arguments: ApproveArguments, _: ProgressReporter) -> msgspec.Struct:
        for_session = arguments.for_session
        decision = ApprovalState.APPROVED_FOR_SESSION if for_session else ApprovalState.APPROVED
        return await approver.decide(arguments.approval_id, decision, arguments.reason)

    async def deny(arguments: DenyArguments, _: ProgressReporter) -> msgspec.Struct:
        return await approver.decide(arguments.approval_id, ApprovalState.DENIED, arguments.reason)

    return [
        RealmTool(
            "approvals_approve",
            "Approve a call with exactly the arguments that approvals_show has. A person decides "
            "this: ask first.",
            ApproveArguments,
            DecisionReceipt,
            approve,
            destroys=True,
        ),
        RealmTool(
            "approvals_deny",
            "Deny a call; its program gets an error.",
            DenyArguments,
            DecisionReceipt,
            deny,
            destroys=True,
        ),
    ]
