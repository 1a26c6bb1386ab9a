"""The work of a lease's owner: when it asks a provider, what it records, and for whom."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from rookery.actors.kernel.decider import decode_state, encode_state
from rookery.actors.kernel.machines import TransitionRejected
from rookery.actors.leases.decider import LeasesDecider, LeaseState
from rookery.actors.leases.effects import (
    ArmLeaseTimer,
    DropCredentials,
    DropLogins,
    EndWaits,
    MoveWaits,
    RefreshCredential,
)
from rookery.actors.leases.refresh_rules import (
    RETRY_ASKED_MS_MAX,
    EndedWaits,
    IntendRefresh,
    LeaseStatus,
    RefreshEnded,
    due_ms,
    is_usable,
    next_sealed_as,
    wait_code,
)
from rookery.schemas.commands import HandleInput, LeaseDue, LeaseRejected, LeaseWait
from rookery.schemas.envelope import Command, fill_envelope
from rookery.schemas.machines.lease import AuthLeasePhase

KEY, NOW_MS, HOUR_S = "default:bank", 1_000_000_000, 3_600
FRESH_UNTIL = NOW_MS // 1_000 + HOUR_S


class Lease:
    """A lease and its owner's decider; what a decision leaves is folded at once."""

    def __init__(self) -> None:
        self.decider, self.state, self.now_ms = LeasesDecider("node.1"), LeaseState(), NOW_MS
        self.kinds: list[str] = []
        self.effects: list[Any] = []
        self.last: Any = None

    @property
    def entry(self) -> Any:
        return self.state.entry

    def put(self, body: Any, decider: LeasesDecider | None = None) -> Any:
        """The reply to a command."""
        decider = decider or self.decider
        verb = "leases" if isinstance(body, HandleInput) else "test"
        command = Command(verb=verb, key=KEY, id="c", body=body)
        left = list(decider.decide(self.state, command, now_ms=self.now_ms))
        self.effects = []
        for number, fact in enumerate(left):
            fill_envelope(
                fact,
                id=f"f{number}",
                at_ms=self.now_ms,
                session=KEY,
                cause=(),
                cause_digest="",
                source="",
                traceparent="",
            )
            self.last = fact
            self.state = decider.evolve(self.state, fact)
        self.state = decode_state(encode_state(self.state), LeaseState)
        for fact in left:
            self.effects += decider.effects(self.state, fact)
        self.kinds = [fact.__struct_config__.tag[6:-3] for fact in left]
        return decider.reply(self.state, command, left)

    def input(self, on: str, **params: Any) -> Any:
        return self.put(HandleInput(input=on, params=params))

    def wait(self, operation_id: str = "o1", **more: Any) -> None:
        self.put(LeaseWait(session="s", operation_id=operation_id, **more))

    def intend(self, *, repeatable: bool = False) -> bool:
        found = self.put(IntendRefresh(credential=self.entry.generation, repeatable=repeatable))
        assert isinstance(found, LeaseStatus)
        return found.may_ask

    def due(self) -> None:
        """The timer of the first credential fires, when it is due."""
        if not self.entry.retry_at_ms:
            self.now_ms = max(self.now_ms, due_ms(self.entry, KEY))
        self.put(LeaseDue(credential=1))

    def end(self, **ended: Any) -> None:
        self.put(RefreshEnded(credential=self.entry.generation, **ended))

    def publish(self, expires_at: int | None = FRESH_UNTIL) -> None:
        self.end(sealed_as=next_sealed_as(self.entry), expires_at=expires_at)

    def effect(self, kind: type) -> Any:
        (found,) = [one for one in self.effects if isinstance(one, kind)]
        return found


@pytest.fixture
def lease() -> Lease:
    """One with a fresh credential."""
    lease = Lease()
    lease.wait()
    assert lease.intend()
    lease.publish()
    lease.put(EndedWaits(("o1",)))
    return lease


def test_the_first_call_that_waits_makes_the_owner_ask_for_a_credential() -> None:
    lease = Lease()
    lease.wait()
    assert lease.kinds == ["wait_begun", "acquisition_begun"]
    asked = lease.effect(RefreshCredential)
    assert (asked.credential, asked.sealed_as, asked.next_sealed_as) == (0, 0, 1)
    lease.wait("o2")
    assert lease.kinds == ["wait_begun"], "a second call begins no second attempt"
    assert lease.intend()
    assert lease.kinds == ["refresh_intended"]
    lease.publish()
    assert lease.kinds == ["acquired"]
    assert set(lease.effect(EndWaits).calls) == {("o1", "s"), ("o2", "s")}
    lease.put(EndedWaits(("o1", "o2")))
    assert not lease.entry.waiting
    lease.put(EndedWaits(("o1", "o2")))
    assert lease.kinds == []


