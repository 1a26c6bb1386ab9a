"""A call of an agent is answered by the run of a child, once, whatever node has either."""

from __future__ import annotations

import msgspec
import pytest

from rookery.schemas.agent_tools import RunChild
from rookery.schemas.agents import ParentRun
from rookery.schemas.facts import session as session_facts
from rookery.schemas.facts import tool, turn
from rookery.schemas.facts.run_progress import TURN_ENDS
from rookery.schemas.replies import SessionView
from rookery.schemas.run import RunRequest
from tests.agents.agent_world import call, result_of, says, wants
from tests.agents.child_world import ChildWorld, asks

USE = {"input_tokens": 100, "output_tokens": 10}


def test_a_model_calls_an_agent_and_gets_its_result():
    with ChildWorld(
        wants(asks("finder")),
        says("found it"),
        finder=[wants(call("fetch", a=1), usage=USE), says("tea is here", usage=USE)],
    ) as world:
        world.begin()
        asked = world.prompt()
        world.until(lambda: asked.answers)
        assert result_of(asked)["result"] == "found it"
        awaited = next(fact for fact in world.recorded("tool") if isinstance(fact, tool.Awaited))
        assert (awaited.code, [awaited.child]) == ("WAITING_FOR_AGENT", world.sessions)
        ended = next(fact for fact in world.recorded("tool") if isinstance(fact, tool.Completed))
        assert ended.value == "tea is here"
        assert (ended.usage.input_tokens, ended.usage.output_tokens) == (200, 20)
        (accepted,) = [
            fact
            for fact in world.facts_in(awaited.child, "session")
            if isinstance(fact, session_facts.InputAccepted)
        ]
        parent = accepted.request.parent
        assert (parent.session, parent.operation_id) == ("s", awaited.operation_id)
        assert (parent.depth, parent.agents) == (1, ("finder",))
        child = next(q for q in world.questions if q.session_id == awaited.child)
        assert child.messages[0].text == '{"topic":"tea"}'
        assert sorted(one.name for one in child.tools) == ["fetch", "guarded"]


def faults(world: ChildWorld) -> list[str]:
    return [fact.error.code for fact in world.recorded("tool") if hasattr(fact, "error")]


def test_however_a_child_ends_its_parent_gets_that_as_the_outcome():
    with ChildWorld(
        wants(asks("finder")),
        says("so be it"),
        finder=[{"failure": {"message": "no credit", "status": 402}}],
    ) as world:
        world.begin()
        asked = world.prompt()
        world.until(lambda: asked.answers)
        assert result_of(asked)["result"] == "so be it"
        assert faults(world) == ["MODEL_FAILED"]


def test_a_cancelled_child_is_an_outcome_too():
    with ChildWorld(wants(asks("finder")), says("alone then"), finder=[says("never")]) as world:
        world.is_silent = lambda question: question.session_id != "s"
        world.begin()
        asked = world.prompt()
        world.until(lambda: world.sessions and len(world.questions) == 2)
        (child,) = world.sessions
        world.ask("cancel", child, run_id=world.questions[-1].run_id, now=True)
        world.until(lambda: asked.answers and result_of(asked)["status"] == "ok")
        assert result_of(asked)["result"] == "alone then"
        assert faults(world) == ["CANCELLED"]


@pytest.mark.parametrize("nested", [False, True])
def test_the_cancellation_of_a_parent_ends_the_whole_tree(nested: bool):
    name = "sender" if nested else "finder"
    with ChildWorld(
        wants(asks(name), asks("finder", topic="cake")),
        sender=[wants(asks("finder", topic="milk"))],
        finder=[says("never")],
    ) as world:
        world.is_silent = lambda question: question.instructions.startswith("You find")
        world.begin()
        world.prompt()
        count = 3 if nested else 2
        world.until(lambda: len(world.sessions) == count)
        world.until(lambda: sum(map(world.is_silent, world.questions)) == 2)
        world.ask("cancel", "s", run_id=world.runs[0], now=True)
        world.until(lambda: all(ended(world, key) for key in ["s", *world.sessions]))
        world.settle()
        for key in ["s", *world.sessions]:
            assert isinstance(ended(world, key), turn.Cancelled), key


