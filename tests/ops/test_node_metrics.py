"""The metrics of a node that executes runs, as a scraper reads them from ``/metrics``."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from rookery.actors import DECIDERS
from rookery.bus import SyncClient, connect_sync
from rookery.bus.roles import Role
from rookery.schemas.run import RunStatus
from tests.nodes import NodeProcess

TOOLS = "rookery.ops.examples.approval.tools:registry"
CREDENTIAL_TOOLS = "tests.execution.credential_tools:login_registry"
SOON_S = 90.0
Page = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(node: NodeProcess) -> Page:
    with urllib.request.urlopen(f"{node.health}/metrics", timeout=90) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }


def value(page: Page, name: str, **labels: str) -> float | None:
    return page.get((name, frozenset(labels.items())))


def scrape_until(node: NodeProcess, is_right: Callable[[Page], bool]) -> Page:
    until_s = time.monotonic() + SOON_S
    while not is_right(page := scrape(node)):
        assert time.monotonic() < until_s, page
        time.sleep(0.1)
    return page


def run_to_an_answered_approval(node: NodeProcess, client: SyncClient) -> None:
    assert client.run("shop", "balance()", snapshot=True).result == 100
    assert client.run("shop", "1 / 0").status is RunStatus.RUNTIME_ERROR
    paying = client.submit("shop", "pay('ann', 7)")
    page = scrape_until(node, lambda page: value(page, "rookery_approval_waiting") == 1)
    assert value(page, "rookery_run_in_flight") == 1
    (approval,) = client.approvals("shop")
    client.decide(approval, "approved", actor="ann")
    assert paying.result(SOON_S).result == "paid 7 to ann"


def test_a_node_reports_what_it_asks_of_providers_by_their_kind(tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("canary")
    (tmp_path / "rookery.toml").write_text(
        f'[bindings.mail]\nprovider = "static"\nvalue = "file:{secret}"\n'
    )
    options = ("--driver", "sandbox", "--metrics-port", "0", "--tools", CREDENTIAL_TOOLS)
    store, here = str(tmp_path / "store"), str(Path(__file__).parents[2])
    with NodeProcess(tmp_path, "--store", store, *options, PYTHONPATH=here) as node:
        with connect_sync(node.url_for(Role.OPERATOR)) as client:
            assert client.run("desk", "scheme_of()").result == "Bearer"
        waits = "rookery_lease_wait_seconds_count"
        page = scrape_until(node, lambda page: value(page, waits, provider="static") == 1)
    renewed = {"provider": "static", "outcome": "renewed"}
    assert value(page, "rookery_lease_refresh_begun_total", provider="static") == 1
    assert value(page, "rookery_lease_refresh_total", **renewed) == 1
    assert not any("mail" in item for _, labels in page for item in dict(labels).values())


def test_a_node_reports_its_calls_runs_sandbox_and_approvals(tmp_path: Path):
    options = ("--driver", "sandbox", "--metrics-port", "0", "--tools", TOOLS)
    store = tmp_path / "store"
    with NodeProcess(tmp_path, "--store", str(store), *options) as node:
        page = scrape(node)
        assert value(page, "rookery_run_total", status="ok") == 0
        assert value(page, "rookery_approval_total", decision="approved") == 0
        hosted = {dict(labels)["actor"] for name, labels in page if name == "rookery_mailbox_depth"}
        assert hosted == set(DECIDERS)
        with connect_sync(node.url_for(Role.OPERATOR)) as client:
            run_to_an_answered_approval(node, client)
        gauges = ("rookery_run_in_flight", "rookery_run_executing", "rookery_approval_waiting")
        page = scrape_until(node, lambda page: not any(value(page, name) for name in gauges))
    assert value(page, "rookery_run_total", status="ok") == 2
    assert value(page, "rookery_run_total", status="runtime_error") == 1
    assert value(page, "rookery_run_seconds_count") == 3
    for tool in ("balance", "pay"):
        local = {"tool": tool, "surface": "local"}
        assert value(page, "rookery_tool_call_total", outcome="completed", **local) == 1
        assert value(page, "rookery_tool_call_seconds_count", **local) == 1
    steps = value(page, "rookery_sandbox_step_seconds_count", language="python")
    assert steps is not None
    assert steps >= 4  # One each, and one more after the approval.
    stored = value(page, "rookery_snapshot_bytes_count")
    assert stored is not None
    assert stored >= 1
    assert value(page, "rookery_approval_total", decision="approved") == 1
    assert value(page, "rookery_effect_total", effect="ExecuteCall", outcome="done") == 2
    assert not any("shop" in item for _, labels in page for item in dict(labels).values())