def test_a_call_whose_node_thought_the_credential_stale_goes_on_at_once(lease: Lease) -> None:
    """As a node does whose clock is ten minutes ahead."""
    lease.wait("o2")
    assert (lease.kinds, lease.last.is_fresh) == (["wait_begun"], True)
    assert lease.effect(EndWaits).calls == (("o2", "s"),)


def test_the_timer_of_the_window_begins_one_refresh(lease: Lease) -> None:
    lease.due()
    assert lease.kinds == ["expiring_marked", "refresh_begun"]
    lease.due()
    assert lease.kinds == [], "it is in progress"
    assert lease.intend()
    lease.publish()
    assert (lease.kinds, lease.entry.generation, lease.entry.sealed_as) == (
        ["refresh_completed"],
        2,
        2,
    )
    lease.due()
    assert lease.kinds == [], "the timer was that of an older credential"


@pytest.mark.parametrize("repeatable", [True, False])
def test_after_the_death_of_an_owner_that_asked_only_what_does_no_harm_is_done_again(
    lease: Lease, repeatable: bool
) -> None:
    lease.due()
    assert lease.intend(repeatable=repeatable)
    lease.decider = LeasesDecider("node.2")
    assert lease.decider.pending_effects(lease.state, KEY), "the next owner finds the refresh"
    assert lease.intend(repeatable=repeatable) is repeatable
    if not repeatable:
        assert lease.kinds == ["refresh_failed_permanent"]
        assert "may be lost" in lease.entry.reason
        assert wait_code(lease.entry, lease.now_ms) == "LEASE_REAUTH_REQUIRED"


def test_an_owner_that_died_before_it_asked_leaves_the_refresh_to_the_next(lease: Lease) -> None:
    lease.due()
    lease.decider = LeasesDecider("node.2")
    assert lease.intend()


def test_what_an_owner_reports_of_an_older_attempt_changes_nothing(lease: Lease) -> None:
    lease.due()
    for late in (0, 2):
        lease.put(RefreshEnded(credential=late, sealed_as=7, expires_at=None))
        assert lease.kinds == []


