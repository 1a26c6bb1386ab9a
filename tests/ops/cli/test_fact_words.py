"""Facts of leases as `rookery watch` and the timeline of a run show them: in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import pytest

from rookery.bus.ports import Filter, StoredMessage
from rookery.ops.cli.rendering.fact_lines import fact_lines
from rookery.ops.cli.rendering.fact_words import Names, RunFact, fact_words
from rookery.schemas.codec import encode_json
from rookery.schemas.envelope import EntityId, Fact
from rookery.schemas.facts import lease as facts

LEASE: Final = "default:bank"
BY_INPUTS_ONLY: Final = {
    facts.FreshnessObserved,
    facts.BrowserFlowVerified,
    facts.BrowserFlowConsumed,
    facts.DeviceFlowVerified,
    facts.DevicePollBegun,
    facts.DevicePollFinished,
    facts.DeviceFlowConsumed,
    facts.Restored,
}
"""Facts that no node leaves on its own."""
NODE_FACTS: Final = sorted(
    set(facts.LeaseFact.__args__) - BY_INPUTS_ONLY, key=lambda kind: kind.__name__
)


def line_of(*shown: Fact | Mapping[str, Any]) -> str:
    body = encode_json(list(shown))
    (line,) = fact_lines(
        StoredMessage(7, EntityId("lease", LEASE), "m", "", body, 0), Filter(), json=False
    )
    return line


def made(kind: type[Fact], **fields: Any) -> Fact:
    values: dict[Any, Any] = {int: 1, str: "x", tuple[str, ...]: ("x",)}
    required = {
        field.name: values.get(field.type, 1)
        for field in msgspec.structs.fields(kind)
        if field.required
    }
    return kind(**{"session": LEASE, **required, **fields})


@pytest.mark.parametrize("kind", NODE_FACTS, ids=lambda kind: kind.__name__)
def test_each_fact_that_a_node_leaves_about_a_lease_is_a_sentence(kind: type[Fact]):
    line = line_of(made(kind))
    assert LEASE in line
    words = line.rpartition("  ")[2]
    assert " " in words or words == "released"
    assert "=" not in words


def test_a_fact_after_which_a_person_has_to_act_names_the_command():
    line = line_of(made(facts.RefreshFailedPermanent, reason="invalid_grant"))
    assert line.endswith(f"needs a login: rookery leases login {LEASE} (invalid_grant)")
    failed = made(facts.AcquisitionFailed, reason="status 500", retry_at_ms=1_000)
    assert "got no credential: status 500; next attempt at 1970-01-01" in line_of(failed)


def test_a_second_use_of_a_refresh_token_is_shown():
    for kind in (facts.RefreshBegun, facts.AcquisitionBegun):
        assert "may be used up" in line_of(made(kind, again=True))
        assert "may be used up" not in line_of(made(kind))


def test_a_reason_cannot_break_the_line_or_command_the_terminal():
    line = line_of(made(facts.ReauthRequired, reason="a\n  b\x1b[2J"))
    assert line.endswith("(a b\ufffd[2J)")


@pytest.mark.parametrize(
    "fields", [{}, {"operation_ids": 3}, {"expires_at_ts": "soon"}, {"expires_at_ts": 2**80}]
)
@pytest.mark.parametrize("kind", ["lease.acquired.v1", "lease.waits_ended.v1"])
def test_a_foreign_fact_with_the_name_of_a_leases_fact_has_a_line(
    kind: str, fields: dict[str, Any]
):
    assert kind.rpartition(".v")[0] in line_of({"type": kind, **fields})


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("WAITING_FOR_LEASE", "op waits for a fresh credential of default:bank"),
        ("LEASE_REAUTH_REQUIRED", "op waits for a login: rookery leases login default:bank"),
    ],
)
def test_a_timeline_says_what_a_call_waits_for(code: str, words: str):
    fields = {"type": "tool.awaited.v1", "operation_id": "op", "code": code, "lease": LEASE}
    assert fact_words(RunFact("1.1", "tool.awaited", 0, fields), Names([])) == words
