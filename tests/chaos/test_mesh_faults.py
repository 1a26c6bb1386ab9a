"""Requests over a link that loses, repeats, reorders and delays messages: each has one end."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.mesh_faults import SHORT, MeshPlan, MeshRecord, Sending, carry_out, faults_of


def test_every_request_has_one_end_and_one_run_over_a_link_that_misbehaves(tmp_path: Path):
    record = asyncio.run(carry_out(tmp_path, SHORT))
    assert faults_of(record) == []


# --- the judgement finds each fault ---------------------------------------------------------------


PLAN = MeshPlan(requests=2, peers=2, cuts_s=(1.0,), nodes=("west",), kills=1, deadline_s=1)
SENT = {
    "a": Sending(0, "west-0", "east-0@east", "review"),
    "b": Sending(1, "west-0", "east-0@east", "review"),
}
COUNTS = Counter(lost=1, repeated=1, reordered=1, delayed=1, cut=1)


def fact(kind: str, corr_id: str, **more: str) -> dict[str, Any]:
    return {"type": f"peer.{kind}.v1", "corr_id": corr_id, **more}


FACTS = [
    *(fact("request_received", one) for one in "ab"),
    *(fact("response_replied", one) for one in "ab"),
    *(fact("response_ended", one) for one in "ab"),
]
HANDLED = [("k0", 0), ("k1", 1)]
CLEAN = MeshRecord(PLAN, SENT, FACTS, HANDLED, COUNTS, 1, [])
BROKEN = {**fact("response_ended", "b"), "response": {"error": {"code": "X"}}}
LATE = {"type": "peer.response_unmatched.v1", "in_reply_to": "a", "why": "duplicate"}


def test_a_clean_record_has_no_fault_and_a_repeated_line_of_one_call_is_none():
    assert faults_of(CLEAN) == []
    assert faults_of(CLEAN._replace(handled=[("k0", 0), ("k0", 0), ("k1", 1)])) == []


@pytest.mark.parametrize(
    ("record", "fault"),
    [
        (CLEAN._replace(facts=FACTS[:-1]), "request 1 ended []"),
        (CLEAN._replace(facts=[*FACTS, FACTS[-1]]), "request 1 ended ['response_ended', "),
        (CLEAN._replace(facts=[*FACTS, fact("request_timed_out", "a")]), "request 0 ended ["),
        (CLEAN._replace(facts=[*FACTS, FACTS[2]]), "request 0 was answered ["),
        (CLEAN._replace(facts=[*FACTS, fact("declined", "a")]), "request 0 was answered ["),
        (CLEAN._replace(facts=[*FACTS, LATE]), "a response to a is duplicate"),
        (CLEAN._replace(facts=[FACTS[1], FACTS[0], *FACTS[2:]]), "request 0 was admitted after 1"),
        (CLEAN._replace(facts=[*FACTS[:-1], BROKEN]), "request 1 failed: {'code': 'X'}"),
        (CLEAN._replace(handled=HANDLED[::-1]), "request 0 was handled after 1"),
        (CLEAN._replace(handled=[*HANDLED, ("k2", 1)]), "request 1 had 2 runs"),
        (CLEAN._replace(handled=HANDLED[:1]), "request 1 had no run"),
        (CLEAN._replace(sent={"a": SENT["a"]}, facts=FACTS[::2], handled=HANDLED[:1]), "1 request"),
        (CLEAN._replace(counts=COUNTS - Counter(lost=1)), "nothing was lost"),
        (CLEAN._replace(counts=COUNTS - Counter(cut=1)), "nothing was cut"),
        (CLEAN._replace(killed=0), "0 nodes were killed"),
        (CLEAN._replace(errors=["effects not derived: KeyError"]), "effects not derived"),
    ],
)
def test_each_fault_is_found(record: MeshRecord, fault: str):
    found = faults_of(record)
    assert [one for one in found if one.startswith(fault)], found
