"""Events from outside, such as webhooks and schedules, as items of a session. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from rookery.actors.peers.items.item_queue import is_full
from rookery.actors.peers.state import SessionPeers
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import Refused
from rookery.schemas.ids import derived_uuid7
from rookery.schemas.peers.items import PublishEvent

if TYPE_CHECKING:
    from rookery.actors.peers.decider import PeersDecider

__all__ = ["event_id", "queue_event"]


def event_id(command: Command[Any]) -> str:
    """The id of the event's item; the same for a repeated command."""
    return derived_uuid7(0, command.key, command.id, "event")


def queue_event(
    decider: PeersDecider, state: SessionPeers, command: Command[Any], event: PublishEvent
) -> Sequence[Fact]:
    """The event is classified, and waits in the queue."""
    if is_full(state):
        raise Refused("PEER_QUEUE_FULL", f"the queue of {command.key} is full")
    params = {"source_name": event.source}
    (fact,) = decider.decide_input(state, command.key, "classify_plain_event", params)
    return (replace(fact, item_id=event_id(command), body=event.body),)
