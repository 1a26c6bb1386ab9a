"""A client needs none of our code: nats-py, JSON and the subjects are enough."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from rookery.bus.roles import Role
from tests.execution.realm_fixture import Serving
from tests.execution.session_client import Visit
from tests.stock_client import Stock, inbox_prefix, until

RUN = ["initialized", "registered", "executor_ensured", "input_accepted", "run_prepared"]


def test_a_plain_subscription_follows_a_session_live(serving: Serving):
    async def follow() -> None:
        url = serving.url_for(Role.OPERATOR)
        plain = await nats.connect(url, inbox_prefix=inbox_prefix(url))
        reply = f"{inbox_prefix(url)}.mine"
        seen: list[dict[str, Any]] = []
        named: list[bool] = []

        async def see(message: Any) -> None:
            facts = json.loads(message.data)
            seen.extend(facts)
            kinds = dict.fromkeys(fact["type"].removesuffix(".v1") for fact in facts)
            named.append(message.headers["Rookery-Facts"] == ",".join(kinds))

        await plain.subscribe(f"rookery.{serving.realm}.ev.*.plain-live", cb=see)
        answer = await plain.subscribe(reply)
        await plain.publish(
            f"rookery.{serving.realm}.cmd.run.plain-live",
            b'{"code": "1 + 1"}',
            headers={"Nats-Msg-Id": "mine", "Rookery-Reply": reply},
        )
        await until(lambda: len(seen) == len(RUN))
        assert [fact["type"] for fact in seen] == [f"session.{kind}.v1" for kind in RUN]
        assert all(named), "the header names the facts of a message"
        done = {"run_id": seen[-1]["run"], "input_id": seen[-1]["input_id"]}
        said = await plain.request(
            f"rookery.{serving.realm}.api.admission.plain-live",
            json.dumps({"input": "commit", "params": done}).encode(),
            timeout=60,
        )
        assert json.loads(said.data)["phase"] == "Attached"
        told = json.loads((await answer.next_msg(timeout=60)).data)
        assert (told["run_id"], told["state"]) == (done["run_id"], "committed")
        await plain.close()

    asyncio.run(follow())


def test_a_stock_pull_consumer_replays_a_session_from_a_sequence(serving: Serving):
    async def scenario(client: Stock) -> None:
        visit = Visit(client, "plain-replay")
        for id_ in "abc":
            await visit.run(id_)
            await visit.commit()
        everything = await replay(client, 1)
        await until(lambda: [fact for _, fact in everything] == visit.facts, "the feed has all")
        cursor = next(seq for seq, fact in everything if fact["cause"] == ["b"])
        later = await replay(client, cursor)
        assert later == [(seq, fact) for seq, fact in everything if seq >= cursor]
        assert len(later) < len(everything)

    async def replay(client: Stock, start: int) -> list[tuple[int, dict[str, Any]]]:
        """The facts that a stock consumer reads from the stream."""
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=start,
            ack_policy=AckPolicy.NONE,
        )
        subscription = await (await client.admin()).pull_subscribe(
            f"rookery.{serving.realm}.ev.session.plain-replay",
            stream=f"ROOKERY_{serving.realm}_JOURNAL",
            config=config,
        )
        info = await subscription.consumer_info()
        messages = await subscription.fetch(info.num_pending, timeout=60)
        await subscription.unsubscribe()
        return [
            (message.metadata.sequence.stream, fact)
            for message in messages
            for fact in json.loads(message.data)
        ]

    serving.visit(scenario)


def test_an_invalid_reply_subject_affects_no_other_client(driving: Serving):
    """The subject is as large as a header may be; commands that are refused and runs that are
    executed have it, among those of other sessions in every partition."""
    nowhere = "😀" * 1_023

    odd, beside = [[f"{name}-{n}" for n in range(32)] for name in ("nowhere", "beside")]
    body = {"code": "6 * 7"}

    async def scenario(client: Stock) -> None:
        def ended(session: str) -> bool:
            return any(fact["type"] == "session.run_committed.v1" for fact in client.facts[session])

        for one, other in zip(odd, beside, strict=True):
            await client.submit("run", one, b"{", Nats_Msg_Id=f"{one}-odd", Rookery_Reply=nowhere)
            await client.submit("run", one, body, Nats_Msg_Id=one, Rookery_Reply=nowhere)
            reply = client.reply(other)
            await client.submit("run", other, body, Nats_Msg_Id=other, Rookery_Reply=reply)
        answers = await until(lambda: all(found := [client.answer_of(s) for s in beside]) and found)
        assert [answer.body["result"] for answer in answers if answer] == [42] * len(beside)
        await until(lambda: all(ended(session) for session in odd))

    driving.visit(scenario)
