"""The hooks that operators register for a realm: what a change leaves, and what runs have of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rookery.actors.hooks import NodeHooks
from rookery.actors.hooks.decider import HooksDecider, HooksRecorded
from rookery.actors.hooks.realm.realm_hooks import RealmHooks
from rookery.actors.kernel.decider import decode_state, encode_state
from rookery.actors.kernel.executors import NotExecutableHere
from rookery.ops.hooks import read_hooks
from rookery.ops.hooks.doctor import hook_problems
from rookery.schemas.envelope import Command
from rookery.schemas.errors import Refused
from rookery.schemas.facts import hook as facts
from rookery.schemas.hooks import (
    ChangeHooks,
    HookActivity,
    HookMode,
    HookRegistration,
    ListedHook,
    NatsHook,
)
from rookery.schemas.ids import REALM_KEY, HookExecutorRef
from rookery.schemas.seed.hook import HookPoint, HookResponseClass
from rookery.schemas.seed.hook_spec import HookOrdering
from tests.hooks.hook_fixtures import observer, registration, spec
from tests.hooks.test_node_hooks import ENVIRONMENT, names, rule

DECIDER = HooksDecider()
JUDGE = registration(spec(HookPoint.BEFORE_TOOL_CALL, HookResponseClass.DENY, hook_id="judge"))
CHANGER = registration(
    spec(
        HookPoint.BEFORE_TOOL_CALL,
        HookResponseClass.MODIFY_TOOL_REQUEST,
        hook_id="changer",
        ordering=HookOrdering(order=10),
    )
)


class Realm:
    """The hooks of a realm, changed one change after another."""

    def __init__(self) -> None:
        self.state: RealmHooks = DECIDER.initial_state
        self.forms: dict[str, HookRegistration] = {}

    def change(self, **fields: Any) -> list[str]:
        """The kinds of the facts that the change leaves."""
        body = ChangeHooks(actor="ann", **fields)
        command = Command(verb="ask", key=REALM_KEY, id="1", body=body)
        left = DECIDER.decide(self.state, command, now_ms=1)
        for fact in left:
            self.state = DECIDER.evolve(self.state, fact)
            if (one := self.state.hooks.get(fact.hook_id.as_str())) is not None:
                self.forms[one.registration.digest()] = one.registration
        reply = DECIDER.reply(self.state, command, left)
        assert isinstance(reply, HooksRecorded)
        assert reply.hooks == self.state
        return [str(fact.__struct_config__.tag).split(".")[1] for fact in left]

    def refused(self, **fields: Any) -> str:
        before = self.state
        with pytest.raises(Refused) as caught:
            self.change(**fields)
        assert self.state == before
        return caught.value.code

    def reaches(self, node: NodeHooks) -> None:
        node.follow({n: one.registration for n, one in self.state.hooks.items()}, self.forms)


# --- changes --------------------------------------------------------------------------------------


def test_a_change_is_recorded_once_and_names_its_operator():
    realm = Realm()
    assert realm.change(add=(JUDGE, CHANGER)) == ["registered", "registered"]
    assert realm.change(add=(JUDGE,)) == []
    assert realm.change(modes={"judge": HookMode.AUDIT}) == ["mode_set"]
    assert realm.change(modes={"judge": HookMode.AUDIT}) == []
    judge = realm.state.hooks["judge"]
    assert (judge.sequence, judge.actor, judge.registration.mode) == (2, "ann", HookMode.AUDIT)
    assert [one.spec.hook_id.as_str() for one in realm.state.registrations] == ["changer", "judge"]
    assert realm.change(remove=("judge",)) == ["removed"]
    assert realm.change(remove=("judge",)) == [], "the client may not have had the first reply"
    assert realm.change(add=(JUDGE,)) == ["registered"]
    assert realm.state.sequence == 4


def test_a_registration_has_the_record_of_the_contract():
    left = DECIDER.decide(
        RealmHooks(),
        Command(verb="ask", key=REALM_KEY, id="1", body=ChangeHooks(add=(JUDGE,))),
        now_ms=1,
    )
    (fact,) = left
    assert isinstance(fact, facts.Registered)
    assert fact.record == JUDGE.spec.registered()


def test_a_change_of_several_hooks_is_refused_as_a_whole():
    realm = Realm()
    late = registration(replace(CHANGER.spec, ordering=HookOrdering(order=500)))
    assert realm.refused(add=(JUDGE, late)) == "HOOK_INVALID"
    realm.change(add=(JUDGE,))
    assert realm.refused(add=(late,)) == "HOOK_INVALID"
    assert realm.change(remove=("judge",), add=(late,)) == ["removed", "registered"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, "INVALID_ARGUMENT"),
        ({"remove": ("gone",)}, "HOOK_NOT_FOUND"),
        ({"modes": {"gone": HookMode.OFF}}, "HOOK_NOT_FOUND"),
        ({"modes": {"changer": HookMode.OFF}, "remove": ("changer",)}, "HOOK_NOT_FOUND"),
        ({"add": (JUDGE, JUDGE)}, "INVALID_ARGUMENT"),
        ({"add": (CHANGER,), "remove": ("changer",)}, "INVALID_ARGUMENT"),
        ({"add": (replace(JUDGE, when="name =="),)}, "RULE_INVALID"),
        ({"add": (registration(spec(HookPoint.AFTER_CONTEXT_ASSEMBLY)),)}, "HOOK_POINT_NOT_LIVE"),
        (
            {"add": (registration(spec(HookPoint.AFTER_TOOL_CALL, HookResponseClass.DENY)),)},
            "HOOK_INVALID",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_a_code(fields: dict[str, Any], code: str):
    realm = Realm()
    realm.change(add=(CHANGER,))
    assert realm.refused(**fields) == code


def test_only_the_realms_own_key_has_hooks():
    DECIDER.check_key(REALM_KEY)
    with pytest.raises(Refused, match="the key of the realm's hooks"):
        DECIDER.check_key("session")


def test_the_state_survives_a_snapshot():
    realm = Realm()
    realm.change(add=(JUDGE, CHANGER))
    realm.change(remove=("changer",))
    assert decode_state(encode_state(realm.state), RealmHooks) == realm.state


# --- runs -----------------------------------------------------------------------------------------


def test_a_run_has_the_hooks_of_its_start_in_their_form_of_then():
    realm, node = Realm(), NodeHooks()
    first = rule("a").registration
    realm.change(add=(first,))
    realm.reaches(node)
    pinned = node.pin(ENVIRONMENT)
    realm.change(add=(rule("a", when='name == "send"').registration, rule("b").registration))
    realm.reaches(node)
    assert node.of_run(pinned) == [first]
    assert names(node, node.pin(ENVIRONMENT)) == ["a", "b"]
    realm.change(remove=("a",))
    realm.reaches(node)
    node.require(pinned)
    assert node.of_run(pinned) == []
    assert names(node, node.pin(ENVIRONMENT)) == ["b"]


def test_the_mode_is_that_of_now():
    realm, node = Realm(), NodeHooks()
    realm.change(add=(rule("a").registration,))
    realm.reaches(node)
    pinned = node.pin(ENVIRONMENT)
    for mode, found in ((HookMode.AUDIT, [HookMode.AUDIT]), (HookMode.OFF, [])):
        realm.change(modes={"a": mode})
        realm.reaches(node)
        assert [one.mode for one in node.of_run(pinned)] == found


def test_a_run_that_goes_on_after_a_park_has_the_hooks_of_now():
    realm, node = Realm(), NodeHooks([rule("own")])
    realm.change(add=(rule("a").registration, rule("b").registration))
    realm.reaches(node)
    pinned = node.pin(ENVIRONMENT)
    assert node.pin_again(pinned) is pinned
    edited = rule("b", when='name == "send"').registration
    realm.change(add=(edited, rule("c").registration), remove=("a",))
    realm.reaches(node)
    again = node.pin_again(pinned)
    assert names(node, again) == ["b", "c", "own"]
    assert edited in node.of_run(again)
    assert again.package_fingerprint == node.pin(ENVIRONMENT).package_fingerprint
    assert again.package_fingerprint != pinned.package_fingerprint
    realm.change(modes={"b": HookMode.OFF}, remove=("c",))
    realm.reaches(node)
    assert names(node, node.pin_again(again)) == ["own"]


def test_a_node_unbinds_no_run_from_a_hook_that_it_never_had():
    realm, node = Realm(), NodeHooks()
    pinned = NodeHooks([rule("of-another-node")]).pin(ENVIRONMENT)
    assert node.pin_again(pinned) is pinned
    realm.change(add=(rule("a").registration,))
    realm.reaches(node)
    again = node.pin_again(pinned)
    assert [pin.hook_id for pin in again.hooks or ()] == ["of-another-node", "a"]
    assert again.package_fingerprint not in (
        pinned.package_fingerprint,
        node.pin(ENVIRONMENT).package_fingerprint,
    )
    with pytest.raises(NotExecutableHere, match="this node lacks: of-another-node"):
        node.require(again)


def test_a_node_that_does_not_know_the_realms_hooks_leaves_a_run_those_it_has():
    realm, node = Realm(), NodeHooks()
    realm.change(add=(rule("a").registration,))
    realm.reaches(node)
    pinned = node.pin(ENVIRONMENT)
    realm.change(remove=("a",))
    realm.reaches(node)
    node.problem = "the realm's hooks are not known"
    assert node.pin_again(pinned) is pinned


def test_a_hook_of_the_realm_replaces_the_nodes_of_its_id():
    realm, node = Realm(), NodeHooks([rule("a"), rule("own")])
    realm.change(add=(rule("a", "audit").registration,))
    realm.reaches(node)
    modes = {one.spec.hook_id.as_str(): one.mode for one in node.registrations}
    assert modes == {"a": HookMode.AUDIT, "own": HookMode.ENFORCE}


def test_no_run_starts_beside_a_hook_of_the_node_that_would_judge_something_else():
    realm, node = Realm(), NodeHooks([rule("first", order=1)])
    realm.change(add=(CHANGER,))
    with pytest.raises(Refused, match="changer changes what first has judged"):
        node.check({"changer": CHANGER})
    realm.reaches(node)
    with pytest.raises(Refused, match="no run starts here"):
        node.pin(ENVIRONMENT)
    realm.change(remove=("changer",))
    realm.reaches(node)
    assert names(node, node.pin(ENVIRONMENT)) == ["first"]


def test_a_node_without_the_executor_leaves_the_run_to_others():
    realm, node = Realm(), NodeHooks()
    realm.change(add=(JUDGE,))
    realm.reaches(node)
    pinned = node.pin(ENVIRONMENT)
    with pytest.raises(NotExecutableHere, match="hooks that this node lacks: judge"):
        node.require(pinned)
    realm.change(modes={"judge": HookMode.OFF})
    realm.reaches(node)
    node.require(pinned)


# --- files ----------------------------------------------------------------------------------------

FILE = """
[[hook]]
id = "cap-payments"
point = "before_tool_call"
rights = ["modify_tool_request"]
when = 'name == "pay" and args.amount > 100'
failure = "deny"
timeout_ms = 100
privacy = "content_capture_allowed"
mode = "audit"
executor = { kind = "nats" }

