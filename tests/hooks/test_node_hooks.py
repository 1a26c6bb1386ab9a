"""The hooks of a node: which a run is bound to, and which nodes may execute it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.hooks import NodeHooks, deny, hook, rule_hook
from rookery.actors.hooks.changes.call_changes import merge_patch
from rookery.actors.hooks.points import HookPoints
from rookery.actors.kernel.executors import NotExecutableHere
from rookery.actors.messages import ActiveRunView
from rookery.actors.tools import ToolRegistry
from rookery.actors.tools.authoring import HOOK_ATTRIBUTE
from rookery.actors.tools.catalogue import ToolCatalogue
from rookery.ops.examples import payment_guard
from rookery.schemas.calls import AvailableTool, CallOutcome, RequestedCall, RunEnvironment
from rookery.schemas.errors import Refused
from rookery.schemas.run import Language, SessionLimits

ENVIRONMENT = RunEnvironment(
    language=Language.PYTHON,
    build="build",
    seed="00",
    limits=SessionLimits(),
    tools=(AvailableTool(name="pay"),),
)
DENY = deny("no", "not today")


def rule(name: str, mode: str = "enforce", order: int = 100, **changes: Any) -> Any:
    when = changes.pop("when", 'name == "pay"')
    return rule_hook(name, "before_tool_call", when=when, then=DENY, mode=mode, order=order)


def names(hooks: NodeHooks, environment: RunEnvironment) -> list[str]:
    return [one.spec.hook_id.as_str() for one in hooks.of_run(environment)]


def test_a_run_is_bound_to_the_hooks_that_are_on_when_it_starts():
    hooks = NodeHooks([rule("b"), rule("off", "off"), rule("a"), rule("first", "audit", 1)])
    pinned = hooks.pin(ENVIRONMENT)
    assert [pin.hook_id for pin in pinned.hooks or ()] == ["first", "a", "b"]
    assert str(pinned.package_fingerprint).startswith("sha256:runtime-package-canonical-v1:")
    assert names(hooks, pinned) == ["first", "a", "b"]
    assert names(NodeHooks([rule("a"), rule("b"), rule("first"), rule("new")]), pinned) == [
        *("a", "b", "first"),
    ]


def test_a_node_without_hooks_pins_none_and_every_run_has_a_fingerprint():
    without = NodeHooks().pin(ENVIRONMENT)
    assert without.hooks is UNSET
    pinned = NodeHooks([rule("a")]).pin(ENVIRONMENT)
    assert NodeHooks().pin(pinned) == without
    assert without.package_fingerprint not in (UNSET, pinned.package_fingerprint)
    ruled = NodeHooks().pin(replace(ENVIRONMENT, policy="another"))
    assert ruled.package_fingerprint != without.package_fingerprint


def test_a_node_leaves_a_run_to_others_unless_it_knows_every_hook_of_it():
    pinned = NodeHooks([rule("a"), rule("b")]).pin(ENVIRONMENT)
    with pytest.raises(NotExecutableHere, match="hooks that this node lacks: b"):
        NodeHooks([rule("a")]).require(pinned)
    edited = NodeHooks([rule("a", when='name == "send"'), rule("b", "off")])
    edited.require(pinned)
    assert names(edited, pinned) == ["a"]
    NodeHooks().require(ENVIRONMENT)


def test_the_fingerprint_changes_with_the_hooks():
    one, other = NodeHooks([rule("a")]), NodeHooks([rule("b")])
    prints = {hooks.pin(ENVIRONMENT).package_fingerprint for hooks in (one, other, one)}
    assert len(prints) == 2
    elsewhere = replace(ENVIRONMENT, build="other")
    assert one.pin(elsewhere).package_fingerprint not in prints


def test_a_node_does_not_open_with_an_invalid_hook():
    with pytest.raises(Refused, match="id: another hook has the same id"):
        NodeHooks([rule("a"), rule("a")])


def test_a_registry_has_tools_and_hooks():
    @hook("before_tool_call", rights=["deny"], mode="enforce")
    def no_calls(call: Any) -> Any:
        return DENY

    registry = ToolRegistry.of(no_calls, rule("a"))
    assert (len(registry), len(registry.hooks)) == (0, 2)
    spec = getattr(no_calls, HOOK_ATTRIBUTE).registration.spec
    assert spec.hook_id.as_str() == "no-calls"
    assert spec.executor_ref.as_str() == f"python:{no_calls.__module__}.{no_calls.__qualname__}"
    assert len(ToolRegistry.of(*registry, *registry.hooks).hooks) == 2


@pytest.mark.parametrize(("mode", "code"), [("enforce", "PERMISSION_DENIED"), ("audit", "")])
def test_the_result_of_a_tool_that_is_gone_is_refused_because_no_hook_can_judge_it(
    mode: str, code: str
):
    decorated = hook("after_tool_call", rights=["rewrite_tool_result"], mode=mode, name="judge")
    hooks = NodeHooks([getattr(decorated(lambda call: None), HOOK_ATTRIBUTE)])
    view = ActiveRunView(run_id="run", offer=hooks.pin(ENVIRONMENT))
    call = RequestedCall(operation_id="o", number=1, name="gone", digest="d")

    async def judged() -> Any:
        points = HookPoints(hooks, ToolCatalogue(), lambda: 0, "s", view)
        return await points.after_tool_call(call, CallOutcome(value="secret"))

    outcome, hooked = asyncio.run(judged())
    assert (outcome.error.code if outcome.error else "") == code
    assert len(hooked.facts) == bool(code)


def test_the_example_opens_with_its_hooks_in_order():
    hooks = NodeHooks(payment_guard.registry.hooks)
    assert names(hooks, hooks.pin(ENVIRONMENT)) == ["cap-payments", "no-eve", "no-evenings"]


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c"], ["c"]),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_merge_patch_is_that_of_rfc_7396(target: Any, patch: Any, result: Any):
    assert merge_patch(target, patch) == result