def ended(world: ChildWorld, session: str) -> object:
    facts = [fact for fact in world.facts_in(session) if isinstance(fact, TURN_ENDS)]
    return facts[-1] if facts else None


def test_a_child_that_was_withdrawn_before_it_began_never_begins():
    """Its session gets the withdrawal first; then the command to begin."""
    with ChildWorld(finder=[says("never")]) as world:
        node = world.begin()
        parent = ParentRun(session="s", run_id="r", operation_id="o")
        child = RunChild(request=RunRequest(agent="finder", inputs={"topic": "x"}, parent=parent))
        for body in (msgspec.structs.replace(child, withdrawn=True), child):
            world.run(node.kernel.ask("session", "sub-1", body, SessionView))
        world.settle()
        kinds = [type(fact).__name__ for fact in world.facts_in("sub-1", "session")]
        assert kinds[-2:] == ["InputAccepted", "InputCancelled"]
        assert not world.questions


def test_a_child_is_accepted_once_however_often_its_command_comes():
    with ChildWorld(finder=[says("found")]) as world:
        node = world.begin()
        parent = ParentRun(session="s", run_id="r", operation_id="o")
        child = RunChild(request=RunRequest(agent="finder", inputs={"topic": "x"}, parent=parent))
        for _ in range(3):
            world.run(node.kernel.ask("session", "sub-1", child, SessionView))
            world.settle()
        assert len(world.questions) == 1


@pytest.mark.parametrize(
    ("agent", "limits", "code"),
    [
        ("finder", {"depth": 0}, "DEPTH_EXCEEDED"),
        ("finder", {"children": 0}, "CHILDREN_EXCEEDED"),
        ("finder", {"tokens": 112}, "BUDGET_EXHAUSTED"),
    ],
)
def test_a_call_without_room_is_refused(agent: str, limits: dict[str, int], code: str):
    with ChildWorld(wants(asks(agent), usage=USE), says("well"), finder=[says("never")]) as world:
        world.begin()
        asked = world.prompt(limits=limits)
        world.until(lambda: asked.answers)
        assert faults(world) == [code]
        assert not world.sessions


def test_agents_that_call_themselves_end_at_the_depth_of_the_first_request():
    with ChildWorld(
        wants(asks("chief")), says("done"), chief=[wants(asks("chief")), says("led")]
    ) as world:
        world.begin()
        asked = world.prompt(limits={"depth": 2})
        world.until(lambda: asked.answers)
        assert result_of(asked)["result"] == "done"
        assert len(world.sessions) == 2
        (refused,) = [
            fact for fact in world.facts_in(world.sessions[1]) if isinstance(fact, tool.Refused)
        ]
        assert refused.error.code == "DEPTH_EXCEEDED"


