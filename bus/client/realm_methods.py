"""The client's methods for approvals, grants and sessions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Unpack

import msgspec
from msgspec import UNSET

from rookery.bus.client.run_request import RunOptions
from rookery.bus.clock import SystemClock
from rookery.bus.ports import BlobReader
from rookery.bus.reads import NodeBlobs
from rookery.schemas.agents import ConversationView
from rookery.schemas.approvals.lists import (
    ApprovalList,
    GrantedQuery,
    GrantList,
    ListedApproval,
    ListedGrant,
    PendingQuery,
)
from rookery.schemas.approvals.records import DecideApproval, DecisionReceipt
from rookery.schemas.commands import FilesQuery, RestoreSession, RevokeGrant, UndoRuns
from rookery.schemas.digest import digest_json
from rookery.schemas.envelope import FactClasses
from rookery.schemas.errors import Refused
from rookery.schemas.protection.rights import Rights
from rookery.schemas.replies import (
    FileEntry,
    FilesView,
    GrantReceipt,
    RunAnswer,
    UndoReceipt,
)
from rookery.schemas.run import SNAPSHOT_BYTES_MAX, Language, SessionLimits
from rookery.schemas.seed.content import ContentRef

__all__ = [
    "ApprovalsMixin",
    "SessionsMixin",
    "read_arguments",
]

# --- approvals ------------------------------------------------------------------------------------

# The client's methods for approvals and grants. ``rookery.actors.approvals`` has the rules.


class ApprovalsMixin(ABC):
    """The part of ``Client`` for approvals."""

    @property
    @abstractmethod
    def realm(self) -> str: ...

    @abstractmethod
    async def ask(self, verb: str, key: str, body: object = None) -> dict[str, Any]:
        """Send a request and return its durable reply."""

    async def approvals(
        self, session: str | None = None, *, ended: bool = False
    ) -> Sequence[ListedApproval]:
        """List waiting approvals, the earliest due first; ``ended`` ones follow."""
        query = PendingQuery(session=session, ended=ended)
        return msgspec.convert(await self.ask("pending", "all", query), ApprovalList).approvals

    async def approval(self, approval_id: str) -> ListedApproval:
        """Read one approval in any state."""
        query = PendingQuery(approval_id=approval_id)
        found = msgspec.convert(await self.ask("pending", "all", query), ApprovalList).approvals
        if not found:
            raise Refused("APPROVAL_NOT_FOUND", f"the realm has no approval {approval_id[:120]!r}")
        return found[0]

    async def decide(
        self,
        approval: ListedApproval,
        decision: Literal["approved", "approved_for_session", "denied"],
        *,
        actor: str,
        reason: str = "",
        sign: Callable[[str, DecideApproval], DecideApproval] | None = None,
    ) -> DecisionReceipt:
        """Answer an approval for exactly the arguments that it shows.

        ``sign`` signs the answer: ``rookery.actors.approvals.approvers.Signer.sign``.
        """
        answer = DecideApproval(
            approval_id=approval.approval_id,
            decision=decision,
            actor=actor,
            request_digest=approval.request_digest,
            tool_digest=approval.tool_digest,
            answered_at_ms=SystemClock().now_ms(),
            reason=reason,
        )
        if sign is not None:
            answer = sign(self.realm, answer)
        receipt = await self.ask("decide", approval.session_id, answer)
        return msgspec.convert(receipt, DecisionReceipt)

    async def grants(
        self, session: str | None = None, *, ended: bool = False
    ) -> Sequence[ListedGrant]:
        """List grants, newest first."""
        query = GrantedQuery(session=session, ended=ended)
        return msgspec.convert(await self.ask("granted", "all", query), GrantList).grants

    async def revoke_grant(
        self,
        grant: ListedGrant,
        *,
        actor: str = "",
        sign: Callable[[str, RevokeGrant], RevokeGrant] | None = None,
    ) -> GrantReceipt:
        """Revoke a grant.

        ``sign`` signs it: ``rookery.actors.approvals.approvers.Signer.sign_revocation``.
        """
        body = RevokeGrant(grant_id=grant.grant_id, actor=actor)
        if sign is not None:
            body = sign(self.realm, body)
        return msgspec.convert(await self.ask("grants", grant.session_id, body), GrantReceipt)


async def read_arguments(blobs: BlobReader, approval: ListedApproval) -> Any:
    """The exact arguments, whose digest a decision repeats. Of sensitive ones it has only the
    digests, and the blob has a digest of its own."""
    exact = msgspec.json.decode(await blobs.get(approval.arguments_ref.removeprefix("blob:")))
    is_whole = approval.arguments_ref == f"blob:{approval.request_digest}"
    if is_whole and digest_json(exact) != approval.request_digest:
        raise Refused(
            "APPROVAL_MISMATCH",
            f"the arguments in {approval.arguments_ref} are not those of the request",
        )
    return exact


# --- sessions -------------------------------------------------------------------------------------

# The client's methods for sessions: their limits, rights, memory and files.


class SessionsMixin(ABC):
    """The part of ``Client`` for sessions."""

    @property
    @abstractmethod
    def images(self) -> NodeBlobs: ...

    @property
    @abstractmethod
    def blobs(self) -> NodeBlobs: ...

    @abstractmethod
    async def run(self, session: str, run: str, **options: Unpack[RunOptions]) -> RunAnswer:
        """Run code in a session and wait for the result."""

    @abstractmethod
    async def ask(self, verb: str, key: str, body: object = None) -> dict[str, Any]:
        """Send a request and return its durable reply."""

    async def create(
        self,
        session: str,
        *,
        language: Language | str = Language.PYTHON,
        limits: SessionLimits | Mapping[str, int] | None = None,
        rights: Rights | Mapping[str, Any] | None = None,
        classes: FactClasses | Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Create a session with limits and rights of its own, and what its facts claim at least,
        before its first run. A duplicate changes nothing."""
        initial = SessionLimits() if limits is None else limits
        body: dict[str, Any] = {"language": language, "limits": initial}
        if rights is not None:
            body["grants"] = rights
        if classes is not None:
            body["classes"] = classes
        return await self.ask("create", session, body)

    async def append(self, session: str, text: str, *, role: str = "user") -> dict[str, Any]:
        """Add a message to the session's conversation; no model is asked."""
        return await self.ask("append", session, {"text": text, "role": role})

    async def set_context(self, session: str, key: str, text: str) -> dict[str, Any]:
        """Set what the session's models are to know under a key, in the place of what it had."""
        return await self.ask("context", session, {"context_key": key, "text": text})

    async def conversation(self, session: str) -> ConversationView:
        """What the next question to the session's model would have, with sizes."""
        return msgspec.convert(await self.ask("conversation", session), ConversationView)

    async def undo(self, session: str, runs: int = 1, *, force: bool = False) -> UndoReceipt:
        """Put the session back to before its last runs. ``force``: also where tools have acted."""
        body = UndoRuns(runs=runs, force=force)
        return msgspec.convert(await self.ask("undo", session, body), UndoReceipt)

    async def set_limits(self, session: str, **limits: int) -> dict[str, Any]:
        """Change a session's limits from its next run on; absent ones keep their value."""
        return await self.ask("limits", session, limits)

    async def narrow_rights(
        self, session: str, rights: Rights | Mapping[str, Any]
    ) -> dict[str, Any]:
        """Let a session's runs call only what these rights allow, too, from the next call on."""
        return await self.ask("limits", session, {"grants": rights})

    async def revoke_rights(
        self, session: str, rights: Rights | Mapping[str, Any], *, reason: str = "", actor: str = ""
    ) -> dict[str, Any]:
        """Leave a session, and all that descend from it, only these rights of those it has. The
        client needs the role ``operator``."""
        body = {"grants": rights, "reason": reason, "actor": actor}
        return await self.ask("revoke", session, body)

    async def snapshot(self, session: str) -> dict[str, Any]:
        """Store a snapshot of a session after its last run; refused while a run is in progress."""
        return await self.ask("snapshot", session)

    async def snapshot_bytes(self, snapshot_id: str) -> bytes:
        """Read a snapshot, sealed with the realm's key."""
        return await self.images.get(snapshot_id.removeprefix("snap_"))

    async def restore(
        self, session: str, snapshot: str | bytes, *, replace: bool = False
    ) -> dict[str, Any]:
        """Begin a session with the memory of a snapshot, given by its id or by its bytes."""
        if isinstance(snapshot, bytes):
            snapshot = f"snap_{await self.images.put(snapshot, SNAPSHOT_BYTES_MAX)}"
        return await self.ask(
            "restore", session, RestoreSession(snapshot_id=snapshot, replace=replace)
        )

    async def destroy(self, session: str) -> dict[str, Any]:
        """End a session's generation; the next input begins another one with an empty memory."""
        return await self.ask("destroy", session)

    # --- files ------------------------------------------------------------------------------------

    async def put_file(
        self,
        session: str,
        path: str,
        data: bytes | str,
        *,
        language: Language | str | None = None,
    ) -> RunAnswer:
        """Write a file of a session, after the runs that it has; the record is a run.
        ``language``: that of a new session, by default Python."""
        return await self._change_file(session, {path: data}, language)

    async def remove_file(self, session: str, path: str) -> RunAnswer:
        """Remove a file or an empty folder of a session; the record is a run."""
        return await self._change_file(session, {path: None}, None)

    async def _change_file(
        self, session: str, files: dict[str, bytes | str | None], language: Language | str | None
    ) -> RunAnswer:
        spoken = language or await self._language_of(session)
        return _accepted(await self.run(session, "", language=spoken, files=files))

    async def _language_of(self, session: str) -> Language:
        try:
            view = await self.ask("session", session)
        except Refused as refusal:
            if refusal.code != "SESSION_NOT_FOUND":
                raise
            return Language.PYTHON
        return Language(view["meta"]["language"])

    async def get_file(self, session: str, path: str) -> bytes:
        """Read a file as the session's last ended run left it."""
        view = await self._files(session, path)
        if view.blob is not UNSET:
            return await self.blobs.get(view.blob)
        if view.data is UNSET:
            raise Refused("INVALID_ARGUMENT", f"{path} is a folder", hint="name a file in it")
        return view.data

    async def list_files(self, session: str, path: str = "/work") -> Sequence[FileEntry]:
        """The files and folders below a folder, as the session's last ended run left them."""
        return (await self._files(session, path)).files

    async def artifact(self, ref: ContentRef) -> bytes:
        """Read an artifact of a run's result."""
        return await self.blobs.get(ref.content_hash)

    async def _files(self, session: str, path: str) -> FilesView:
        return msgspec.convert(await self.ask("files", session, FilesQuery(path=path)), FilesView)


def _accepted(answer: RunAnswer) -> RunAnswer:
    """The answer of a run without a program; its error is raised."""
    if answer.error is not None:
        error = answer.error
        raise Refused(error.code, error.message, hint=error.hint or "")
    return answer
