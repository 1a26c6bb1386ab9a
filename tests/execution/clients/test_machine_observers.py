"""Observers of live machines: a fact is in the baseline or delivered, and never both or neither."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, cast

import msgspec
import nats
import pytest
from nats.aio.msg import Msg

from rookery.bus.client import Client
from rookery.bus.client.machines import (
    Baseline,
    InteractionStreamHandle,
    ObservedFact,
    PeerInteractionHandle,
    RealtimeProductTurnHandle,
    SessionContextHandle,
)
from rookery.bus.client.machines.machine_handle import observe_facts
from rookery.bus.roles import Role
from rookery.schemas.codec import FactCodec
from rookery.schemas.commands import HandleInput
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Failed
from rookery.schemas.facts import peer as peer_facts
from rookery.schemas.facts import turn as turn_facts
from rookery.schemas.machines.peer import PeerTerminalDisposition
from rookery.schemas.machines.turn import RealtimeProjectionFreshness
from rookery.schemas.machines.views import SessionContextView
from tests.bus.proxy import DOWN, UP, Proxy, proxied
from tests.execution.clients.machine_calls import CORRELATION, new_session, open_session
from tests.execution.realm_fixture import Serving

OTHERS = [f"01890000-0000-7000-8000-00000000001{n}" for n in range(4)]
PATIENCE_S = 90.0

Observed = AsyncGenerator[Any, None]


class Observing:
    """A session, an observing client behind a network that can fail, and another client."""

    def __init__(self, serving: Serving, proxy: Proxy, session: str) -> None:
        self.serving, self.proxy, self.session = serving, proxy, session
        self.client = Client(proxy.url, realm=serving.realm)
        self.writer = Client(serving.url_for(Role.DRIVER), realm=serving.realm)

    async def lose_connection(self, meanwhile: Callable[[], Awaitable[object]]) -> None:
        """What the server sends while ``meanwhile`` goes on never arrives; then the connection is
        cut."""
        self.proxy.hold(UP, DOWN)
        await meanwhile()
        self.proxy.cut()


def observing(serving: Serving, story: Callable[[Observing], Awaitable[None]]) -> None:
    async def play() -> None:
        async with proxied(serving.url_for(Role.DRIVER)) as proxy:
            world = Observing(serving, proxy, new_session())
            async with world.client, world.writer, asyncio.timeout(PATIENCE_S):
                await open_session(world.writer, world.session)
                await story(world)

    asyncio.run(play())


async def baseline_of(seen: Observed) -> Baseline[Any]:
    return cast("Baseline[Any]", await anext(seen))


async def facts_of(seen: Observed, number: int) -> list[Any]:
    """The next facts; their sequences never fall."""
    found: list[ObservedFact[Any]] = [await anext(seen) for _ in range(number)]
    sequences = [one.sequence for one in found]
    assert sequences == sorted(sequences)
    return [one.fact for one in found]


# --- over a lost connection -----------------------------------------------------------------------


def test_a_watermark_is_observed_over_a_lost_connection(serving: Serving) -> None:
    async def story(world: Observing) -> None:
        context = SessionContextHandle(world.writer, world.session)
        await context.context_advanced(1)

        async def advance() -> None:
            for tick in (3, 4, 5):
                assert await context.context_advanced(tick)

        observer = SessionContextHandle(world.client, world.session).observe()
        async with aclosing(observer) as seen:
            baseline = await baseline_of(seen)
            assert baseline.view.watermark_ms == 1
            last = await world.writer.journal.at(baseline.sequence)
            assert last is not None
            assert b'"updated_at_ms":1' in last.body
            await context.context_advanced(2)
            assert [one.updated_at_ms for one in await facts_of(seen, 1)] == [2]
            await world.lose_connection(advance)
            assert [one.updated_at_ms for one in await facts_of(seen, 3)] == [3, 4, 5]
            await context.context_advanced(6)
            assert [one.updated_at_ms for one in await facts_of(seen, 1)] == [6]

    observing(serving, story)


def test_a_request_is_observed_to_its_end_over_a_lost_connection(serving: Serving) -> None:
    async def story(world: Observing) -> None:
        requests = PeerInteractionHandle(world.writer, world.session)
        for corr_id in (CORRELATION, *OTHERS):
            await requests.request_sent(corr_id, "peer")

        async def end() -> None:
            await requests.response_terminal(CORRELATION, PeerTerminalDisposition.COMPLETED)
            await requests.response_terminal(OTHERS[1], PeerTerminalDisposition.FAILED)

        observer = PeerInteractionHandle(world.client, world.session).observe(CORRELATION)
        async with aclosing(observer) as seen:
            assert (await baseline_of(seen)).view.state == "Sent"
            await requests.response_progress(CORRELATION)
            await requests.request_timed_out(OTHERS[0])
            await world.lose_connection(end)
            for on in ("request_send_failed", "response_rejected"):
                body = HandleInput(input=on, params={"corr_id": OTHERS[2 + (on[2] == "s")]})
                await world.writer.ask("peers", world.session, body)
            await requests.request_received(CORRELATION)
            await requests.response_replied(CORRELATION)
            assert [(type(fact), fact.corr_id) for fact in await facts_of(seen, 5)] == [
                (peer_facts.RequestTimedOut, OTHERS[0]),
                (peer_facts.ResponseEnded, CORRELATION),
                (peer_facts.ResponseEnded, OTHERS[1]),
                (peer_facts.RequestSendFailed, OTHERS[2]),
                (peer_facts.ResponseRejected, OTHERS[3]),
            ]
            await requests.request_sent(CORRELATION, "peer")
            await requests.request_timed_out(CORRELATION)
            assert [type(fact) for fact in await facts_of(seen, 1)] == [peer_facts.RequestTimedOut]

    observing(serving, story)


def test_a_stream_is_observed_to_its_end_over_a_lost_connection(serving: Serving) -> None:
    async def story(world: Observing) -> None:
        streams = InteractionStreamHandle(world.writer, world.session)
        one, two, three, four = OTHERS
        for corr_id in OTHERS:
            await streams.reserved(corr_id)

        async def end() -> None:
            await streams.attached(two)
            await streams.completed(two)
            await streams.attached(three)
            await streams.closed_early(three)

        observer = InteractionStreamHandle(world.client, world.session).observe(two)
        async with aclosing(observer) as seen:
            assert (await baseline_of(seen)).view.state == "Reserved"
            await streams.expired(one)
            await world.lose_connection(end)
            body = HandleInput(input="abandoned", params={"corr_id": four, "reason": "gone"})
            await world.writer.ask("peers", world.session, body)
            assert [(type(fact), fact.corr_id) for fact in await facts_of(seen, 4)] == [
                (peer_facts.StreamExpired, one),
                (peer_facts.StreamCompleted, two),
                (peer_facts.StreamClosedEarly, three),
                (peer_facts.StreamAbandoned, four),
            ]

    observing(serving, story)


def test_freshness_is_observed_and_neither_a_phase_nor_a_policy(serving: Serving) -> None:
    async def story(world: Observing) -> None:
        product = RealtimeProductTurnHandle(world.writer, world.session)
        await product.projection_advance_observed(1)
        observer = RealtimeProductTurnHandle(world.client, world.session).observe()

        async def go_on() -> None:
            await product.classify_turn_terminated()
            await product.projection_refreshed(6)
            assert not await product.projection_refreshed(6)

        async with aclosing(observer) as seen:
            view = (await baseline_of(seen)).view
            assert (view.freshness, view.frontier_ms) == (
                RealtimeProjectionFreshness.STALE_IMMEDIATE,
                1,
            )
            await product.turn_in_flight()
            await product.classify_client_input_submitted()
            await product.projection_advance_observed(5)
            await world.lose_connection(go_on)
            await product.projection_advance_observed(9)
            await product.projection_reset(1)
            assert [(type(fact), fact.row) for fact in await facts_of(seen, 5)] == [
                (turn_facts.ProjectionAdvanced, "ProjectionAdvanceDuringTurn"),
                (turn_facts.TurnTerminationSeen, "ClassifyTurnTerminated"),
                (turn_facts.ProjectionRefreshed, "ProjectionRefreshed"),
                (turn_facts.ProjectionAdvanced, "ProjectionAdvanceDuringTurn"),
                (turn_facts.ProjectionReset, "ProjectionReset"),
            ]

    observing(serving, story)


# --- the baseline ---------------------------------------------------------------------------------


def test_an_observer_of_a_machine_without_facts_begins_at_zero(serving: Serving) -> None:
    async def story(world: Observing) -> None:
        context = SessionContextHandle(world.client, world.session)
        async with aclosing(cast("Observed", context.observe())) as seen:
            baseline = await baseline_of(seen)
            assert (baseline.sequence, baseline.view.watermark_ms) == (0, 0)
            await context.context_advanced(7)
            assert [one.updated_at_ms for one in await facts_of(seen, 1)] == [7]

    observing(serving, story)


def test_a_tick_is_in_the_baseline_or_delivered_whenever_it_is_decided(serving: Serving) -> None:
    """Inputs that arrive together share a commit, so a view may be true in the middle of one."""
    codec: FactCodec[Any] = FactCodec(peer_facts.PEER_FACTS)
    look = HandleInput(input="current_watermark_ms")

    async def story(world: Observing) -> None:
        session, client = world.session, world.client
        context, entity = SessionContextHandle(client, session), EntityId("peer", session)

        async def read_between(ticks: range) -> tuple[SessionContextView, int]:
            half = len(ticks) // 2
            advances = [context.context_advanced(tick) for tick in ticks]
            reading = client.ask_with_count("peers", session, look)
            done = await asyncio.gather(*advances[:half], reading, *advances[half:])
            view, facts = cast("tuple[Any, int]", done[half])
            return msgspec.convert(view, SessionContextView), facts

        in_the_middle = 0
        for first in range(1, 401, 40):
            ticks = range(first, first + 40)
            read = partial(read_between, ticks)
            observer = observe_facts(client, entity, codec, peer_facts.ContextAdvanced, read)
            async with aclosing(observer) as seen:
                baseline = await baseline_of(seen)
                later = range(baseline.view.watermark_ms + 1, ticks.stop)
                assert [one.updated_at_ms for one in await facts_of(seen, len(later))] == [*later]
                commit = await client.journal.at(baseline.sequence)
                assert commit is not None
                last = codec.decode(commit.body)[-1].updated_at_ms
                in_the_middle += last > baseline.view.watermark_ms
        assert in_the_middle

    observing(serving, story)


def test_a_tick_is_in_the_baseline_or_delivered_of_another_client(serving: Serving) -> None:
    async def story(world: Observing) -> None:
        context = SessionContextHandle(world.writer, world.session)
        for first in range(1, 401, 40):
            ticks = range(first, first + 40)
            observer = SessionContextHandle(world.client, world.session).observe()
            async with aclosing(cast("Observed", observer)) as seen:
                advancing = asyncio.gather(*map(context.context_advanced, ticks))
                baseline = await baseline_of(seen)
                assert all(await advancing)
                later = range(max(first, baseline.view.watermark_ms + 1), ticks.stop)
                assert [one.updated_at_ms for one in await facts_of(seen, len(later))] == [*later]

    observing(serving, story)


def test_a_view_from_before_the_journals_last_fact_is_read_again(serving: Serving) -> None:
    """A node that has lost a key and does not know it yet answers with such a view."""
    codec: FactCodec[Any] = FactCodec(peer_facts.PEER_FACTS)
    look = HandleInput(input="current_watermark_ms")

    async def story(world: Observing) -> None:
        session, client = world.session, world.client
        context, entity = SessionContextHandle(client, session), EntityId("peer", session)

        async def read() -> tuple[SessionContextView, int]:
            view, facts = await client.ask_with_count("peers", session, look)
            return msgspec.convert(view, SessionContextView), facts

        await context.context_advanced(1)
        answers = [await read()]
        await context.context_advanced(2)

        async def read_old_first() -> tuple[SessionContextView, int]:
            return answers.pop() if answers else await read()

        observer = observe_facts(client, entity, codec, peer_facts.ContextAdvanced, read_old_first)
        async with aclosing(observer) as seen:
            assert (await baseline_of(seen)).view.watermark_ms == 2
            await context.context_advanced(3)
            assert [one.updated_at_ms for one in await facts_of(seen, 1)] == [3]

    observing(serving, story)


def test_a_view_that_does_not_say_which_facts_it_has_is_no_baseline(serving: Serving) -> None:
    """As a node of an older version answers; a plain NATS client is that node."""

    async def play() -> None:
        async with Client(
            serving.server.url_for(Role.DRIVER, realm="older"), realm="older"
        ) as client:
            old = await nats.connect(serving.server.admin_url)

            async def answer(request: Msg) -> None:
                await request.respond(msgspec.json.encode({"watermark_ms": 0}))

            await old.subscribe("rookery.older.api.*.*", cb=answer)
            await old.flush()
            context = SessionContextHandle(client, "s")
            assert await context.current_watermark_ms() == 0
            with pytest.raises(Failed, match="UNSUPPORTED_FEATURE: the node that answered peers"):
                await client.ask_with_count("peers", "s", HandleInput(input="current_watermark_ms"))
            await old.close()

    asyncio.run(play())
