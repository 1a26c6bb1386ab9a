"""auth_lease with its logins, judged by machines.json in both editions, and what its notes say."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from immutables import Map
from msgspec.structs import replace

from rookery.actors.kernel.machines.machine import Edition, TransitionRejected
from rookery.actors.leases.lease_machine import LEASE
from rookery.actors.leases.state import BrowserFlow, DeviceFlow, Lease
from rookery.schemas.codec import FactCodec
from rookery.schemas.facts.lease import LEASE_FACTS
from rookery.schemas.machines.lease import AuthLeasePhase
from rookery.schemas.scalars import U64_MAX
from tests.machines.laws import History, every_ask, histories, likely_ask
from tests.machines.oracle_comparison import Judged, variables
from tests.machines.state_space import explored

CODEC: FactCodec[Any] = FactCodec(LEASE_FACTS)
SEED, HEAD = Edition
EXPIRED = AuthLeasePhase.EXPIRED
BROWSER = {"provider": "p", "redirect_uri": "u"}
POOLS: dict[str, tuple[Any, ...]] = {
    "expires_at_ts": (None, 200),
    "new_expires_at": (None, 50, 51),
    "now_ts": (50,),
    "flow_id": ("f", "g"),
    "provider": ("p", "q"),
    "redirect_uri": ("u", "v"),
    "expires_at_millis": (10,),
    "max_outstanding_flows": (0, 1, 2),
    "now_millis": (10, 11),
    "observe_credential_freshness.now_ts": (39, 40, 41, 99, 100, 101),
    "refresh_window_secs": (0, 60),
}
LIKELY = {
    **POOLS,
    "expires_at_ts": (None, 100),
    "new_expires_at": (None, 51, 100),
    "flow_id": ("f",),
    "provider": ("p",),
    "redirect_uri": ("u",),
    "max_outstanding_flows": (2,),
    "now_millis": (10,),
}
BROWSER_FLOW = BrowserFlow(provider="p", redirect_uri="u", expires_at_millis=10)
DEVICE_FLOW = DeviceFlow(provider="p", expires_at_millis=10)
ENDS = ("release", "clear_credential_lifecycle", "refresh_failed_permanent", "mark_reauth_required")


def every_lease(edition: Edition) -> list[Lease]:
    """Every phase with every combination of what rows look at or change, legal or not."""
    flows = [
        {},
        {"browser_flows": Map(f=BROWSER_FLOW), "outstanding_flows": 1},
        {"device_flows": Map(f=DEVICE_FLOW), "outstanding_flows": 1},
        {
            "browser_flows": Map(f=BROWSER_FLOW),
            "device_flows": Map(f=DEVICE_FLOW),
            "device_polls": frozenset("f"),
            "outstanding_flows": 2,
        },
    ]
    phases = [phase for phase in AuthLeasePhase if edition is HEAD or phase is not EXPIRED]
    return [
        Lease(
            phase=phase,
            expires_at=expires_at,
            last_refresh=7,
            refresh_attempt=attempt,
            credential_present=present,
            **under_way,
        )
        for phase, expires_at, (attempt, present), under_way in itertools.product(
            phases, (None, 100), ((0, False), (3, True)), flows
        )
    ]


def taken(lease: Lease, on: str, edition: Edition = HEAD, **params: Any) -> Lease:
    fact = LEASE.decide(lease, on, LEASE.candidate(on, params), edition=edition)
    return LEASE.evolve(lease, fact)


def refused(lease: Lease, on: str, edition: Edition = HEAD, **params: Any) -> str:
    with pytest.raises(TransitionRejected) as rejected:
        taken(lease, on, edition, **params)
    return rejected.value.kind


@pytest.mark.parametrize("edition", Edition)
def test_the_table_has_the_models_rows_and_parameters(edition: Edition) -> None:
    model = Judged(LEASE, edition).oracle
    ours = [row for row in LEASE.transitions if row.edition in (None, edition)]
    assert [(r.name, r.on) for r in ours] == [(r["name"], r["on"]) for r in model.rows]
    assert {row.on: LEASE.inputs[row.on].params for row in ours} == model.inputs
    assert list(LEASE.phases) == [*model.model["phases"], "Expired"]


@pytest.mark.parametrize("edition", Edition)
def test_every_input_in_every_state_does_what_the_model_says(edition: Edition) -> None:
    judged = Judged(LEASE, edition)
    leases = every_lease(edition)
    for on in LEASE.inputs:
        asked = every_ask(LEASE, on, POOLS)
        for lease in leases if len(asked) < 16 else leases[::3]:
            for params in asked:
                judged.step(lease, on, params)
    assert judged.hit == {row.name for row in LEASE.transitions if row.edition in (None, edition)}


@pytest.mark.parametrize("edition", Edition)
def test_any_history_goes_the_way_of_the_model(edition: Edition) -> None:
    rng, judged = random.Random(3), Judged(LEASE, edition)
    asked = {on: every_ask(LEASE, on, LIKELY) for on in LEASE.inputs}
    lease, steps = Lease(), 3_000
    for _ in range(steps):
        on, params = likely_ask(rng, LEASE, lease, asked, edition=edition, rarely=ENDS)
        lease = judged.step(lease, on, params)
    assert judged.accepted > 0.4 * steps
    assert judged.hit == {row.name for row in LEASE.transitions if row.edition in (None, edition)}


@given(histories(LEASE, LIKELY))
def test_folded_facts_give_the_decided_state(steps: list[Any]) -> None:
    for edition in Edition:
        History(LEASE, CODEC, edition).live(steps).check()


def test_folding_a_row_never_fails_whatever_the_state() -> None:
    for lease in every_lease(HEAD):
        before = variables(lease)
        for row in LEASE.transitions:
            for params in every_ask(LEASE, row.on, LIKELY)[:3]:
                fact = replace(LEASE.candidate(row.on, params), row=row.name)
                LEASE.effects(LEASE.evolve(lease, fact), fact)
        assert variables(lease) == before


def test_no_way_leads_to_a_lease_that_breaks_an_invariant() -> None:
    pools = {**LIKELY, "now_millis": (10,), "expires_at_millis": (10,)}
    found = explored(LEASE, pools, Lease(), lambda lease: lease.refresh_attempt < 3)
    assert len(found) > 300
    assert {lease.phase for lease in found} == set(AuthLeasePhase)
    assert max(found.values()) >= 6


# --- what a reader would not guess ----------------------------------------------------------------


def test_a_fresh_lease_is_valid_and_has_no_credential() -> None:
    assert (Lease().phase, Lease().credential_present) == ("Valid", False)


@pytest.mark.parametrize("edition", Edition)
@pytest.mark.parametrize("phase", AuthLeasePhase)
def test_a_lease_can_be_acquired_cleared_and_released_from_everywhere(
    phase: AuthLeasePhase, edition: Edition
) -> None:
    """Also from Expired by the seed's rows: a change of the edition must not be stuck."""
    lease = Lease(phase=phase)
    assert taken(lease, "acquire_lease", edition, expires_at_ts=9).phase == "Valid"
    assert taken(lease, "clear_credential_lifecycle", edition).phase == "ReauthRequired"
    assert taken(lease, "release", edition).phase == "Released"