[[hook]]
id = "no-eve"
point = "before_tool_call"
when = 'name == "pay" and args.to == "eve"'
mode = "enforce"
order = 200
executor = { kind = "rule", then = "deny", code = "recipient", summary = "eve gets nothing" }

[[hook]]
id = "look"
point = "after_tool_call"
executor = { kind = "python", function = "guards.look" }
"""


def test_a_file_becomes_registrations(tmp_path: Path):
    (path := tmp_path / "guard.toml").write_text(FILE)
    cap, no_eve, look = read_hooks(path)
    realm = Realm()
    assert realm.change(add=(cap, no_eve, look)) == ["registered"] * 3
    assert cap.spec.executor_ref == HookExecutorRef("nats:cap-payments")
    assert (cap.executor, cap.mode, cap.spec.timeout.timeout_ms) == (NatsHook(), "audit", 100)
    assert no_eve.spec.mutation_rights.rights == ("observe", "deny")
    assert (look.spec.failure, no_eve.spec.failure) == ("fail_open_observe_only", "deny")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "missing required field `hook`"),
        ("[[hook]]", "missing required field"),
        ("[[hook", "Expected"),
        (FILE.replace("audit", "dry"), "Invalid enum value 'dry'"),
        (FILE.replace("timeout_ms", "timeout"), "unknown field `timeout`"),
        (FILE.replace('kind = "nats"', 'kind = "smtp"'), "smtp"),
        (FILE.replace('then = "deny"', 'then = "request_retry"'), "not request_retry"),
        ("a = " + "[" * 10_000, "recursion"),
        (FILE.replace("no-eve", "\\u0000"), "control character"),
        (FILE.replace("before_tool_call", "before_lunch"), "before_lunch"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str, says: str):
    (path := tmp_path / "guard.toml").write_text(text)
    with pytest.raises(Refused, match=says) as caught:
        read_hooks(path)
    assert caught.value.code == "HOOK_INVALID"


# --- what an operator should know -----------------------------------------------------------------

DAY_MS = 86_400_000


def told(now_ms: int, activity: HookActivity, of: HookRegistration, problem: str = "") -> list[str]:
    listed = ListedHook(registration=of, digest="", activity=activity, problem=problem)
    return list(hook_problems(listed, now_ms))


def test_the_doctor_names_hooks_that_guard_less_than_they_seem_to():
    audited = replace(JUDGE, mode=HookMode.AUDIT)
    since = HookActivity(mode_since_ms=1)
    assert told(30 * DAY_MS, since, audited) == []
    assert "only audited, for 31 days" in told(31 * DAY_MS + 1, since, audited)[0]
    assert told(31 * DAY_MS + 1, since, JUDGE) == []
    open_one = registration(observer(HookPoint.AFTER_TOOL_CALL))
    failed = HookActivity(failed=2, last_ms=5 * DAY_MS)
    assert "fails open, and has failed 2 times" in told(6 * DAY_MS - 1, failed, open_one)[0]
    assert told(6 * DAY_MS, failed, open_one) == told(6 * DAY_MS - 1, failed, JUDGE) == []
    assert told(1, HookActivity(), JUDGE, "it is away") == ["it is away"]
    off = replace(JUDGE, mode=HookMode.OFF)
    assert told(1, HookActivity(), off, "it is away") == []