def test_a_budget_is_shared_and_what_is_left_returns():
    """Of 10,000 tokens 1,000 are used: the first child has a quarter of 9,000, the second one of
    what is left then."""
    use = {"input_tokens": 900, "output_tokens": 100}
    with ChildWorld(
        wants(asks("finder"), asks("finder", topic="cake"), usage=use),
        wants(asks("finder", topic="milk"), usage=use),
        says("done", usage=use),
        finder=[says("found", usage=USE)],
    ) as world:
        world.begin()
        asked = world.prompt(limits={"tokens": 10_000})
        world.until(lambda: asked.answers)
        parts = [f.reserved.tokens for f in world.recorded("tool") if isinstance(f, tool.Awaited)]
        assert parts == [2_250, 1_687, (10_000 - 2_000 - 220) // 4]
        end = next(f for f in world.recorded() if isinstance(f, turn.Completed))
        assert end.child_usage.tokens == 330
        requests = [session_request(world, key) for key in world.sessions]
        assert [request.limits.tokens for request in requests] == parts


def session_request(world: ChildWorld, session: str) -> RunRequest:
    (request,) = [
        fact.request
        for fact in world.facts_in(session, "session")
        if isinstance(fact, session_facts.InputAccepted)
    ]
    assert isinstance(request, RunRequest)
    return request


def test_what_children_use_counts_before_the_next_question_of_their_parent():
    """The parent has used 110 and its child 990 of 1,100: the next question is not paid."""
    much = {"input_tokens": 900, "output_tokens": 90}
    with ChildWorld(
        wants(asks("finder"), usage=USE), says("never", usage=USE), finder=[says("it", usage=much)]
    ) as world:
        world.begin()
        asked = world.prompt(limits={"tokens": 1_100})
        world.until(lambda: asked.answers)
        assert result_of(asked)["error"]["code"] == "BUDGET_EXHAUSTED"
        assert [question.session_id for question in world.questions] == ["s", *world.sessions]


def test_the_rights_of_a_child_are_those_of_its_parent_and_of_its_agent():
    with ChildWorld(
        wants(asks("sender")),
        says("done"),
        sender=[wants(call("send", a=1), asks("finder"), call("fetch", a=1)), says("tried")],
        finder=[wants(call("fetch", a=1)), says("found")],
    ) as world:
        world.begin()
        without = {"without": [{"tool": "send"}]}
        asked = world.prompt(grants=without)
        world.until(lambda: asked.answers)
        of_sender = world.facts_in(world.sessions[0])
        refused = {f.name: f.error.code for f in of_sender if isinstance(f, tool.Refused)}
        assert refused == {"send": "UNKNOWN_TOOL", "fetch": "UNKNOWN_TOOL"}
        of_finder = world.facts_in(world.sessions[1])
        assert [f.name for f in of_finder if isinstance(f, tool.Refused)] == ["fetch"]


def test_a_detached_child_goes_on_alone_and_its_end_is_a_message():
    detached = call("finder", topic="tea", detach=True)
    with ChildWorld(wants(detached), says("it will come"), finder=[says("found")]) as world:
        world.is_silent = lambda question: world.hold and question.session_id != "s"
        world.begin()
        asked = world.prompt(limits={"tokens": 1_000})
        world.until(lambda: asked.answers)
        assert result_of(asked)["result"] == "it will come"
        (ended_call,) = [f for f in world.recorded("tool") if isinstance(f, tool.Completed)]
        assert ended_call.value == {"session": world.sessions[0]}
        assert ended_call.usage.maybe_paid_tokens == 250, "it is not known what it will use"
        world.until(lambda: len(world.recorded("conversation")) == 2)
        told = world.recorded("conversation")[1].message.text
        assert told == f'The agent finder in {world.sessions[0]} has ended: "found"'
        assert session_request(world, world.sessions[0]).parent.detached


def test_an_approver_decides_about_a_call_of_an_agent_that_says_so():
    """The approval is asked about the call; no child begins before."""
    with ChildWorld(wants(asks("guarded_finder")), says("done"), finder=[says("found")]) as world:
        world.begin()
        world.prompt()
        world.until(lambda: [f for f in world.recorded("tool") if isinstance(f, tool.Requested)])
        world.settle()
        (requested,) = [f for f in world.recorded("tool") if isinstance(f, tool.Requested)]
        assert requested.approval == "manual"
        assert not world.sessions


def test_every_node_may_die_at_every_message_and_there_is_one_child():
    answers = (wants(asks("finder")), says("found it"))
    finder = [wants(call("fetch", a=1)), says("tea is here")]
    with ChildWorld(*answers, finder=finder) as world:
        world.begin()
        asked = world.prompt()
        world.until(lambda: asked.answers)
        world.settle()
        messages = len(world.stored("", "s"))
    for number in range(1, messages + 1):
        with ChildWorld(*answers, finder=finder) as world:
            world.begin()
            world.prompt()
            world.kill_after(number)
            world.until(lambda world=world: world.closes)
            world.settle()
            end = next(f for f in world.recorded() if isinstance(f, turn.Completed))
            assert end.result.result == "found it", number
            assert len(world.sessions) == 1
            assert session_request(world, world.sessions[0]).agent == "finder"
            asked_ = [(q.run_id, q.step, q.attempt) for q in world.questions]
            assert len(asked_) == len(set(asked_)), "no question is asked twice under one fact"