def test_a_second_refresh_beside_the_first_is_refused() -> None:
    refreshing = taken(Lease(), "begin_refresh")
    assert refused(refreshing, "begin_refresh") == "GuardRejected"


def test_both_kinds_of_failure_count_until_there_is_a_credential() -> None:
    lease = taken(taken(Lease(), "begin_refresh"), "refresh_failed_transient")
    assert (lease.phase, lease.refresh_attempt) == ("Expiring", 1)
    lease = taken(taken(lease, "begin_refresh"), "refresh_failed_permanent")
    assert (lease.phase, lease.refresh_attempt) == ("ReauthRequired", 2)
    assert taken(lease, "acquire_lease", expires_at_ts=None).refresh_attempt == 0
    full = replace(taken(lease, "acquire_lease"), refresh_attempt=U64_MAX)
    failed = taken(taken(full, "begin_refresh"), "refresh_failed_transient")
    assert failed.refresh_attempt == U64_MAX


def test_only_a_new_credential_ends_the_need_to_log_in_again() -> None:
    lease = taken(Lease(), "mark_reauth_required")
    for on in ("mark_reauth_required", "mark_expiring", "begin_refresh"):
        refused(lease, on)
    assert taken(lease, "acquire_lease").phase == "Valid"


def test_head_takes_no_credential_that_is_already_over() -> None:
    refreshing = taken(Lease(), "begin_refresh")
    over = {"new_expires_at": 50, "now_ts": 50}
    assert taken(refreshing, "complete_refresh", SEED, **over).phase == "Valid"
    refused(refreshing, "complete_refresh", HEAD, **over)
    assert not taken(refreshing, "complete_refresh", SEED, **over).credential_present
    fresh = taken(refreshing, "complete_refresh", HEAD, new_expires_at=51, now_ts=50)
    assert fresh.credential_present


