"""Agents elsewhere as peers: what a session records of them. Real deciders, rosters and keys; no
server.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.messages import WithdrawPeerCall
from rookery.actors.peers.agents.agent_cards import (
    agent_key,
)
from rookery.actors.peers.agents.agent_messages import (
    message_of,
)
from rookery.actors.peers.agents.agent_rules import (
    AgentCallBegun,
    AgentHasTask,
    AgentReported,
    AgentResponded,
    CallAgent,
)
from rookery.actors.peers.effects import (
    CancelAgentTask,
    DeliverEnvelope,
    EnvelopeFailed,
    FollowAgentTask,
)
from rookery.actors.peers.envelopes import RecordedEnvelopes
from rookery.schemas.envelope import Command
from rookery.schemas.errors import Refused
from rookery.schemas.facts import peer as facts
from rookery.schemas.machines.peer import PeerResponseProgressProjectionPhase, ResponseStatus
from rookery.schemas.peers.envelope import read_envelope
from rookery.schemas.peers.exchanges import (
    AgentTask,
    PeerDue,
    PeerResponse,
    UnmatchedReason,
)
from rookery.schemas.peers.roster import PeerKind, RemoteAgent
from tests.peers.envelope_world import NOW_MS, Site, pair
from tests.peers.test_exchanges import Session
from tests.peers.test_item_queue import begin, operation

CARD_URL = "https://weather.example/.well-known/agent-card.json"
URL = "https://weather.example/rpc"
AGENT = RemoteAgent(card_url=CARD_URL, url=URL, name="Weather", digest="0" * 64)
TASK = AgentTask(alias="weather", task_id="t1", context_id="c1")
IN_PROGRESS = PeerResponseProgressProjectionPhase.IN_PROGRESS
WORKING = PeerResponse(status=ResponseStatus.ACCEPTED, phase=IN_PROGRESS)
DONE = PeerResponse(status=ResponseStatus.COMPLETED, result={"sun": 1})


def site_with_agent() -> Site:
    west, _ = pair()
    accept_agent(west)
    return west


def accept_agent(site: Site, **terms: Any) -> None:
    terms = {"names": ("weather",), "agent": AGENT} | terms
    site.accept(agent_key(CARD_URL), "weather", kind=PeerKind.AGENT, **terms)


def ask(session: Session, to: str = "weather") -> Any:
    return session.send(to=to, intent="ask", params="Oslo")


def reply_to(session: Session, report: Any, left: Any = ()) -> Any:
    command = Command(verb="x", key=session.session, id="x", body=report, reply_to="r")
    return session.decider.reply(session.state, command, left)


# --- what a session records -----------------------------------------------------------------------


def test_an_agent_is_asked_by_its_alias_alone_and_its_answer_ends_the_request():
    planner = Session(site_with_agent(), "planner")
    sent = ask(planner)
    assert (sent.dest, sent.sent.is_agent) == ("weather@weather", True)
    (deliver, _) = planner.decider.effects(planner.state, sent)
    assert isinstance(deliver, DeliverEnvelope)
    (called,) = planner.put_command(CallAgent(item_id=sent.corr_id))
    assert isinstance(called, facts.AgentCalled)
    (begun,) = planner.put_command(AgentHasTask(item_id=sent.corr_id, task=TASK))
    (follow,) = planner.decider.effects(planner.state, begun)
    assert isinstance(follow, FollowAgentTask)
    assert planner.exchanges.undelivered == 0
    for response in (WORKING, DONE):
        planner.put_command(AgentResponded(request_id=sent.corr_id, response=response))
    classified, progressed, _, ended = planner.facts[-4:]
    assert isinstance(classified, facts.EnvelopeClassified)
    assert isinstance(progressed, facts.ResponseProgressed)
    assert isinstance(ended, facts.ResponseEnded)
    assert ended.response == DONE
    assert planner.exchanges.requests == ()
    assert not planner.state.agent_calls


def test_a_repeated_attempt_says_so_and_what_is_delivered_leaves_no_more():
    planner = Session(site_with_agent(), "planner")
    sent = ask(planner)
    call = CallAgent(item_id=sent.corr_id)
    left = planner.put_command(call)
    assert reply_to(planner, call, left) == AgentCallBegun(is_over=False, is_repeat=False)
    assert planner.put_command(call) == []
    assert reply_to(planner, call) == AgentCallBegun(is_over=False, is_repeat=True)
    planner.put_command(AgentHasTask(item_id=sent.corr_id, task=TASK))
    assert reply_to(planner, call).is_over
    assert planner.put_command(AgentHasTask(item_id=sent.corr_id, task=TASK)) == []


def test_the_same_state_is_recorded_once_and_an_answer_after_the_end_is_counted():
    planner = Session(site_with_agent(), "planner")
    corr_id = ask(planner).corr_id
    planner.put_command(AgentHasTask(item_id=corr_id, task=TASK))
    report = AgentResponded(request_id=corr_id, response=WORKING)
    assert planner.put_command(report) != []
    assert planner.put_command(report) == []
    done = AgentResponded(request_id=corr_id, response=DONE)
    planner.put_command(done)
    assert reply_to(planner, done) == AgentReported(is_open=False)
    (again,) = planner.put_command(done)
    assert again == facts.ResponseUnmatched(in_reply_to=corr_id, why=UnmatchedReason.DUPLICATE)
    assert planner.put_command(report) == []


def test_an_answer_without_a_task_is_delivery_and_end_in_one():
    planner = Session(site_with_agent(), "planner")
    corr_id = ask(planner).corr_id
    planner.put_command(CallAgent(item_id=corr_id))
    delivered, _, ended, *_ = planner.put_command(AgentResponded(request_id=corr_id, response=DONE))
    assert delivered == facts.EnvelopesDelivered(ids=(corr_id,))
    assert isinstance(ended, facts.ResponseEnded)
    assert not planner.state.agent_calls


@pytest.mark.parametrize("end", ["withdrawn", "timer"])
def test_a_request_that_nothing_waits_for_any_more_cancels_its_task(end: str):
    planner = Session(site_with_agent(), "planner")
    corr_id = ask(planner).corr_id
    planner.put_command(AgentHasTask(item_id=corr_id, task=TASK))
    if end == "withdrawn":
        (fact,) = planner.put_command(WithdrawPeerCall(operation_id=corr_id))
    else:
        command = Command(
            verb="peer_due", key="planner", id="timer/1", body=PeerDue(request_id=corr_id)
        )
        (fact,) = planner.decider.decide(planner.state, command, now_ms=NOW_MS)
        planner.apply([fact])
    assert isinstance(fact, facts.RequestTimedOut)
    assert fact.task == TASK
    effects = planner.decider.effects(planner.state, fact)
    assert [one.task for one in effects if isinstance(one, CancelAgentTask)] == [TASK]
    (late,) = planner.put_command(AgentResponded(request_id=corr_id, response=DONE))
    why = UnmatchedReason.ABANDONED if end == "withdrawn" else UnmatchedReason.LATE
    assert late == facts.ResponseUnmatched(in_reply_to=corr_id, why=why)


def test_a_task_whose_request_had_ended_before_it_was_known_is_cancelled_at_once():
    planner = Session(site_with_agent(), "planner")
    corr_id = ask(planner).corr_id
    planner.put_command(CallAgent(item_id=corr_id))
    planner.put_command(WithdrawPeerCall(operation_id=corr_id))
    call = CallAgent(item_id=corr_id)
    assert planner.put_command(call) == []
    assert reply_to(planner, call).is_repeat, "it may have left before"
    (begun,) = planner.put_command(AgentHasTask(item_id=corr_id, task=TASK))
    (effect,) = planner.decider.effects(planner.state, begun)
    assert isinstance(effect, CancelAgentTask)


def test_a_request_that_has_ended_before_it_left_never_leaves():
    planner = Session(site_with_agent(), "planner")
    corr_id = ask(planner).corr_id
    planner.put_command(WithdrawPeerCall(operation_id=corr_id))
    call = CallAgent(item_id=corr_id)
    (failed,) = planner.put_command(call)
    assert failed == facts.MessageFailed(item_id=corr_id, code="PEER_TIMED_OUT")
    assert reply_to(planner, call, [failed]).is_over
    assert planner.exchanges.undelivered == 0


def test_after_a_death_the_state_alone_follows_each_open_task():
    planner = Session(site_with_agent(), "planner")
    corr_id = ask(planner).corr_id
    planner.put_command(AgentHasTask(item_id=corr_id, task=TASK))
    state = planner.decider.load(planner.decider.dump(planner.state))
    found = planner.decider.pending_effects(state, "planner")
    assert [one.task for one in found if isinstance(one, FollowAgentTask)] == [TASK]
    done = AgentResponded(request_id=corr_id, response=DONE)
    planner.put_command(done)
    (begun,) = [fact for fact in planner.facts if isinstance(fact, facts.AgentTaskBegun)]
    assert planner.decider.effects(planner.state, begun) == [], "an answered task is left alone"


def test_a_message_to_an_open_task_continues_it():
    planner = Session(site_with_agent(), "planner")
    corr_id = ask(planner).corr_id
    planner.put_command(AgentHasTask(item_id=corr_id, task=TASK))
    message = planner.send(to="weather", body="blue", in_reply_to=corr_id)
    call = CallAgent(item_id=message.sent.id, continues=corr_id)
    begun = reply_to(planner, call, planner.put_command(call))
    assert begun.task == TASK
    found = message_of(read_envelope(message.sent.text.encode()), begun.task)
    assert (found["taskId"], found["contextId"]) == ("t1", "c1")


def test_what_an_agent_answers_is_trusted_only_while_the_agent_is():
    site = site_with_agent()
    planner = Session(site, "planner")
    corr_id = ask(planner).corr_id
    site.revoke("weather")
    *_, ended = planner.put_command(AgentResponded(request_id=corr_id, response=DONE))[:3]
    assert ended.response.error.code == "PEER_REVOKED"
    with pytest.raises(Refused, match="PEER_REVOKED"):
        ask(planner)


def test_a_message_that_never_left_fails_its_request():
    planner = Session(site_with_agent(), "planner")
    corr_id = ask(planner).corr_id
    planner.put_command(CallAgent(item_id=corr_id))
    failed = EnvelopeFailed(item_id=corr_id, code="PEER_CARD_CHANGED")
    fact: Any = planner.put_command(failed)[0]
    assert (type(fact), fact.code) == (facts.RequestSendFailed, "PEER_CARD_CHANGED")
    assert not planner.state.agent_calls


def test_the_programs_stream_of_an_agents_responses_is_read_like_any_other():
    planner = Session(site_with_agent(), "planner")
    begin(planner, 1, "send_request", to="weather", intent="ask", stream=True)
    corr_id = operation(1)
    planner.put_command(AgentHasTask(item_id=corr_id, task=TASK))
    begin(planner, 2, "receive", in_reply_to=corr_id)
    planner.put_command(AgentResponded(request_id=corr_id, response=WORKING))
    (item,) = [one.item for one in planner.facts if isinstance(one, facts.ItemAssigned)]
    assert (item["from"], item["status"]) == ("weather@weather", "accepted")


# --- the record -----------------------------------------------------------------------------------


def recorded_answer(site: Site) -> tuple[Any, str]:
    planner = Session(site, "planner")
    corr_id = ask(planner).corr_id
    planner.put_command(AgentResponded(request_id=corr_id, response=DONE))
    (fact,) = [one for one in planner.facts if isinstance(one, facts.EnvelopeClassified)]
    return fact.arrival, fact.item_id


def test_an_answer_says_that_no_signature_proves_it():
    arrival, item_id = recorded_answer(site_with_agent())
    assert (arrival.auth, arrival.signature, arrival.vouch) == ("a2a", "", "")
    RecordedEnvelopes("default").verify("planner", item_id, arrival, site_with_agent().roster)


@pytest.mark.parametrize(
    "change",
    [{"signature": "0" * 128}, {"sender": "coder@weather"}, {"n": 9}, {"from_key": "1" * 64}],
)
def test_a_forged_answer_is_found(change: dict[str, Any]):
    site = site_with_agent()
    arrival, item_id = recorded_answer(site)
    forged = replace(arrival, **change)
    with pytest.raises(Refused):
        RecordedEnvelopes("default").verify("planner", item_id, forged, site.roster)


def test_no_realm_and_no_client_can_be_said_to_have_answered_without_a_signature():
    arrival, item_id = recorded_answer(site_with_agent())
    west, _ = pair()
    with pytest.raises(Refused, match="no agent of the roster"):
        RecordedEnvelopes("default").verify("planner", item_id, arrival, west.roster)


@pytest.mark.parametrize(
    "terms", [{"agent": UNSET}, {"names": ("*",)}, {"names": ("other",)}], ids=str
)
def test_an_agent_has_a_card_and_one_name(terms: dict[str, Any]):
    west, _ = pair()
    with pytest.raises(AssertionError, match="a card and one name"):
        accept_agent(west, **terms)


def test_an_agents_card_may_be_accepted_again_when_it_has_changed():
    site = site_with_agent()
    accept_agent(site, agent=replace(AGENT, digest="1" * 64))
    agent = site.roster.peers["weather"].pairing.agent
    assert agent is not UNSET
    assert agent.digest == "1" * 64
    assert site.roster.find(agent_key(CARD_URL)) is None, "no envelope can come from it"
