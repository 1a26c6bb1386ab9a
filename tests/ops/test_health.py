"""The health server over a real socket."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

import msgspec
import pytest

from rookery.ops.http_server import HealthServer, Page, Probe, probe_page
from rookery.ops.metrics import NodeMetrics
from rookery.schemas.errors import Refused


def get(url: str) -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def lines(body: str) -> list[dict[str, object]]:
    return [msgspec.json.decode(line) for line in body.splitlines()]


def test_ready_is_200_while_every_check_holds_and_503_when_one_does_not():
    probes = [Probe("server", ok=True, detail="connected"), Probe("draining", ok=True)]
    with HealthServer("127.0.0.1", 0, {"/readyz": probe_page(lambda: probes)}) as server:
        status, kind, body = get(f"{server.url}/readyz")
        assert (status, kind) == (200, "application/x-ndjson")
        assert lines(body) == [
            {"name": "server", "ok": True, "detail": "connected"},
            {"name": "draining", "ok": True, "detail": ""},
        ]
        probes[1] = Probe("draining", ok=False, detail="the node is stopping")
        status, _, body = get(f"{server.url}/readyz")
        assert status == 503
        assert [line["ok"] for line in lines(body)] == [True, False]


def test_a_check_that_breaks_is_a_check_that_does_not_hold():
    def broken() -> list[Probe]:
        raise RuntimeError("secret detail")

    with HealthServer("127.0.0.1", 0, {"/livez": probe_page(broken)}) as server:
        status, _, body = get(f"{server.url}/livez")
    assert status == 503
    assert lines(body) == [{"name": "probe", "ok": False, "detail": "failed: RuntimeError"}]


def test_metrics_are_served_beside_the_probes():
    metrics = NodeMetrics("0")
    metrics.conflict("session")
    with HealthServer("127.0.0.1", 0, {"/metrics": metrics.page}) as server:
        status, kind, body = get(f"{server.url}/metrics?name=x")
    assert status == 200
    assert kind.startswith("text/plain; version=")
    assert 'rookery_journal_conflict_total{family="session"} 1.0' in body


def test_an_unknown_path_is_not_found_and_the_answer_lists_the_known_ones():
    with HealthServer("127.0.0.1", 0, {"/livez": lambda: Page(200, "text/plain", b"")}) as server:
        assert get(f"{server.url}/nope") == (404, "text/plain", "/livez\n")


def test_closing_frees_the_port_even_with_a_silent_client():
    server = HealthServer("127.0.0.1", 0, {})
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)):
        server.close()
    with HealthServer("127.0.0.1", port, {}) as again:
        assert again.url == server.url


def test_a_port_in_use_is_refused_before_anything_else_starts():
    with HealthServer("127.0.0.1", 0, {}) as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(Refused, match="Address already in use") as refusal:
            HealthServer("127.0.0.1", port, {})
    assert refusal.value.code == "CONFIG_INVALID"
