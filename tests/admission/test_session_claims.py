"""session_claim against machines.json, and its registry under threads."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from rookery.actors.admission.decider import AdmissionDecider
from rookery.actors.admission.in_flight import InFlightCounter
from rookery.actors.admission.session_claim_machine import CLAIM
from rookery.actors.admission.session_claims import PROCESS_CLAIMS, ClaimRegistry, SessionClaim
from rookery.schemas.envelope import Command
from rookery.schemas.errors import Refused
from rookery.schemas.run import RunRequest
from tests.machines.oracle_comparison import Judged


def test_every_short_history_goes_the_way_of_the_model() -> None:
    judged = Judged(CLAIM)
    asked = [(on, session) for on in CLAIM.inputs for session in ("a", "b")]
    for history in itertools.product(asked, repeat=4):
        state = CLAIM.initial
        for on, session in history:
            state = judged.step(state, on, {"session_id": session})
    assert judged.hit == {row.name for row in CLAIM.transitions}


def test_a_held_identity_is_refused_with_the_seeds_text() -> None:
    registry = ClaimRegistry()
    with registry.try_acquire("s"):
        with pytest.raises(Refused) as refused:
            registry.try_acquire("s")
        assert refused.value.code == "SESSION_IDENTITY_IN_USE"
        assert refused.value.message == "session identity already claimed: s"
    assert registry.try_acquire("s").session_id == "s"


def test_closing_an_old_token_never_frees_a_newer_holder() -> None:
    registry = ClaimRegistry()
    old = registry.try_acquire("s")
    registry.release("s")
    newer = registry.try_acquire("s")
    old.close()
    with pytest.raises(Refused):
        registry.try_acquire("s")
    newer.close()
    newer.close()
    registry.try_acquire("s").close()


def test_releasing_a_free_id_is_harmless() -> None:
    ClaimRegistry().release("s")


def test_registries_do_not_see_each_other() -> None:
    with PROCESS_CLAIMS.try_acquire("test_registries"):
        ClaimRegistry().try_acquire("test_registries").close()


def test_a_claim_is_closed_when_its_context_fails() -> None:
    registry = ClaimRegistry()
    with pytest.raises(ZeroDivisionError), registry.try_acquire("s"):
        _ = 1 / 0
    registry.try_acquire("s").close()


def test_of_many_threads_one_gets_the_identity() -> None:
    registry, threads, rounds = ClaimRegistry(), 8, 200
    barrier = Barrier(threads)

    def contest() -> int:
        won = 0
        for _ in range(rounds):
            barrier.wait()
            claim: SessionClaim | None = None
            try:
                claim = registry.try_acquire("s")
                won += 1
            except Refused:
                pass
            barrier.wait()
            if claim is not None:
                claim.close()
        return won

    with ThreadPoolExecutor(threads) as pool:
        wins = [pool.submit(contest) for _ in range(threads)]
        assert sum(future.result() for future in wins) == rounds


def test_a_claim_that_is_dropped_frees_its_identity() -> None:
    registry = ClaimRegistry()
    claim = registry.try_acquire("s")
    with pytest.raises(Refused):
        registry.try_acquire("s")
    del claim
    newer = registry.try_acquire("s")
    assert newer.session_id == "s"


def test_dropping_an_old_claim_never_frees_a_newer_holder() -> None:
    registry = ClaimRegistry()
    old = registry.try_acquire("s")
    registry.release("s")
    newer = registry.try_acquire("s")
    del old
    with pytest.raises(Refused):
        registry.try_acquire("s")
    newer.close()


def test_admission_acts_as_a_session_only_while_it_has_the_identity() -> None:
    registry = ClaimRegistry()
    ours, theirs = (
        AdmissionDecider(
            queued_max=9, in_flight_max=9, realm_load=InFlightCounter(), claims=registry
        )
        for _ in range(2)
    )
    asked = Command(verb="run", key="s", id="c-1", body=RunRequest(code="1"))
    assert ours.decide(ours.initial("s"), asked, now_ms=1)
    with pytest.raises(Refused) as refused:
        theirs.decide(theirs.initial("s"), asked, now_ms=1)
    assert refused.value.code == "SESSION_IDENTITY_IN_USE"
    ours.on_state("s", None)
    assert theirs.decide(theirs.initial("s"), asked, now_ms=1)
