"""The registry around leases: keys, generations, releases, restores, and what people are told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.actors.kernel.decider import decode_state, encode_state
from rookery.actors.kernel.machines.machine import Edition, RejectionKind, TransitionRejected
from rookery.actors.leases import lease_rules
from rookery.actors.leases.lease_rules import LeaseEntry
from rookery.actors.leases.state import Lease, auth_status, is_fresh
from rookery.schemas.codec import FactCodec, encode_facts
from rookery.schemas.errors import Refused
from rookery.schemas.facts import lease as facts
from rookery.schemas.machines.lease import (
    AuthBindingRef,
    AuthLeasePhase,
    AuthLeaseSnapshot,
    LeaseKey,
)
from rookery.schemas.scalars import U64_MAX
from tests.machines.oracle_comparison import variables
from tests.selection import examples

CODEC: FactCodec[Any] = FactCodec(facts.LEASE_FACTS)
KEY = LeaseKey("dev", "github", "work")
SEED, HEAD = Edition
VALID, EXPIRING, REFRESHING, REAUTH_REQUIRED, RELEASED, EXPIRED = AuthLeasePhase
FLOW = {"flow_id": "f", "provider": "p", "expires_at_millis": 10, "max_outstanding_flows": 3}
NEW = LeaseEntry()


def folded(entry: LeaseEntry, fact: Any, at_ms: int = 5) -> LeaseEntry:
    """As the kernel does: stamped, written, read back."""
    msgspec.structs.force_setattr(fact, "at_ms", at_ms)
    (stored,) = CODEC.decode(encode_facts([fact]))
    assert stored == fact
    return lease_rules.evolve(entry, stored)


def asked(entry: LeaseEntry, on: str, at_ms: int = 5, **params: Any) -> LeaseEntry:
    return folded(entry, lease_rules.decide_input(entry, KEY, on, params), at_ms)


def refused(entry: LeaseEntry, on: str, edition: Edition = HEAD, **params: Any) -> Any:
    with pytest.raises(TransitionRejected) as rejected:
        lease_rules.decide_input(entry, KEY, on, params, edition=edition)
    return rejected.value


def acquired(expires_at: int | None = 100) -> LeaseEntry:
    return asked(NEW, "acquire_lease", expires_at_ts=expires_at)


def waiting() -> LeaseEntry:
    """There was never a credential, and a login is under way."""
    return asked(NEW, "admit_oauth_device_flow", **FLOW)


def published(entry: LeaseEntry) -> tuple[int, int | None]:
    shown = lease_rules.lease_snapshot(entry)
    return shown.generation, shown.credential_published_at_millis


def effects(entry: LeaseEntry, fact: Any) -> list[tuple[str, dict[str, Any]]]:
    told = lease_rules.effects(folded(entry, fact), fact)
    return [(type(effect).__name__, variables(effect)) for effect in told]


# --- keys -----------------------------------------------------------------------------------------


def test_a_key_reads_realm_binding_and_profile() -> None:
    assert str(KEY) == "dev:github:work"
    assert str(LeaseKey("dev", "github")) == "dev:github"
    for key in (KEY, LeaseKey("a.b", "c_d", "-")):
        assert LeaseKey.parse(str(key)) == key


def test_a_key_is_made_from_an_auth_binding() -> None:
    assert LeaseKey.from_auth_binding(AuthBindingRef("dev", "github", "work")) == KEY
    assert LeaseKey.from_auth_binding(AuthBindingRef("dev", "github")).profile is None


@pytest.mark.parametrize("slug", ["", "a b", "a:b", "ä", "a\n", "a/b", "*"])
def test_a_slug_is_ascii_letters_digits_and_three_marks(slug: str) -> None:
    for parts in ((slug, "b", None), ("a", slug, None), ("a", "b", slug)):
        with pytest.raises(Refused, match="INVALID_ARGUMENT"):
            LeaseKey(*parts)
        with pytest.raises(Refused, match="INVALID_ARGUMENT"):
            AuthBindingRef(*parts)


@pytest.mark.parametrize("text", ["", "a", "a:", ":b", "a:b:", "a:b:c:d"])
def test_what_is_not_a_key_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="INVALID_ARGUMENT"):
        LeaseKey.parse(text)


# --- publishing -----------------------------------------------------------------------------------


def test_only_a_new_credential_raises_the_generation() -> None:
    entry = acquired()
    assert published(entry) == (1, 5)
    for on in ("mark_expiring", "begin_refresh", "refresh_failed_transient", "begin_refresh"):
        entry = asked(entry, on, at_ms=6)
        assert published(entry) == (1, 5)
    entry = asked(entry, "complete_refresh", at_ms=7, new_expires_at=200, now_ts=50)
    assert published(entry) == (2, 7)
    again = asked(entry, "acquire_lease", at_ms=8, expires_at_ts=200)
    assert published(again) == (3, 8)


def test_the_largest_number_means_no_expiry() -> None:
    entry = acquired(U64_MAX)
    assert entry == acquired(None)
    refreshing = asked(entry, "begin_refresh")
    done = asked(refreshing, "complete_refresh", new_expires_at=U64_MAX, now_ts=1)
    assert lease_rules.lease_snapshot(done).expires_at is None


# --- keys without registration --------------------------------------------------------------------


@pytest.mark.parametrize("edition", Edition)
@pytest.mark.parametrize(
    ("on", "params"),
    [
        ("mark_expiring", {}),
        ("begin_refresh", {}),
        ("complete_refresh", {"new_expires_at": 9, "now_ts": 1}),
        ("refresh_failed_transient", {}),
        ("refresh_failed_permanent", {}),
        ("mark_reauth_required", {}),
    ],
)
def test_a_key_without_a_credential_is_not_registered(
    on: str, params: dict[str, Any], edition: Edition
) -> None:
    released = folded(acquired(), lease_rules.release_lease(acquired()))
    for entry in (NEW, waiting(), released):
        rejected = refused(entry, on, edition, **params)
        assert rejected.kind is RejectionKind.NO_MATCHING_TRANSITION
        assert str(rejected) == (
            f"DSL transition rejected in AuthLeaseHandle::{on}: "
            "no auth lease registered for lease_key `dev:github:work`"
        )


def test_the_seed_wraps_every_refusal_as_no_matching_transition_and_head_does_not() -> None:
    entry = asked(acquired(), "begin_refresh")
    by_head, by_seed = (refused(entry, "begin_refresh", edition) for edition in (HEAD, SEED))
    assert (by_head.kind, by_seed.kind) == ("GuardRejected", "NoMatchingTransition")
    assert by_head.reason == by_seed.reason
    assert by_seed.reason == "guard rejected transition from phase Refreshing for begin_refresh"


# --- logins under way -----------------------------------------------------------------------------


def test_the_first_login_of_an_unknown_key_opens_a_lease_without_a_credential() -> None:
    assert lease_rules.lease_snapshot(waiting()) == AuthLeaseSnapshot(phase=REAUTH_REQUIRED)
    assert waiting().lease is not None


def test_an_unknown_login_is_refused_on_an_unknown_key() -> None:
    rejected = refused(NEW, "expire_oauth_device_flow", flow_id="f")
    assert rejected.reason.startswith("no auth lease registered")


@pytest.mark.parametrize("edition", Edition)
def test_the_limit_of_logins_counts_all_keys_before_this_one(edition: Edition) -> None:
    with pytest.raises(TransitionRejected, match="3 logins are active, the limit is 3") as no:
        lease_rules.decide_input(
            NEW, KEY, "admit_oauth_device_flow", FLOW, outstanding_flows=3, edition=edition
        )
    expected = {SEED: "NoMatchingTransition", HEAD: "GuardRejected"}
    assert no.value.kind == expected[edition]
    lease_rules.decide_input(NEW, KEY, "admit_oauth_device_flow", FLOW, outstanding_flows=2)


# --- releasing ------------------------------------------------------------------------------------


def test_a_release_forgets_everything_but_the_generation() -> None:
    entry = acquired()
    after = folded(entry, lease_rules.release_lease(entry))
    assert lease_rules.lease_snapshot(after) == AuthLeaseSnapshot(generation=1)
    again = asked(after, "acquire_lease", at_ms=9, expires_at_ts=100)
    assert lease_rules.lease_snapshot(again).generation == 2


def test_releasing_an_unknown_key_is_accepted_and_emitted() -> None:
    with pytest.raises(Refused, match="UNKNOWN_FIELD"):
        lease_rules.decide_input(NEW, KEY, "release", {"flow_ids": ("f",)})
    fact = lease_rules.decide_input(NEW, KEY, "release", {})
    assert folded(NEW, fact) == NEW
    assert effects(NEW, fact) == [("EmitLifecycleEvent", {"new_state": "Released"})]


def test_a_release_emits_exactly_the_ended_logins() -> None:
    entry = asked(
        waiting(), "admit_oauth_browser_flow", **{**FLOW, "flow_id": "a"}, redirect_uri="u"
    )
    fact = lease_rules.release_lease(entry)
    assert effects(entry, fact) == [
        ("EmitLifecycleEvent", {"new_state": "Released"}),
        ("LoginFlowsReleased", {"flow_ids": ("a", "f")}),
    ]


def test_a_release_whose_notification_fails_is_undone() -> None:
    entry = asked(acquired(), "admit_oauth_device_flow", **FLOW)
    released = folded(entry, lease_rules.release_lease(entry))
    undone = lease_rules.undo_release(released)
    assert undone is not None
    assert folded(released, undone) == entry
    assert lease_rules.effects(entry, undone) == ()


def test_an_undone_release_never_replaces_a_newer_credential() -> None:
    entry = acquired()
    released = folded(entry, lease_rules.release_lease(entry))
    undone = lease_rules.undo_release(released)
    newer = asked(released, "acquire_lease", expires_at_ts=300)
    assert lease_rules.undo_release(newer) is None
    assert folded(newer, undone) == newer
    assert lease_rules.undo_release(entry) is None
    twice = folded(released, lease_rules.release_lease(released))
    assert lease_rules.undo_release(twice) is None


def test_giving_the_credential_back_keeps_the_logins() -> None:
    entry = asked(acquired(), "admit_oauth_device_flow", **FLOW)
    after = folded(entry, lease_rules.release_credential_lifecycle(entry))
    assert lease_rules.lease_snapshot(after) == AuthLeaseSnapshot(
        phase=REAUTH_REQUIRED, generation=1
    )
    assert after.lease is not None
    assert set(after.lease.device_flows) == {"f"}
    assert folded(acquired(), lease_rules.release_credential_lifecycle(acquired())).lease is None
    assert type(lease_rules.release_credential_lifecycle(NEW)).__name__ == "Released"


# --- snapshots put back ---------------------------------------------------------------------------


def restored(entry: LeaseEntry, expires_at: int | None = 100, **said: Any) -> LeaseEntry:
    """A restore as older versions recorded it."""
    snapshot = AuthLeaseSnapshot(**{"credential_present": True, **said})
    return folded(entry, facts.Restored(snapshot=snapshot, expires_at=expires_at))


@pytest.mark.parametrize("phase", [VALID, EXPIRING, REFRESHING, REAUTH_REQUIRED, EXPIRED])
def test_a_restore_of_an_older_version_still_sets_the_state_of_its_snapshot(
    phase: AuthLeasePhase,
) -> None:
    for entry in (NEW, acquired(), waiting()):
        after = restored(entry, phase=phase, generation=7, credential_published_at_millis=3)
        assert lease_rules.lease_snapshot(after) == AuthLeaseSnapshot(
            phase=phase,
            expires_at=100,
            credential_present=True,
            generation=7,
            credential_published_at_millis=3,
        )
        before = entry.lease or Lease()
        assert after.lease is not None
        assert after.lease.device_flows == before.device_flows
    assert restored(acquired(), phase=None, generation=9) == LeaseEntry(generation=9)


@pytest.mark.parametrize("phase", [VALID, EXPIRING, REFRESHING, REAUTH_REQUIRED, EXPIRED])
def test_a_restore_puts_the_inputs_that_lead_to_the_snapshot_and_publishes_again(
    phase: AuthLeasePhase,
) -> None:
    snapshot = AuthLeaseSnapshot(phase=phase, credential_present=True, generation=7)
    entry = acquired()
    entry = msgspec.structs.replace(entry, sealed_as=1)
    for fact in lease_rules.restore_snapshot(entry, KEY, snapshot, 100):
        entry = folded(entry, fact)
    shown = lease_rules.lease_snapshot(entry)
    assert (shown.phase, shown.expires_at, shown.generation) == (phase, 100, 2)
    assert entry.sealed_as == 1, "the sealed credential is that of before"


def test_a_restore_of_an_empty_snapshot_changes_nothing() -> None:
    for phase, present, expires_at in (
        (None, True, 100),
        (RELEASED, True, 100),
        (VALID, False, 100),
        (VALID, True, None),
    ):
        snapshot = AuthLeaseSnapshot(phase=phase, credential_present=present)
        for entry in (NEW, acquired(), waiting()):
            assert lease_rules.restore_snapshot(entry, KEY, snapshot, expires_at) == []


# --- laws -----------------------------------------------------------------------------------------

STEPS: dict[str, dict[str, Any]] = {
    "acquire_lease": {"expires_at_ts": 100},
    "begin_refresh": {},
    "complete_refresh": {"new_expires_at": 200, "now_ts": 1},
    "mark_reauth_required": {},
    "admit_oauth_device_flow": FLOW,
    "expire_oauth_device_flow": {"flow_id": "f"},
    "release": {},
}


@examples(200)
@given(st.lists(st.sampled_from([*STEPS, "give back", "undo", "forget"]), max_size=20))
def test_any_history_of_a_key_keeps_its_promises(steps: list[str]) -> None:
    entry, told = NEW, []
    for number, step in enumerate(steps):
        fact: Any = None
        match step:
            case "give back":
                fact = lease_rules.release_credential_lifecycle(entry)
            case "undo":
                fact = lease_rules.undo_release(entry)
            case "forget":
                fact = facts.Restored(snapshot=AuthLeaseSnapshot(generation=1))
            case on:
                try:
                    fact = lease_rules.decide_input(entry, KEY, on, STEPS[on])
                except TransitionRejected:
                    continue
        if fact is None:
            continue
        after = folded(entry, fact, at_ms=number)
        published = type(fact).__name__ in ("Acquired", "RefreshCompleted")
        assert after.generation - entry.generation == published or step == "forget"
        shown = lease_rules.lease_snapshot(after)
        assert shown.credential_present or shown.credential_published_at_millis is None
        lease_rules.effects(after, fact)
        told.append(fact)
        entry = after
    for cut in range(len(told) + 1):
        early = NEW
        for fact in told[:cut]:
            early = lease_rules.evolve(early, fact)
        late = decode_state(encode_state(early), LeaseEntry)
        for fact in told[cut:]:
            late = lease_rules.evolve(late, fact)
        assert late == entry


# --- what people are told -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "remaining_secs", "status"),
    [
        (VALID, 60, "valid"),
        (VALID, 59, "expiring"),
        (VALID, 1, "expiring"),
        (VALID, 0, "expired"),
        (VALID, -5, "expired"),
        (VALID, None, "valid"),
        (EXPIRING, 500, "expiring"),
        (EXPIRING, None, "expiring"),
        (REFRESHING, 1, "expiring"),
        (REFRESHING, 0, "expired"),
        (EXPIRED, 500, "expired"),
        (REAUTH_REQUIRED, 500, "reauth_required"),
        (RELEASED, 500, "unknown"),
        (None, None, "unknown"),
    ],
)
def test_the_status_of_a_lease(
    phase: AuthLeasePhase | None, remaining_secs: int | None, status: str
) -> None:
    expires_at = None if remaining_secs is None else 1_000 + remaining_secs
    snapshot = AuthLeaseSnapshot(phase=phase, expires_at=expires_at, credential_present=True)
    assert auth_status(snapshot, 1_000) == status
    gone = msgspec.structs.replace(snapshot, credential_present=False)
    assert auth_status(gone, 1_000) == "unknown"


def test_a_fresh_credential_outlives_the_window() -> None:
    assert is_fresh(None, 1_000)
    assert is_fresh(1_061, 1_000)
    assert not is_fresh(1_060, 1_000)
    assert not is_fresh(900, 1_000)
