"""What a policy decides: every combination of settings, against a model written here."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import pytest

from rookery.actors.policy import Escalation, PolicySubject, RunPolicy
from rookery.actors.tools.authoring.registry import ToolRegistry
from rookery.actors.tools.builtin.peers import peer_tools
from rookery.actors.tools.builtin.sleep import built_in_tools
from rookery.actors.tools.calls.call_requests import PolicyAnswer, ask_policy
from rookery.actors.tools.catalogue.catalogue import CatalogueTool
from rookery.schemas.calls import Capability
from rookery.schemas.protection.policy import (
    CallRule,
    CallTerms,
    Isolation,
    PolicySettings,
    RuleDecision,
    decode_policy,
    encode_policy,
)
from rookery.schemas.run import SideEffect
from rookery.schemas.seed.policies import CapabilityPermission
from rookery.schemas.seed.policy_decisions import (
    ApprovalDecisionKind,
    MissingDependency,
    PolicyStage,
    RiskClass,
)
from rookery.schemas.surfaces import LOCAL, RESOURCES, SurfaceKind
from tests.tools.tool_fixtures import call

ALLOW, ASK, DENY = RuleDecision.ALLOW, RuleDecision.ASK, RuleDecision.DENY
READ, NETWORK, MCP = (
    CapabilityPermission.FILESYSTEM_READ,
    CapabilityPermission.NETWORK,
    CapabilityPermission.MCP,
)


def tool(
    *permissions: CapabilityPermission,
    surface: str = LOCAL,
    kind: SurfaceKind = SurfaceKind.LOCAL,
    argument: str = "url",
    **more: Any,
) -> CatalogueTool:
    """A tool called ``use`` with one text argument; without permissions it declares none."""
    schema = {"type": "object", "properties": {argument: {"type": "string"}}}
    declared = {"permissions": permissions} if permissions else {}
    capability = Capability(name="use", description="", input_schema=schema, **(declared | more))
    return CatalogueTool.of(surface, capability, awaited=False, kind=kind)


def policy(*, asks: bool = True, **settings: Any) -> RunPolicy:
    return RunPolicy(PolicySettings(**settings), "d" * 64, Escalation(asks))


def rule(decision: RuleDecision, permission: CapabilityPermission, source: str = "") -> CallRule:
    return CallRule(permission=permission, decision=decision, source=source)


def codes(judging: RunPolicy, subject: PolicySubject, arguments: Any = msgspec.UNSET) -> list[str]:
    return [step.code for step in judging.judge(subject, arguments).steps]


# --- order ----------------------------------------------------------------------------------------


def test_the_first_denial_ends_the_decision_and_any_question_is_asked():
    """Default x a rule or none x execution x network x a dispatcher or none: 4 x 3 x ... cells."""
    executions = {"allow": ALLOW, "deny": DENY, "isolated": ASK}
    cells = product((ALLOW, ASK, DENY), (None, ALLOW, ASK, DENY), executions, (True, False), (1, 0))
    for default, ruled, execution, network, asks in cells:
        settings: dict[str, Any] = {"default": default}
        if ruled is not None:
            settings["rules"] = (rule(ruled, NETWORK),)
        isolation = Isolation(require_isolation="process", otherwise=ASK)
        settings["execution"] = {LOCAL: isolation if execution == "isolated" else execution}
        settings["network"] = {LOCAL: "enabled" if network else "disabled"}
        steps = [
            default if ruled is None else ruled,
            executions[execution],
            ALLOW if network else DENY,
        ]
        expected = DENY if DENY in steps else ASK if ASK in steps else ALLOW
        if expected is ASK and not asks:
            expected = DENY
        judgement = policy(asks=bool(asks), **settings).judge(tool(NETWORK).subject)
        assert judgement.decision is expected, settings
        assert DENY not in [step.decision for step in judgement.steps[:-1]]
        assert all(step.outcome.stage is PolicyStage.PRE_TOOL for step in judgement.steps)


def test_a_call_needs_every_permission_of_its_tool():
    both = tool(READ, NETWORK).subject
    one = policy(default=DENY, rules=(rule(ALLOW, READ),))
    assert codes(one, both) == ["permission.granted", "permission.default_deny"]
    assert codes(one, tool(READ).subject) == ["permission.granted", "sandbox.allowed"]
    questions = policy(rules=(rule(ASK, READ), rule(DENY, NETWORK)))
    assert questions.judge(both).decision is DENY, "an approver is not asked in vain"


@pytest.mark.parametrize(
    ("source", "matches"),
    [("", True), ("local", True), ("local/use", True), ("local/other", False), ("shop", False)],
)
def test_a_rule_is_for_every_surface_for_one_or_for_one_tool(source: str, matches: bool):
    judging = policy(rules=(rule(DENY, READ, source),))
    assert codes(judging, tool(READ).subject)[0] == (
        "permission.denied" if matches else "permission.host_default"
    )


def test_the_first_rule_that_matches_decides():
    judging = policy(rules=(rule(ALLOW, READ, "local/use"), rule(DENY, READ)))
    assert judging.judge(tool(READ).subject).decision is ALLOW
    turned = policy(rules=(rule(DENY, READ), rule(ALLOW, READ, "local/use")))
    assert turned.judge(tool(READ).subject).decision is DENY


# --- permissions ----------------------------------------------------------------------------------


def test_permissions_are_declared_or_derived_or_not_known():
    deny = {"default": DENY, "undeclared": ASK}
    assert codes(policy(**deny), tool().subject) == [
        *("permission.ask", "sandbox.allowed", "escalation.dispatcher_ready")
    ]
    foreign = tool(surface="web", kind=SurfaceKind.MCP_HTTP).subject
    assert foreign.permissions == (MCP,), "what a server says of itself counts for nothing"
    assert codes(policy(**deny), foreign) == ["permission.default_deny"]
    assert tool(permissions=()).subject.permissions == (), "declared: it needs none"
    assert policy(**deny).judge(tool(permissions=()).subject).decision is ALLOW


@pytest.mark.parametrize(
    ("uri", "needed"),
    [
        ("file://data/a", (READ,)),
        ("https://a.example/b", (NETWORK,)),
        ("mcp://web/x", (MCP,)),
        ("memory://terms", ()),
        ("blob:" + "0" * 64, ()),
        ("no address", ()),
    ],
)
def test_a_resource_needs_the_permission_of_its_scheme(
    uri: str, needed: tuple[CapabilityPermission, ...]
):
    subject = tool(surface=RESOURCES, argument="uri").subject
    assert subject.needed({"uri": uri}) == needed
    assert set(subject.needed(None) or ()) == {READ, NETWORK, MCP}, "one that cannot be read"


def test_what_is_sent_to_a_peer_acts_and_a_wait_does_not():
    tools = (*peer_tools(ToolRegistry.of()), *built_in_tools(ToolRegistry.of()))

    def answers(judging: RunPolicy) -> dict[str, PolicyAnswer]:
        made = {one.available.name: ask_policy(judging, one, call(1, "it")) for one in tools}
        return {name: one for name, one in made.items() if one.outcome is not msgspec.UNSET}

    denied = answers(policy(default=DENY, undeclared=DENY))
    assert set(denied) == {"send_request", "send_message", "send_response"}
    assert all(one.fault for one in denied.values())
    delivery = CapabilityPermission.OUTPUT_DELIVERY
    rules = (rule(ALLOW, delivery, "peers/send_response"), rule(ASK, delivery, "peers"))
    asked = answers(policy(default=DENY, rules=rules))
    assert set(asked) == {"send_request", "send_message"}
    assert all(one.asks for one in asked.values())


def test_a_subject_without_a_dispatcher_is_denied_with_the_contracts_code():
    subject = tool(READ).subject
    silent = policy(asks=False, default=ASK)
    assert codes(silent, subject)[-1] == "escalation.missing_dispatcher"
    assert silent.judge(subject).decision is DENY


# --- execution and network ------------------------------------------------------------------------


def test_isolation_is_what_servers_of_the_node_have():
    needs = {"execution": {"web": Isolation(require_isolation="process")}}
    stdio = tool(surface="web", kind=SurfaceKind.MCP_STDIO).subject
    http = tool(surface="web", kind=SurfaceKind.MCP_HTTP).subject
    assert codes(policy(**needs), stdio)[-1] == "sandbox.allowed"
    assert codes(policy(**needs), http)[-1] == MissingDependency.ISOLATION_RUNTIME.reason_code
    unknown = {"execution": {"web": Isolation(require_isolation="vm", otherwise=ASK)}}
    assert policy(**unknown).judge(stdio).decision is ASK
    assert codes(policy(execution={"web": "deny"}), stdio)[-1] == "sandbox.host_denied"


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("https://api.example.com/v1", "network.enabled"),
        ("https://API.example.com:8443/v1", "network.enabled"),
        ("https://api.example.com.evil.net/", "network.host_denied"),
        ("https://api.example.com@evil.net/", "network.host_denied"),
        ("https://evil.net/?api.example.com", "network.host_denied"),
        ("http://[::1/", "network.host_denied"),
        ("", "network.host_denied"),
    ],
)
def test_only_listed_hosts_are_reached(url: str, code: str):
    judging = policy(network={LOCAL: ("api.example.com",)})
    assert codes(judging, tool(NETWORK).subject, {"url": url})[-1] == code
    assert codes(judging, tool(NETWORK).subject, None)[-1] == "network.host_denied"
    unbound = tool(NETWORK, argument="text").subject
    assert codes(judging, unbound, {"text": url})[-1] == "network.allowlist"
    assert codes(judging, tool(READ).subject, {"url": url})[-1] == "sandbox.allowed"


# --- approvals ------------------------------------------------------------------------------------


def test_risk_is_the_operators_word_then_the_tools_then_by_side_effect_and_foreign_is_high():
    plain = RunPolicy(PolicySettings())
    assert plain.risk_of(tool().subject) is RiskClass.LOW
    assert plain.risk_of(tool(side_effect=SideEffect.WRITE).subject) is RiskClass.MEDIUM
    assert plain.risk_of(tool(risk=RiskClass.CRITICAL).subject) is RiskClass.CRITICAL
    foreign = tool(surface="web", kind=SurfaceKind.MCP_STDIO)
    assert plain.risk_of(foreign.subject) is RiskClass.HIGH
    named = {"web": CallTerms(risk=RiskClass.MEDIUM), "web/use": CallTerms(risk=RiskClass.LOW)}
    assert policy(approvals=named).risk_of(foreign.subject) is RiskClass.LOW
    approved = (ApprovalDecisionKind.APPROVED,)
    allowing = policy(approvals={"web": CallTerms(allowed_decisions=approved)})
    assert allowing.decisions_of(foreign.subject) == approved
    assert allowing.decisions_of(tool().subject) == tuple(ApprovalDecisionKind)


# --- settings -------------------------------------------------------------------------------------


def test_the_default_policy_changes_nothing_and_is_not_asked():
    plain = RunPolicy(PolicySettings())
    judged = plain.judge(tool(NETWORK, READ).subject, {"url": "https://a.example"})
    assert judged.decision is ALLOW
    assert {step.code for step in judged.steps} == {
        *("permission.host_default", "sandbox.allowed", "network.enabled")
    }
    answer = ask_policy(plain, tool(NETWORK), call(1, "use", url="x"))
    assert answer.outcome is msgspec.UNSET
    assert answer.fault is msgspec.UNSET


def test_a_policy_is_stored_whole_and_one_with_an_unknown_field_is_refused():
    settings = PolicySettings(
        default=DENY,
        rules=(rule(ASK, READ, "local"),),
        execution={"web": Isolation(require_isolation="process")},
        network={LOCAL: ("a.example",)},
        approvals={"local/use": CallTerms(risk=RiskClass.HIGH)},
    )
    assert decode_policy(encode_policy(settings)) == settings
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        decode_policy(b'{"default":"allow","forbid":"all"}')
    for wrong in (
        '{"rules":[{"permission":"Fly","decision":"deny"}]}',
        '{"execution":{"a b":"deny"}}',
    ):
        with pytest.raises(msgspec.ValidationError):
            decode_policy(wrong.encode())