def test_the_seed_has_no_input_that_says_what_time_it_is() -> None:
    look = {"now_ts": 0, "refresh_window_secs": 60}
    assert refused(Lease(), "observe_credential_freshness", SEED, **look) == "NoMatchingTransition"
    valid = Lease(expires_at=100)
    for now_ts, phase in ((40, "Valid"), (41, "Expiring"), (99, "Expiring"), (100, "Expired")):
        seen = {"now_ts": now_ts, "refresh_window_secs": 60}
        assert taken(valid, "observe_credential_freshness", **seen).phase == phase


def test_a_login_is_used_once_in_time_and_by_the_party_that_began_it() -> None:
    terms = {"flow_id": "f", "expires_at_millis": 10, "max_outstanding_flows": 1}
    lease = taken(Lease(), "admit_oauth_browser_flow", **terms, **BROWSER)
    refused(lease, "admit_oauth_browser_flow", **terms, **BROWSER)
    refused(lease, "admit_oauth_device_flow", **{**terms, "flow_id": "g"}, provider="p")
    shown = {"flow_id": "f", "now_millis": 10, **BROWSER}
    for wrong in ({"provider": "q"}, {"redirect_uri": "v"}, {"now_millis": 11}, {"flow_id": "g"}):
        refused(lease, "verify_oauth_browser_flow", **{**shown, **wrong})
        refused(lease, "consume_oauth_browser_flow", **{**shown, **wrong})
    assert taken(lease, "verify_oauth_browser_flow", **shown) == lease
    used = taken(lease, "consume_oauth_browser_flow", **shown)
    assert used == Lease()
    refused(used, "consume_oauth_browser_flow", **shown)


def test_one_at_a_time_asks_a_provider_whether_a_device_was_confirmed() -> None:
    terms = {"flow_id": "f", "expires_at_millis": 10, "max_outstanding_flows": 1}
    lease = taken(Lease(), "admit_oauth_device_flow", **terms, provider="p")
    shown = {"flow_id": "f", "now_millis": 10, "provider": "p"}
    polling = taken(lease, "begin_oauth_device_poll", **shown)
    refused(polling, "begin_oauth_device_poll", **shown)
    assert taken(polling, "finish_oauth_device_poll", flow_id="f") == lease
    for ended in (
        taken(polling, "consume_oauth_device_flow", **shown),
        taken(polling, "expire_oauth_device_flow", flow_id="f"),
    ):
        assert ended == Lease()


def test_a_release_ends_the_logins_and_a_cleared_credential_does_not() -> None:
    lease = Lease(browser_flows=Map(f=BROWSER_FLOW), outstanding_flows=1, credential_present=True)
    assert taken(lease, "clear_credential_lifecycle").browser_flows == lease.browser_flows
    assert taken(lease, "release") == Lease(phase=AuthLeasePhase.RELEASED)
    terms = {"provider": "p", "expires_at_millis": 1, "max_outstanding_flows": 9}
    released = Lease(phase=AuthLeasePhase.RELEASED)
    refused(released, "admit_oauth_device_flow", flow_id="f", **terms)


def test_every_transition_emits_the_phase_even_if_unchanged() -> None:
    for row in LEASE.transitions:
        draft = LEASE.candidate(row.on, every_ask(LEASE, row.on, LIKELY)[0])
        fact = replace(draft, row=row.name)
        after = LEASE.evolve(Lease(), fact)
        first = LEASE.effects(after, fact)[0]
        assert variables(first) == {"new_state": after.phase}
