"""The projections of a node, fed by one pass over its realm's journal; and the query ``tools``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from rookery.actors.admission import InFlightCounter
from rookery.actors.kernel.executors import QueryHandler
from rookery.actors.projections.checkpoint import CheckpointStore, version_of
from rookery.actors.projections.lists.approvals import ApprovalProjection, ApprovalQueryHandler
from rookery.actors.projections.lists.hooks import HookProjection
from rookery.actors.projections.lists.model_usage import UsageProjection
from rookery.actors.projections.lists.run_queries import RunQueryHandler
from rookery.actors.projections.lists.runs import RunProjection
from rookery.actors.projections.lists.sessions import SessionProjection, SessionQueryHandler
from rookery.actors.projections.pages import Unpaged
from rookery.actors.projections.projector import Projector
from rookery.actors.tools.catalogue import CatalogueTool, ToolCatalogue
from rookery.bus.ports import Delivery, Journal, StoredMessage
from rookery.schemas.agent_tools import AgentList, AgentsQuery
from rookery.schemas.agents import ModelUsage
from rookery.schemas.codec import decode_command
from rookery.schemas.commands import ToolsQuery
from rookery.schemas.event_index import FAMILY_INDEXES
from rookery.schemas.hooks import HookActivity
from rookery.schemas.replies import ToolList, ToolView

__all__ = [
    "RealmProjections",
    "SkippedMessages",
    "ToolQueryHandler",
]

# --- skipped messages -----------------------------------------------------------------------------

# Messages of the journal that no reader can use, as far as a look at their ends tells.

_FOLDS: Final = 1
_BEGIN: Final = b'[{"type":"'
_CHAIN_DIGITS: Final = 64
_KINDS: Final = frozenset(
    f"{family}.{kind}".encode()
    for family, index in FAMILY_INDEXES.items()
    for kind in index.ends | index.steps
)


class SkippedMessages(Unpaged):
    """Counts messages of no known family, without a digest, or without known facts; not those that
    were set aside. ``journal verify`` also finds those whose digest does not fit."""

    name = "skipped"
    version = version_of(_FOLDS)

    def __init__(self) -> None:
        self.count = 0

    def apply(self, stored: StoredMessage) -> None:
        """Look at a message of the journal."""
        if not stored.quarantined_through and not _is_usable(stored):
            self.count += 1

    def parts(self) -> Iterator[bytes]:
        yield msgspec.msgpack.encode(self.count)

    def empty(self) -> SkippedMessages:
        return SkippedMessages()

    def restore(self, part: bytes) -> None:
        self.count += msgspec.msgpack.decode(part, type=int)


def _is_usable(stored: StoredMessage) -> bool:
    body, first = stored.body, len(_BEGIN)
    name = body[first : body.find(b'"', first)]
    return (
        body.startswith(_BEGIN)
        and body.endswith(b"]")
        and name.rpartition(b".v")[0] in _KINDS
        and stored.entity.family in FAMILY_INDEXES
        and len(stored.chain) == _CHAIN_DIGITS
    )


# --- realm projections ----------------------------------------------------------------------------


class RealmProjections:
    """The projections and their query handlers. Runs on the bus's loop."""

    def __init__(
        self,
        journal: Journal,
        store: CheckpointStore,
        realm_load: InFlightCounter,
        now_ms: Callable[[], int],
    ) -> None:
        """``realm_load`` counts the pending inputs of all sessions, from every node."""
        tables = (
            RunProjection(),
            SessionProjection(realm_load),
            ApprovalProjection(),
            HookProjection(),
            UsageProjection(),
            SkippedMessages(),
        )
        self._now_ms = now_ms
        projector = self._projector = Projector(journal, tables, store=store)
        approvals = self.approvals = ApprovalQueryHandler(projector, now_ms)
        self.runs = RunQueryHandler(projector)
        self.queries: Mapping[str, QueryHandler] = {
            "runs": self.runs.handle,
            "sessions": SessionQueryHandler(projector).handle,
            "pending": approvals.handle_pending,
            "granted": approvals.handle_granted,
        }

    async def hook_activity(self) -> Mapping[str, HookActivity]:
        """What the hooks of the realm did, by id."""
        await self._projector.refresh_for_query()
        return self._projector.projection(HookProjection).activity

    async def model_usage(self) -> ModelUsage:
        """What the runs of the realm have used of models today."""
        await self._projector.refresh_for_query()
        return self._projector.projection(UsageProjection).today(self._now_ms())

    @property
    def skipped(self) -> int:
        """How many messages no reader can use."""
        return self._projector.projection(SkippedMessages).count

    async def run(self) -> None:
        """Refresh regularly until cancelled."""
        await self._projector.run()

    async def start_over(self) -> None:
        """Fold the whole journal again, since a folded message was quarantined."""
        await self._projector.start_over()

    async def checkpoint(self) -> None:
        """Write a checkpoint for the next node."""
        await self._projector.checkpoint()


# --- tools ----------------------------------------------------------------------------------------

# The queries ``tools`` and ``agents``: what a node offers, with its declarations.


class ToolQueryHandler:
    """Replies with the tools of one node; the nodes of a realm may offer different tools."""

    def __init__(self, catalogue: ToolCatalogue) -> None:
        self._catalogue = catalogue

    async def handle(self, delivery: Delivery) -> ToolList:
        """The query ``tools``."""
        query = decode_command(delivery.body, ToolsQuery, content_type=delivery.content_type)
        offered = [tool for tool in self._catalogue if not self._catalogue.is_withdrawn(tool)]
        named = [tool for tool in offered if query.name in (None, tool.available.name)]
        return ToolList(tools=tuple(map(_tool_view, named)))

    async def list_agents(self, delivery: Delivery) -> AgentList:
        """The query ``agents``."""
        query = decode_command(delivery.body, AgentsQuery, content_type=delivery.content_type)
        agents = [tool.agent for tool in self._catalogue if tool.agent is not None]
        return AgentList(agents=tuple(one for one in agents if query.name in (None, one.name)))


def _tool_view(tool: CatalogueTool) -> ToolView:
    return ToolView(
        surface=tool.surface,
        awaited=tool.available.awaited,
        waits_for=tool.waits_for,
        schema_digest=tool.available.schema_digest,
        capability=tool.capability,
    )
