"""AuthLeaseHandle: keys, publications, releases and who is told of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest

from rookery.actors.kernel.machines.machine import Edition, RejectionKind, TransitionRejected
from rookery.actors.leases.handle import AuthLeaseHandle
from rookery.schemas.integers import U64_MAX
from rookery.schemas.machines.lease import (
    AuthBindingRef,
    AuthLeasePhase,
    AuthLeaseSnapshot,
    AuthLeaseTransition,
    LeaseKey,
)

KEY, OTHER = LeaseKey("dev", "github"), LeaseKey("dev", "github", "work")
FLOW = {"provider": "p", "expires_at_millis": 10, "max_outstanding_flows": 2}
VALID, EXPIRING, REFRESHING, REAUTH_REQUIRED = list(AuthLeasePhase)[:4]


def leases(**settings: Any) -> AuthLeaseHandle:
    ticks = count(1)
    return AuthLeaseHandle(lambda: next(ticks), **settings)


def acquired() -> AuthLeaseHandle:
    handle = leases()
    handle.acquire_lease(KEY, 100)
    return handle


def login(handle: AuthLeaseHandle, key: LeaseKey = KEY, flow_id: str = "f") -> None:
    handle.apply(key, "admit_oauth_device_flow", flow_id=flow_id, **FLOW)


class Waiting:
    """Keeps something for logins; fails if told to."""

    def __init__(self, fails: bool = False) -> None:
        self.told: list[tuple[LeaseKey, tuple[str, ...]]] = []
        self.fails = fails
        self.meanwhile = lambda: None

    def on_login_flows_released(self, lease_key: LeaseKey, flow_ids: tuple[str, ...]) -> None:
        self.told.append((lease_key, flow_ids))
        self.meanwhile()
        if self.fails:
            raise RuntimeError("not now")


def test_only_a_published_credential_makes_a_new_generation() -> None:
    handle = leases()
    assert handle.acquire_lease(KEY, 100) == AuthLeaseTransition(1, 1)
    handle.mark_expiring(KEY)
    handle.begin_refresh(KEY)
    done = handle.complete_refresh(KEY, 200, 90)
    assert done.generation == 2
    assert handle.snapshot(KEY) == AuthLeaseSnapshot(
        phase=VALID,
        expires_at=200,
        credential_present=True,
        generation=2,
        credential_published_at_millis=done.credential_published_at_millis,
    )
    assert handle.snapshot(LeaseKey.from_auth_binding(AuthBindingRef("dev", "github"))).generation


def test_the_largest_number_never_expires() -> None:
    handle = leases()
    handle.acquire_lease(KEY, U64_MAX)
    assert handle.snapshot(KEY).expires_at is None


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("mark_expiring", ()),
        ("begin_refresh", ()),
        ("complete_refresh", (9, 1)),
        ("refresh_failed", (True,)),
        ("mark_reauth_required", ()),
    ],
)
def test_an_unknown_key_is_refused_by_name(method: str, more: tuple[Any, ...]) -> None:
    handle = leases()
    login(handle)  # One that only waits for a login has no credential either.
    for key in (KEY, OTHER):
        with pytest.raises(TransitionRejected) as rejected:
            getattr(handle, method)(key, *more)
        assert rejected.value.kind is RejectionKind.NO_MATCHING_TRANSITION
        assert rejected.value.context == f"AuthLeaseHandle::{method}"
        assert rejected.value.reason == f"no auth lease registered for lease_key `{key}`"
    assert str(OTHER) == "dev:github:work"


@pytest.mark.parametrize("edition", Edition)
def test_a_second_refresh_is_refused(edition: Edition) -> None:
    handle = leases(edition=edition)
    handle.acquire_lease(KEY, 100)
    handle.begin_refresh(KEY)
    with pytest.raises(TransitionRejected) as rejected:
        handle.begin_refresh(KEY)
    guarded = rejected.value.kind is RejectionKind.GUARD_REJECTED
    assert guarded == (edition is Edition.HEAD)
    assert "guard rejected" in rejected.value.reason


@pytest.mark.parametrize(("permanent", "phase"), [(True, REAUTH_REQUIRED), (False, EXPIRING)])
def test_a_refresh_fails_for_good_or_for_now(permanent: bool, phase: AuthLeasePhase) -> None:
    handle = acquired()
    handle.begin_refresh(KEY)
    handle.refresh_failed(KEY, permanent)
    assert handle.snapshot(KEY).phase is phase


def test_a_release_is_never_refused_and_keeps_the_generation() -> None:
    handle = acquired()
    handle.release_lease(KEY)
    handle.release_lease(KEY)
    handle.release_lease(OTHER)
    assert handle.snapshot(KEY) == AuthLeaseSnapshot(generation=1)
    assert handle.acquire_lease(KEY, 100).generation == 2


def test_logins_outlive_a_credential_that_is_given_back_for_them() -> None:
    handle = acquired()
    login(handle)
    handle.release_credential_lifecycle(KEY)
    assert handle.snapshot(KEY).phase is REAUTH_REQUIRED
    handle.apply(KEY, "expire_oauth_device_flow", flow_id="f")
    handle.release_credential_lifecycle(KEY)
    assert handle.snapshot(KEY).phase is None


def test_logins_are_counted_over_all_keys() -> None:
    handle = leases()
    login(handle)
    login(handle, OTHER)
    with pytest.raises(TransitionRejected, match="the limit is 2"):
        login(handle, LeaseKey("dev", "third"))


# --- who is told of a release ---------------------------------------------------------------------


def test_observers_get_exactly_the_released_logins() -> None:
    handle, waiting = acquired(), Waiting()
    handle.install_release_observer(waiting)
    handle.release_lease(OTHER)
    assert waiting.told == []
    login(handle, flow_id="b")
    login(handle, flow_id="a")
    handle.apply(KEY, "release")
    assert waiting.told == [(KEY, ("a", "b"))]


def test_a_release_whose_observer_fails_is_undone() -> None:
    handle, waiting = acquired(), Waiting(fails=True)
    login(handle)
    handle.install_release_observer(waiting)
    before = handle.snapshot(KEY)
    with pytest.raises(RuntimeError, match="not now"):
        handle.release_lease(KEY)
    assert handle.snapshot(KEY) == before


def test_it_did_if_a_newer_credential_has_come_meanwhile() -> None:
    handle, waiting = acquired(), Waiting(fails=True)
    login(handle)
    handle.install_release_observer(waiting)
    waiting.meanwhile = lambda: handle.acquire_lease(KEY, 500) and None
    with pytest.raises(RuntimeError):
        handle.release_lease(KEY)
    assert (handle.snapshot(KEY).generation, handle.snapshot(KEY).expires_at) == (2, 500)


# --- restoring ------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [VALID, EXPIRING, REFRESHING, REAUTH_REQUIRED])
def test_a_restored_lease_has_its_former_state(phase: AuthLeasePhase) -> None:
    snapshot = AuthLeaseSnapshot(
        phase=phase,
        expires_at=100,
        credential_present=True,
        generation=4,
        credential_published_at_millis=9,
    )
    handle = leases()
    handle.restore_auth_lifecycle_snapshot(KEY, snapshot, 100)
    assert handle.snapshot(KEY) == snapshot
    handle.restore_auth_lifecycle_snapshot(KEY, snapshot, None)
    assert handle.snapshot(KEY) == snapshot


def test_restoring_nothing_forgets_the_lease() -> None:
    handle = acquired()
    handle.restore_auth_lifecycle_snapshot(KEY, AuthLeaseSnapshot(generation=3), None)
    assert handle.snapshot(KEY) == AuthLeaseSnapshot(generation=3)
    handle.restore_auth_lifecycle_snapshot(KEY, AuthLeaseSnapshot(), None)
    assert handle.snapshot(KEY) == AuthLeaseSnapshot()


def test_publications_from_many_threads_have_a_generation_each() -> None:
    handle = leases()
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda at: handle.acquire_lease(KEY, at), range(100, 300)))
    assert sorted(one.generation for one in done) == list(range(1, 201))
