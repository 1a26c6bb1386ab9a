"""Names, labels and values as a scraper sees them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from typing import Any, get_type_hints

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from rookery.actors.metrics import KernelMetrics
from rookery.ops.metrics import GAUGES, GaugeValue, NodeMetrics
from rookery.schemas.agents import ModelUsage, RequestSent
from rookery.schemas.approvals.records import ApprovalTerminalStatus
from rookery.schemas.envelope import Fact
from rookery.schemas.facts import approval, model, session, tool, turn
from rookery.schemas.machines.turn import LlmFailureKind, LlmRetryPlan
from rookery.schemas.run import Metrics, RunResult, RunStatus
from rookery.schemas.seed.lifecycle import ProviderStopReason
from rookery.schemas.seed.policies import AskPolicy
from rookery.schemas.seed.policy_decisions import (
    ApprovalDecisionKind,
    ApprovalRequestSpec,
    DispatcherScope,
    EffectClass,
    PolicyOutcome,
    PolicyStage,
    RiskClass,
)
from rookery.schemas.seed.refs import DestinationRef, PolicyRef, SourceRef
from tests.laws.source import dotted, modules, nodes
from tests.wire.test_facts import ALL_FACTS, example

EXECUTORS = {"effect", "tool", "surface", "language", "provider"}


def samples(metrics: NodeMetrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(metrics.page().body.decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(metrics: NodeMetrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get((name, frozenset(labels.items())))


def made(kind: type[Fact], **fields: Any) -> Fact:
    """A fact whose other required fields say nothing."""
    required = {field.name: "" for field in msgspec.structs.fields(kind) if field.required}
    return kind(**{**required, **fields})


def test_a_command_is_counted_by_verb_and_outcome_and_timed_by_verb():
    metrics = NodeMetrics("0")
    for outcome in ("committed", "committed", "refused"):
        metrics.command("run", outcome, 0.003)
    assert value(metrics, "rookery_command_total", verb="run", outcome="committed") == 2
    assert value(metrics, "rookery_command_total", verb="run", outcome="refused") == 1
    assert value(metrics, "rookery_command_seconds_count", verb="run") == 3
    assert value(metrics, "rookery_command_seconds_bucket", verb="run", le="0.005") == 3


def test_invented_verbs_share_one_label():
    metrics = NodeMetrics("0")
    for number in range(100):
        metrics.command(f"invented-{number}", "refused", 0.001)
        metrics.quarantined(f"invented-{number}")
    assert value(metrics, "rookery_command_total", verb="other", outcome="refused") == 100
    assert value(metrics, "rookery_command_quarantined_total", verb="other") == 100
    assert "invented" not in metrics.page().body.decode()


def test_commits_conflicts_and_restarts_are_counted():
    metrics = NodeMetrics("0")
    metrics.committed("session", 3, 5, 0.001)
    metrics.committed("session", 1, 1, 0.001)
    metrics.conflict("session")
    metrics.restarted("admission")
    assert value(metrics, "rookery_journal_append_total", family="session") == 4
    assert value(metrics, "rookery_journal_fact_total", family="session") == 6
    assert value(metrics, "rookery_journal_append_seconds_count", family="session") == 2
    assert value(metrics, "rookery_journal_conflict_total", family="session") == 1
    assert value(metrics, "rookery_actor_restart_total", actor="admission") == 1


def test_families_of_no_listed_decider_share_one_label():
    metrics = NodeMetrics("0")
    for number in range(100):
        metrics.committed(f"invented-{number}", 1, 1, 0.001)
        metrics.conflict(f"invented-{number}")
    assert value(metrics, "rookery_journal_append_total", family="other") == 100
    assert value(metrics, "rookery_journal_conflict_total", family="other") == 100
    assert "invented" not in metrics.page().body.decode()


def test_calls_and_effects_are_counted_by_outcome_and_timed():
    metrics = NodeMetrics("0")
    metrics.tool_call("price", "local", "completed", 0.003)
    metrics.tool_call("price", "local", "failed", 0.003)
    metrics.effect("ExecuteCall", "retried", 0.5)
    call = {"tool": "price", "surface": "local"}
    assert value(metrics, "rookery_tool_call_total", outcome="failed", **call) == 1
    assert value(metrics, "rookery_tool_call_seconds_count", **call) == 2
    assert value(metrics, "rookery_effect_total", effect="ExecuteCall", outcome="retried") == 1
    assert value(metrics, "rookery_effect_seconds_sum", effect="ExecuteCall") == 0.5


def test_steps_of_programs_are_timed_by_language_and_snapshots_measured():
    metrics = NodeMetrics("0")
    metrics.sandbox_step("python", 0.25)
    metrics.snapshot_stored(10_000)
    assert value(metrics, "rookery_sandbox_step_seconds_sum", language="python") == 0.25
    assert value(metrics, "rookery_snapshot_bytes_bucket", le="16000.0") == 1


def test_refreshes_logins_and_waiting_calls_are_counted_by_the_kind_of_their_provider():
    metrics = NodeMetrics("0")
    for outcome in ("try_later", "renewed"):
        metrics.refresh_begun("static")
        metrics.refresh_ended("static", outcome, 0.2)
    metrics.refresh_begun("static")
    metrics.login("device_code", "begun")
    metrics.credential_awaited("static", 90.0)
    assert value(metrics, "rookery_lease_refresh_begun_total", provider="static") == 3
    renewed = {"provider": "static", "outcome": "renewed"}
    assert value(metrics, "rookery_lease_refresh_total", **renewed) == 1
    assert value(metrics, "rookery_lease_refresh_seconds_count", provider="static") == 2
    begun = {"provider": "device_code", "outcome": "begun"}
    assert value(metrics, "rookery_lease_login_total", **begun) == 1
    assert value(metrics, "rookery_lease_wait_seconds_sum", provider="static") == 90.0


ASKED: dict[str, Any] = {"run": "r", "step": 1, "attempt": 1}
REQUESTED = model.Requested(
    **ASKED,
    model="fast",
    provider="p",
    provider_model="m",
    messages=1,
    head="",
    tools_digest="",
    settings_digest="",
)
_USE = ModelUsage(turns=1, input_tokens=100, output_tokens=10, cost_micro_usd=7, priced=1)
ANSWERED = model.Answered(
    **ASKED,
    stop_reason=ProviderStopReason.END_TURN,
    usage=_USE,
    duration_ms=400,
    first_token_ms=200,
)
FAILED = model.Failed(
    **ASKED,
    code="MODEL_FAILED",
    kind=LlmFailureKind.RATE_LIMITED,
    message="",
    sent=RequestSent.REFUSED,
    duration_ms=1,
    plan=LlmRetryPlan(
        attempt=1,
        max_retries=3,
        computed_delay_ms=500,
        selected_delay_ms=30_000,
        rate_limit_floor_applied=True,
        budget_capped=False,
    ),
)


def test_questions_to_models_are_counted_by_model_and_outcome():
    metrics = NodeMetrics("0")
    for end in (ANSWERED, FAILED, model.Lost(**ASKED, node="n")):
        metrics.facts_committed([REQUESTED])
        metrics.facts_committed([end])
    metrics.facts_committed([model.Lost(**ASKED, node="n")])
    for outcome in ("answered", "failed", "lost"):
        of = {"model": "fast", "outcome": outcome}
        assert value(metrics, "rookery_model_request_total", **of) == 1
    assert value(metrics, "rookery_model_request_total", model="other", outcome="lost") == 1
    assert value(metrics, "rookery_model_seconds_sum", model="fast") == 0.4
    assert value(metrics, "rookery_model_first_token_seconds_sum", model="fast") == 0.2
    assert value(metrics, "rookery_model_tokens_total", model="fast", kind="input") == 100
    assert value(metrics, "rookery_model_cost_micro_usd_total", model="fast") == 7
    retries = {"model": "fast", "kind": "RateLimited"}
    assert value(metrics, "rookery_model_retry_total", **retries) == 1


def test_runs_are_counted_by_status_from_the_facts_that_end_them():
    metrics = NodeMetrics("0")
    spent = Metrics(duration_ms=40)
    timeout = RunResult(status=RunStatus.TIMEOUT, metrics=spent)
    metrics.facts_committed([made(turn.Completed, result=timeout)])
    metrics.facts_committed([made(turn.Completed)])
    metrics.facts_committed([made(session.InputCancelled)])
    assert value(metrics, "rookery_run_total", status="timeout") == 1
    assert value(metrics, "rookery_run_total", status="unknown") == 1
    assert value(metrics, "rookery_run_total", status="cancelled") == 1
    assert value(metrics, "rookery_run_total", status="ok") == 0
    assert value(metrics, "rookery_run_seconds_sum") == 0.04


def test_calls_that_a_policy_denies_or_asks_about_are_counted_by_code():
    metrics, stage = NodeMetrics("0"), PolicyStage.PRE_TOOL
    denied = PolicyOutcome.denied(stage, "permission.default_deny")
    metrics.facts_committed([made(tool.Refused, policy=denied), made(tool.Refused)])
    source, destination = SourceRef.new("local/pay"), DestinationRef.new("local/pay")
    question = ApprovalRequestSpec(
        source=source,
        destination=destination,
        effect_class=EffectClass.WRITE,
        risk_class=RiskClass.LOW,
        dispatcher_scope=DispatcherScope.HOST,
        timeout_ms=1,
        allowed_decisions=(ApprovalDecisionKind.DENIED,),
    )
    asking = AskPolicy.ask_by_default(PolicyRef.new("p"), question).classify()
    metrics.facts_committed([made(tool.Requested, policy=asking), made(tool.Requested)])
    name, by_default = "rookery_policy_decision_total", "permission.default_deny"
    assert value(metrics, name, stage="PreTool", decision="deny", code=by_default) == 1
    assert value(metrics, name, stage="PreTool", decision="ask", code="") == 1


def test_approvals_are_counted_once_by_decision():
    """A denial leaves two facts: the answer, and the end of the request."""
    metrics = NodeMetrics("0")
    metrics.facts_committed([made(approval.Answered, decision="denied")])
    metrics.facts_committed([made(approval.Closed, status=ApprovalTerminalStatus.DENIED)])
    metrics.facts_committed([made(approval.Closed, status=ApprovalTerminalStatus.TIMED_OUT)])
    metrics.facts_committed([made(approval.Answered, decision="invented")])
    assert value(metrics, "rookery_approval_total", decision="denied") == 1
    assert value(metrics, "rookery_approval_total", decision="timed_out") == 1
    assert "invented" not in metrics.page().body.decode()


def test_gauges_are_read_at_each_scrape():
    metrics = NodeMetrics("0")
    depth = {"admission": 4.0, "turns": 1.0}

    def source() -> list[GaugeValue]:
        return [
            *(GaugeValue("rookery_mailbox_depth", n, actor) for actor, n in depth.items()),
            GaugeValue("rookery_partition_owned", 16),
            GaugeValue("rookery_journal_lost_ack_total", 2),
        ]

    metrics.add_source(source)
    assert value(metrics, "rookery_mailbox_depth", actor="turns") == 1
    assert value(metrics, "rookery_partition_owned") == 16
    assert value(metrics, "rookery_journal_lost_ack_total") == 2
    depth["turns"] = 9
    assert value(metrics, "rookery_mailbox_depth", actor="turns") == 9


def test_a_gauge_of_an_unknown_name_is_an_error():
    metrics = NodeMetrics("0")
    metrics.add_source(lambda: [GaugeValue("rookery_mystery", 1)])
    with pytest.raises(KeyError):
        metrics.page()


def test_every_counter_is_counted_by_a_report_of_the_port_or_of_a_fact():
    metrics = NodeMetrics("0")
    completed = made(turn.Completed, result=RunResult(metrics=Metrics(duration_ms=40)))
    denied = made(tool.Refused, policy=PolicyOutcome.denied(PolicyStage.PRE_TOOL, "x"))
    facts = [completed, denied, ANSWERED, FAILED, *(example(kind) for _, kind in ALL_FACTS)]
    arguments = {str: "x", int: 1, float: 1.0, Sequence[Fact]: facts}
    for name, report in inspect.getmembers(KernelMetrics, inspect.isfunction):
        if not name.startswith("_"):
            hints = get_type_hints(report)
            hints.pop("return")
            getattr(metrics, name)(*(arguments[hint] for hint in hints.values()))
    families = text_string_to_metric_families(metrics.page().body.decode())
    ours = [family for family in families if not family.name.startswith("process_")]
    idle = [family.name for family in ours if not any(one.value for one in family.samples)]
    assert not idle, f"no report counts {idle}: add one to KernelMetrics, or a fact to `_reports`"


def test_every_gauge_has_a_source():
    """And every gauge that a source yields is declared."""
    yielded = {
        node.args[0].value
        for module in modules("ops")
        for node in nodes(module)
        if isinstance(node, ast.Call)
        and dotted(node.func) == "GaugeValue"
        and isinstance(node.args[0], ast.Constant)
    }
    unread = sorted(set(GAUGES) - yielded)
    assert not unread, f"no source yields {unread}: see `gauges` in ops/probes.py"
    assert yielded <= set(GAUGES)


def test_names_have_our_prefix_base_units_and_no_ids_as_labels():
    metrics = NodeMetrics("0")
    metrics.command("run", "committed", 0.1)
    metrics.committed("session", 1, 1, 0.1)
    metrics.tool_call("price", "local", "completed", 0.1)
    metrics.effect("ExecuteCall", "done", 0.1)
    metrics.sandbox_step("python", 0.1)
    metrics.refresh_begun("static")
    metrics.refresh_ended("static", "renewed", 0.1)
    metrics.login("device_code", "begun")
    metrics.credential_awaited("static", 0.1)
    metrics.hook_invoked("guard", "before_tool_call", "completed", "enforce", 0.1)
    ours = {key for key in samples(metrics) if not key[0].startswith("process_")}
    assert ours
    assert all(name.startswith("rookery_") for name, _ in ours)
    labels = {name for _, pairs in ours for name, _ in pairs}
    kernel = {"verb", "outcome", "family", "actor", "le", "version", "python"}
    assert labels <= kernel | EXECUTORS | {"status", "decision", "hook", "point", "mode"}
    assert {pulled.label for pulled in GAUGES.values()} <= {"", "actor", "family", "hook"}


def test_two_nodes_in_one_process_do_not_mix():
    first, second = NodeMetrics("0"), NodeMetrics("0")
    first.conflict("session")
    assert value(second, "rookery_journal_conflict_total", family="session") is None


def test_the_build_is_reported():
    assert any(
        name == "rookery_build_info" and ("version", "1.2.3") in labels
        for name, labels in samples(NodeMetrics("1.2.3"))
    )
