"""Peer request x time-out x late answer: whatever is late, a request ends once, no program waits.

A stream is reserved and a request is sent; its reader comes or does not, the peer answers in time,
late, twice or never, times run out, and the session may be destroyed, of which the owner of the
requests hears up to two facts later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from rookery.actors.kernel.machines.machine import ATTACHED, DESTROYED, SessionHost
from rookery.actors.peers.interaction_machine import (
    OUTBOUND,
    OutboundRequests,
    PeerInteractionCleanup,
)
from rookery.actors.peers.stream_machine import STREAMS, InteractionStreams
from tests.machines.composition import Followed, Happening, by_host, explored, put, told

OPEN = SessionHost(phase=ATTACHED, session_id="s")
ANSWERS = {
    "progress": ("response_progress", {}),
    "result": ("response_terminal", {"disposition": "Completed"}),
    "failure": ("response_terminal", {"disposition": "Failed"}),
}
LIVES_MAX = 2


class Rules(NamedTuple):
    """Ours, beside the machines' own."""

    ids_are_new: bool = True
    """A correlation id is used once, though the machines would take it again."""
    requests_expire: bool = True
    """A request has a deadline of its own; the reservation's ends when its reader comes."""
    streams_end_with_requests: bool = True
    """Whatever ends a request ends its stream in the same commit."""
    closing_lets_go: bool = True
    """A destroyed session's readers learn it; the machines take no input any more."""


class World(NamedTuple):
    host: Followed = Followed(OPEN, OPEN)
    requests: OutboundRequests = OutboundRequests()
    streams: InteractionStreams = InteractionStreams()
    life: int = 0
    """How often the id was used."""
    ends: tuple[int, ...] = ()
    """The life of every end that was reported."""
    answers: tuple[tuple[int, str], ...] = ()
    """On their way, each an answer to one life's request."""
    let_go: bool = False
    mistaken: bool = False
    """An answer to an earlier request was taken for one to this."""

    @property
    def pending(self) -> bool:
        return "a" in self.requests.pending_peer_requests

    @property
    def stream(self) -> str | None:
        return self.streams.streams.get("a")


def following(rules: Rules, world: World) -> Iterator[Happening[World]]:
    yield from sender(rules, world)
    yield from reader(world)
    yield from peer(rules, world)
    yield from times(rules, world)
    if not world.host.current:
        yield "the requests hear of the host", world._replace(host=world.host.delivered())
    for on in ("Retire", "Destroy"):
        if after := by_host(world.host, on, session_id_in="s"):
            yield f"people cause {on}", world._replace(host=after)
    if rules.closing_lets_go and world.host.copy.phase is DESTROYED and not world.let_go:
        yield "the readers learn it", world._replace(let_go=True)


def sender(rules: Rules, world: World) -> Iterator[Happening[World]]:
    if world.life < (1 if rules.ids_are_new else LIVES_MAX):
        reserved = put(STREAMS, world.host.seen_by(world.streams), "reserved", corr_id="a")
        sent = put(
            OUTBOUND, world.host.seen_by(world.requests), "request_sent", corr_id="a", dest="b"
        )
        if reserved and sent:
            after = kept(world, requests=sent, streams=reserved)
            yield "people send", after._replace(life=world.life + 1)


def reader(world: World) -> Iterator[Happening[World]]:
    for on in ("attached", "closed_early"):
        if after := put(STREAMS, world.host.seen_by(world.streams), on, corr_id="a"):
            yield f"people's reader: {on}", kept(world, streams=after)


def peer(rules: Rules, world: World) -> Iterator[Happening[World]]:
    if world.life and len(world.answers) < 2:
        for kind in ANSWERS:
            answers = (*world.answers, (world.life, kind))
            yield f"people's peer: {kind}", world._replace(answers=answers)
    if world.answers:
        (life, kind), *later = world.answers
        on, params = ANSWERS[kind]
        after = requested(rules, world, on, **params)
        mistaken = after is not None and life != world.life
        yield (
            f"{kind} arrives",
            (after or world)._replace(answers=tuple(later), mistaken=world.mistaken or mistaken),
        )


def times(rules: Rules, world: World) -> Iterator[Happening[World]]:
    """The caller's policy: who lets a reservation expire times its request out."""
    if after := put(STREAMS, world.host.seen_by(world.streams), "expired", corr_id="a"):
        expired = kept(world, streams=after)
        yield "the reservation expires", requested(rules, expired, "request_timed_out") or expired
    if rules.requests_expire and (after := requested(rules, world, "request_timed_out")):
        yield "the request's time is up", after


def requested(rules: Rules, world: World, on: str, **params: str) -> World | None:
    """``world`` with an input of the request, and with its stream ended if that was its end."""
    known = world.host.seen_by(world.requests)
    answer = told(OUTBOUND, known, on, corr_id="a", **params)
    if answer is None:
        return None
    after = kept(world, requests=answer[0])
    if not any(isinstance(effect, PeerInteractionCleanup) for effect in answer[1]):
        return after
    after = after._replace(ends=(*world.ends, world.life))
    if not rules.streams_end_with_requests:
        return after
    streams = after.host.seen_by(after.streams)
    ended = put(STREAMS, streams, "completed", corr_id="a") or put(
        STREAMS, streams, "expired", corr_id="a"
    )
    return kept(after, streams=ended) if ended else after


def kept(
    world: World,
    requests: OutboundRequests | None = None,
    streams: InteractionStreams | None = None,
) -> World:
    return world._replace(
        requests=replace(requests or world.requests, host=SessionHost()),
        streams=replace(streams or world.streams, host=SessionHost()),
    )


# --- what must hold -------------------------------------------------------------------------------


def two_ends(world: World) -> bool:
    return len(set(world.ends)) < len(world.ends)


def waits(world: World) -> bool:
    return (world.pending or world.stream is not None) and not world.let_go


def broken(rules: Rules) -> dict[str, list[str]]:
    """What goes wrong, and the shortest way there."""
    worlds = explored(World(), partial(following, rules))
    never: dict[str, Callable[[World], bool]] = {
        "two ends": two_ends,
        "another's answer": lambda world: world.mistaken,
    }
    ways = {name: worlds.way_to(wrong) for name, wrong in never.items()}
    ways["waits for ever"] = worlds.stuck(waits, lambda name: name.startswith("people"))
    return {name: way for name, way in ways.items() if way is not None}


def test_with_all_rules_every_request_ends_once_and_no_client_waits_for_ever() -> None:
    worlds = explored(World(), partial(following, Rules()))
    assert len(worlds) > 300
    assert broken(Rules()) == {}
    late = worlds.way_to(lambda w: bool(w.ends) and bool(w.answers) and not w.pending)
    assert late is not None


@pytest.mark.long_form
@pytest.mark.parametrize(
    ("rule", "wrong"),
    [
        ("ids_are_new", "another's answer"),
        ("requests_expire", "waits for ever"),
        ("streams_end_with_requests", "waits for ever"),
        ("closing_lets_go", "waits for ever"),
    ],
)
def test_without_a_rule_something_goes_wrong(rule: str, wrong: str) -> None:
    assert wrong in broken(Rules()._replace(**{rule: False}))
