"""Forged answers, grants and revocations of a realm, found without reading its whole journal.

``rookery doctor`` and the list of grants name them. ``journal verify`` finds the same in one pass.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from heapq import heapify, heappop, heapreplace
from typing import Any, Final

from rookery.actors.approvals import ApprovalsDecider
from rookery.actors.approvals.state import APPROVERS_KEY
from rookery.actors.kernel.runtime import NodeDecider
from rookery.actors.turns import TurnsDecider
from rookery.bus.ports import Filter, JournalReads, StoredMessage
from rookery.ops.config import Config
from rookery.ops.journal.approval_check import ApprovalCheck
from rookery.ops.journal.damage import MessageDamage
from rookery.ops.keys import TrustRoots
from rookery.schemas.codec import FactCodec
from rookery.schemas.errors import CodedError

__all__ = ["find_forged_approvals"]

_CODECS: Final[Mapping[str, FactCodec[Any]]] = {
    "approval": ApprovalsDecider.codec,
    "node": NodeDecider.codec,
    "turn": TurnsDecider.codec,
    **TurnsDecider.older_codecs,
}
_APPROVERS: Final = f"approval/{APPROVERS_KEY}"


async def find_forged_approvals(
    journal: JournalReads, config: Config, session: str | None = None
) -> Sequence[str]:
    """A sentence for each forged fact of a session's approvals, or of all; those about approvers
    are listed with the approvers."""
    found = await _check(journal, config, Filter("approval", session))
    suspects = {one.entity.partition("/")[2] for one in found}
    # Whether a node has revoked a grant for a call that was given up, the facts of the call say.
    return [
        one.words
        for key in sorted(suspects)
        for one in await _check(journal, config, Filter("approval", key), Filter("tool", key))
    ]


async def _check(journal: JournalReads, config: Config, *wheres: Filter) -> Sequence[MessageDamage]:
    root_key, require_keys = TrustRoots.root_key_of(config.approvals), config.approvals.require_keys
    check = ApprovalCheck(config.realm, root_key, require_keys=require_keys)
    known = Filter("node"), Filter("approval", APPROVERS_KEY)
    async with aclosing(_merged(journal, (*known, *wheres))) as messages:
        async for stored in messages:
            with suppress(CodedError):  # The check of chains names it.
                check.add(stored, _CODECS[stored.entity.family].decode(stored.body))
    return [one for one in check.defects if one.entity != _APPROVERS]


async def _merged(
    journal: JournalReads, wheres: Sequence[Filter]
) -> AsyncGenerator[StoredMessage, None]:
    """The messages of all filters, each once, in the order of the journal."""
    last = 0
    async with AsyncExitStack() as opened:
        heads = []
        for number, where in enumerate(wheres):
            found = await opened.enter_async_context(aclosing(_messages(journal, where)))
            if (first := await anext(found, None)) is not None:
                heads.append((first.sequence, number, first, found))
        heapify(heads)
        while heads:
            sequence, number, stored, found = heads[0]
            if sequence != last:
                yield stored
            last, following = sequence, await anext(found, None)
            if following is None:
                heappop(heads)
            else:
                heapreplace(heads, (following.sequence, number, following, found))


async def _messages(journal: JournalReads, where: Filter) -> AsyncGenerator[StoredMessage, None]:
    async with aclosing(journal.scan(where)) as pages:
        async for page in pages:
            for stored in page:
                yield stored