def test_a_failure_is_tried_again_later_and_later() -> None:
    lease = Lease()
    lease.wait()
    lease.intend()
    lease.publish(NOW_MS // 1_000 + 60)
    pauses = []
    for _ in range(8):
        lease.due()
        lease.intend()
        lease.end(reason="status 500")
        pauses.append(lease.effect(ArmLeaseTimer).due_ms - lease.now_ms)
        lease.now_ms = lease.entry.retry_at_ms
    assert pauses == sorted(pauses)
    assert 1_000 <= pauses[0] <= 1_500
    assert 60_000 <= pauses[-1] <= 90_000
    assert wait_code(lease.entry, lease.now_ms) == "WAITING_FOR_LEASE"
    lease.due()
    lease.intend()
    lease.end(reason="status 429", retry_after_ms=10**12)
    assert lease.entry.retry_at_ms == lease.now_ms + RETRY_ASKED_MS_MAX
    lease.wait("o9")
    assert lease.kinds == ["wait_begun"], "a call does not make the owner ask before"


def test_a_login_is_required_after_a_permanent_failure_until_there_is_a_credential(
    lease: Lease,
) -> None:
    lease.due()
    lease.wait("o2")
    lease.intend()
    lease.end(reason="invalid_grant", permanent=True)
    assert lease.effect(MoveWaits).calls == (("o2", "s"),)
    lease.wait("o3")
    assert lease.effect(MoveWaits).calls == (("o3", "s"),)
    lease.due()
    assert lease.kinds == []
    lease.input("request_credential")
    assert lease.kinds == ["acquisition_begun"]
    lease.intend()
    lease.end(reason="log in", permanent=True)
    assert (lease.kinds, lease.last.retry_at_ms) == (["acquisition_failed"], 0)
    lease.input("request_credential")
    lease.intend()
    lease.publish()
    assert lease.entry.lease.phase is AuthLeasePhase.VALID
    assert {name for name, _ in lease.effect(EndWaits).calls} == {"o2", "o3"}


def test_a_refresh_token_that_may_be_used_up_is_used_again_only_if_an_operator_says_so(
    lease: Lease,
) -> None:
    lease.due()
    lease.intend()
    lease.decider = LeasesDecider("node.2")
    assert not lease.intend()
    assert lease.last.may_be_lost is True
    with pytest.raises(TransitionRejected, match="may be used up") as refused:
        lease.input("request_credential")
    assert "--again" in refused.value.hint
    never = 2**64 - 1
    snapshot = {"phase": "Valid", "credential_present": True, "generation": 1}
    lease.input("restore_auth_lifecycle_snapshot", snapshot=snapshot, expires_at=never)
    lease.put(LeaseRejected(credential=2))
    assert not lease.intend(), "a restored credential has the same refresh token"
    assert lease.kinds == ["refresh_failed_permanent"]
    lease.input("request_credential", again=True)
    assert (lease.kinds, lease.last.again) == (["acquisition_begun"], True)
    assert lease.intend()
    lease.end(reason="status 500")
    lease.put(LeaseDue(credential=2))
    assert not lease.intend(), "the word of the operator counts for one use"
    lease.input("request_credential", again=True)
    assert lease.intend()
    lease.publish()
    assert not lease.entry.may_be_lost
    lease.input("request_credential")
    assert lease.kinds == ["expiring_marked", "refresh_begun"]
    assert lease.intend()


def test_a_refresh_that_can_be_repeated_needs_no_word_of_an_operator(lease: Lease) -> None:
    lease.due()
    lease.intend()
    lease.end(reason="invalid_grant", permanent=True)
    assert not lease.entry.may_be_lost, "the server has refused it, and says so"
    lease.input("request_credential")
    lease.intend()
    lease.end(reason="no answer", permanent=True, may_be_lost=True)
    lease.input("request_credential", again=True)
    assert lease.intend(repeatable=True)


def test_a_withdrawn_call_waits_no_more(lease: Lease) -> None:
    lease.due()
    lease.wait("o2")
    lease.wait("o2", withdrawn=True)
    assert (lease.kinds, dict(lease.entry.waiting)) == (["waits_ended"], {})
    lease.wait("o2", withdrawn=True)
    assert lease.kinds == []


# --- refused credentials --------------------------------------------------------------------------


def test_a_refused_credential_is_refreshed_once_and_then_a_login_is_required(lease: Lease) -> None:
    lease.put(LeaseRejected(credential=1))
    assert lease.kinds == ["credential_rejected", "refresh_begun"]
    assert not is_usable(lease.entry, lease.now_ms), "calls wait, although its time is not over"
    lease.put(LeaseRejected(credential=1))
    assert lease.kinds == [], "many calls report it"
    lease.intend()
    lease.publish()
    assert is_usable(lease.entry, lease.now_ms)
    lease.put(LeaseRejected(credential=1))
    assert lease.kinds == [], "a late report of the older one"
    lease.put(LeaseRejected(credential=2))
    assert lease.kinds == ["credential_rejected", "reauth_required"]


def test_a_credential_refused_long_after_that_is_refreshed(lease: Lease) -> None:
    lease.put(LeaseRejected(credential=1))
    lease.intend()
    lease.publish()
    lease.now_ms += 100_000
    lease.put(LeaseRejected(credential=2))
    assert lease.kinds == ["credential_rejected", "refresh_begun"]


def test_a_credential_refused_before_it_was_published_by_another_clock_is_refreshed(
    lease: Lease,
) -> None:
    """The clock of the owner before was ahead, so that its credential seemed fresh for too long."""
    lease.put(LeaseRejected(credential=1))
    lease.intend()
    lease.publish()
    lease.now_ms -= 600_000
    lease.put(LeaseRejected(credential=2))
    assert lease.kinds == ["credential_rejected", "refresh_begun"]


# --- times ----------------------------------------------------------------------------------------


def test_a_timer_that_fires_when_the_credential_is_new_begins_no_refresh(lease: Lease) -> None:
    """The server's clock is far ahead of this node's: the next timer would fire at once, too."""
    lease.put(LeaseDue(credential=1))
    assert lease.kinds == []
    lease.now_ms += HOUR_S * 1_000 // 4
    lease.put(LeaseDue(credential=1))
    assert lease.kinds == ["expiring_marked", "refresh_begun"]


def published(life_s: int | None, key: str = KEY) -> tuple[Any, int]:
    lease = Lease()
    lease.wait()
    lease.intend()
    lease.publish(None if life_s is None else NOW_MS // 1_000 + life_s)
    return lease.entry, due_ms(lease.entry, key)


def test_a_credential_is_refreshed_within_the_window_of_its_own_length() -> None:
    for life_s, earliest_s, latest_s in ((HOUR_S, HOUR_S - 120, HOUR_S - 60), (20, 5, 10)):
        entry, at_ms = published(life_s)
        assert earliest_s * 1_000 <= at_ms - NOW_MS <= latest_s * 1_000
        assert is_usable(entry, NOW_MS + earliest_s * 1_000 - 1)
        assert not is_usable(entry, NOW_MS + latest_s * 1_000)


def test_a_credential_without_an_expiry_needs_no_timer() -> None:
    entry, at_ms = published(None)
    assert at_ms == 0
    assert is_usable(entry, NOW_MS * 10)


def test_a_thousand_leases_that_expire_together_are_refreshed_over_a_minute() -> None:
    times = [published(HOUR_S, f"default:bank:p{number}")[1] for number in range(1_000)]
    seconds = Counter(at_ms // 1_000 for at_ms in times)
    assert max(times) - min(times) <= 60_000
    assert max(seconds.values()) <= 60


def test_a_sealed_credential_that_has_expired_is_recorded_and_refreshed() -> None:
    """Its owner died after it had sealed it, and no node came for a while."""
    lease = Lease()
    lease.wait()
    lease.publish(NOW_MS // 1_000 - 5)
    assert lease.kinds == ["acquired"]
    assert not any(isinstance(one, EndWaits) for one in lease.effects)
    assert lease.effect(ArmLeaseTimer).due_ms <= lease.now_ms
    lease.due()
    lease.intend()
    lease.publish(NOW_MS // 1_000 - 1)
    assert (lease.kinds, lease.entry.sealed_as) == (["acquired"], 2)


# --- what clients may put -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on", "params"),
    [
        ("acquire_lease", {"expires_at_ts": 5}),
        ("begin_refresh", {}),
        ("mark_reauth_required", {}),
        ("complete_refresh", {"new_expires_at": 5, "now_ts": 1}),
        ("refresh_failed", {"permanent": True}),
        ("refresh_failed_transient", {}),
        ("observe_credential_freshness", {"now_ts": 1, "refresh_window_secs": 1}),
        ("undo_release", {}),
        ("consume_oauth_device_flow", {"flow_id": "f", "provider": "p", "now_millis": 1}),
    ],
)
def test_only_the_owner_publishes_and_ends_what_it_does(
    lease: Lease, on: str, params: dict[str, Any]
) -> None:
    lease.due()
    with pytest.raises(TransitionRejected) as rejected:
        lease.input(on, **params)
    assert rejected.value.code == "GUARD_REJECTED"
    assert rejected.value.hint.startswith("rookery leases ")


def test_a_restore_publishes_the_sealed_credential_again(lease: Lease) -> None:
    snapshot = {"phase": "Valid", "credential_present": True, "generation": 9}
    lease.put(LeaseRejected(credential=1))
    lease.intend()
    lease.end(reason="invalid_grant", permanent=True)
    lease.input("restore_auth_lifecycle_snapshot", snapshot=snapshot, expires_at=FRESH_UNTIL)
    assert (lease.kinds, lease.entry.generation, lease.entry.sealed_as) == (["acquired"], 2, 1)
    assert is_usable(lease.entry, lease.now_ms)


def test_nothing_is_restored_where_no_credential_is_sealed(lease: Lease) -> None:
    lease.input("release_lease")
    with pytest.raises(TransitionRejected) as rejected:
        lease.input(
            "restore_auth_lifecycle_snapshot",
            snapshot={"phase": "Valid", "credential_present": True},
            expires_at=5,
        )
    assert rejected.value.hint == f"rookery leases login {KEY}"


def test_a_release_deletes_what_is_sealed(lease: Lease) -> None:
    lease.due()
    lease.intend()
    lease.publish()
    lease.wait("o2")
    lease.put(EndedWaits(("o2",)))
    lease.input("release_lease")
    assert lease.effect(DropCredentials).generations == (1, 2)
    lease.wait("o3")
    assert lease.effect(MoveWaits).calls == (("o3", "s"),), "only a login helps"


def test_a_release_while_logins_are_under_way_clears_the_credential_alone(lease: Lease) -> None:
    open_to_all = LeasesDecider()
    flow = {"flow_id": "f", "provider": "p", "expires_at_millis": 9, "max_outstanding_flows": 5}
    lease.put(HandleInput(input="admit_oauth_device_flow", params=flow), open_to_all)
    lease.input("release_credential_lifecycle")
    assert lease.kinds == ["credential_cleared"]
    assert set(lease.entry.lease.device_flows) == {"f"}
    assert lease.effect(DropCredentials).generations == (1,)
    lease.input("release_lease")
    assert lease.effect(DropLogins).flow_ids == ("f",)
