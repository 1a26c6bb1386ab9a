"""Laws of rights: an intersection only takes calls away, in whatever order it is made, and what is
revoked in a session is missing in every session whose memory is from it.

The long form: ``ROOKERY_TEST_EXAMPLES=2000 pytest tests/protection``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from rookery.actors.admission.commands import (
    change_limits,
    create,
    handle_input,
    open_from_snapshot,
)
from rookery.actors.admission.evolve import evolve
from rookery.actors.admission.state import Admission
from rookery.actors.protection.checks import CallSubject, is_ever_allowed, missing_right
from rookery.actors.protection.revocations import Revocations
from rookery.actors.turns.decider import TurnsDecider
from rookery.actors.turns.state import SessionTurns
from rookery.schemas.codec import FactCodec, encode_facts
from rookery.schemas.commands import ChangeLimits, CreateSession, HandleInput
from rookery.schemas.envelope import Command, fill_envelope
from rookery.schemas.facts.node import RightsRevoked
from rookery.schemas.facts.sandbox import SnapshotRestored
from rookery.schemas.facts.session import SESSION_FACTS, RightsNarrowed
from rookery.schemas.protection.rights import NO_RIGHTS, Rights, RightsSet, ToolRight, intersect
from rookery.schemas.run import Language, SessionMeta, SideEffect

EXAMPLES = int(os.environ.get("ROOKERY_TEST_EXAMPLES", "60"))
NAMES = ("pay", "mail", "read_file")
SURFACES = ("local", "crm")
CONDITIONS = ("", "args.amount <= 50", 'args.to == "ann"', "not (args.amount > 5)", "args.none")

tool_rights = st.builds(
    ToolRight,
    tool=st.sampled_from(("", *NAMES)),
    surface=st.sampled_from(("", *SURFACES)),
    when=st.sampled_from(CONDITIONS),
).filter(lambda right: right != ToolRight())
lists = st.lists(tool_rights, max_size=3).map(tuple)
rights = st.builds(
    Rights,
    tools=st.one_of(st.just(UNSET), lists),
    without=lists,
    side_effect=st.one_of(st.just(UNSET), st.sampled_from(SideEffect)),
    calls=st.one_of(st.just(UNSET), st.integers(0, 4)),
    session_calls=st.one_of(st.just(UNSET), st.integers(0, 4)),
    until_ms=st.one_of(st.just(UNSET), st.integers(0, 4)),
)
sets = st.lists(rights, max_size=3).map(lambda found: intersect(tuple(found)))
calls = st.builds(
    CallSubject,
    name=st.sampled_from(NAMES),
    surface=st.sampled_from(SURFACES),
    side_effect=st.sampled_from(SideEffect),
    idempotent=st.booleans(),
    session=st.just("s"),
    number=st.integers(1, 5),
    ordinal=st.integers(1, 5),
    arguments=st.one_of(
        st.none(),
        st.fixed_dictionaries(
            {}, optional={"amount": st.sampled_from([1, 50, 51, "50"]), "to": st.just("ann")}
        ),
    ),
)
times = st.integers(0, 5)


def law(**strategies: Any) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """A test with so many examples."""
    return lambda test: settings(max_examples=EXAMPLES, deadline=None)(given(**strategies)(test))


def allows(these: RightsSet, call: CallSubject, now_ms: int) -> bool:
    return not missing_right(these, call, now_ms=now_ms)


@law(a=sets, b=sets, call=calls, now_ms=times)
def test_an_intersection_allows_exactly_what_both_allow(
    a: RightsSet, b: RightsSet, call: CallSubject, now_ms: int
):
    both = allows(intersect(a, b), call, now_ms)
    assert both == (allows(a, call, now_ms) and allows(b, call, now_ms))


@law(a=sets, b=sets, c=sets)
def test_intersection_is_associative_commutative_and_idempotent(
    a: RightsSet, b: RightsSet, c: RightsSet
):
    assert intersect(intersect(a, b), c) == intersect(a, intersect(b, c)) == intersect(a, b, c)
    assert intersect(a, b) == intersect(b, a)
    assert intersect(a, a) == a == intersect(a, ())


@law(these=sets, call=calls, now_ms=times)
def test_a_tool_that_the_list_leaves_out_has_no_call_that_is_allowed(
    these: RightsSet, call: CallSubject, now_ms: int
):
    if not is_ever_allowed(these, call.name, call.surface, call.side_effect):
        assert not allows(these, call, now_ms)


# --- descendants ----------------------------------------------------------------------------------

SESSIONS = ("a", "b", "c", "d")
CODEC: FactCodec[Any] = FactCodec(SESSION_FACTS)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.sampled_from(SESSIONS), rights),
        st.tuples(st.just("narrow"), st.sampled_from(SESSIONS), rights),
        st.tuples(st.just("revoke"), st.sampled_from(SESSIONS), rights),
        st.tuples(st.just("destroy"), st.sampled_from(SESSIONS)),
        st.tuples(st.just("derive"), st.sampled_from(SESSIONS), st.sampled_from(SESSIONS)),
    ),
    max_size=14,
)


class Realm:
    """Sessions as admission decides them and as turns follow them, and what a realm without any
    lineage in its facts would have to know."""

    def __init__(self) -> None:
        self.states = {key: Admission(meta=SessionMeta(id=key)) for key in SESSIONS}
        self.turns = dict.fromkeys(SESSIONS, SessionTurns())
        self.facts: dict[str, list[Any]] = {key: [] for key in SESSIONS}
        self.decider = TurnsDecider()
        self.revocations = Revocations(bus=None)  # type: ignore[arg-type]  # Facts are added here.
        self.revocations.unavailable_reason = ""
        self.own: dict[str, set[Rights]] = {key: set() for key in SESSIONS}
        self.origins = {key: {key} for key in SESSIONS}
        self.revoked: dict[str, set[Rights]] = {key: set() for key in SESSIONS}

    def apply(self, step: tuple[Any, ...]) -> None:
        kind, key, *more = step
        getattr(self, kind)(key, *more)

    def create(self, key: str, these: Rights) -> None:
        if not self.states[key].is_open:
            self._decide(key, create, CreateSession(rights=these))
            self.own[key].add(these)

    def narrow(self, key: str, these: Rights) -> None:
        if self.states[key].is_open:
            self._decide(key, change_limits, ChangeLimits(rights=these))
            self.own[key].add(these)

    def revoke(self, key: str, these: Rights) -> None:
        self.revocations.add(RightsRevoked(node="n", session_id=key, rights=these))
        self.revoked[key].add(these)

    def destroy(self, key: str) -> None:
        if self.states[key].is_open:
            body = HandleInput(input="Destroy", params={"session_id_in": key})
            self._decide(key, handle_input, body)

    def derive(self, source: str, into: str) -> None:
        if source == into or self.states[into].is_open:
            return
        inherited = NO_RIGHTS  # As ``RunHistoryReader.rights_of`` reads them.
        for fact in self.facts[source]:
            if isinstance(fact, RightsNarrowed):
                inherited = inherited.narrowed(fact.rights, fact.descends_from)
        state = self.states[into]
        fact = SnapshotRestored(
            snapshot_id="snap_0",
            blob="0",
            language=Language.PYTHON,
            build="0",
            after_sequence=0,
            size_bytes=1,
            asked_by="q",
            generation=state.generation + (state.host.phase == "Destroyed"),
            rights=inherited.rights or UNSET,
            descends_from=inherited.narrowed((), (source,)).origins_of(into) or UNSET,
        )
        self._decide(into, open_from_snapshot, fact)
        self.own[into] |= self.own[source]
        self.origins[into] |= self.origins[source]

    def left(self, key: str) -> RightsSet:
        """What the turn of the session's next call reads."""
        of_session = self.turns[key].rights
        revoked = self.revocations.left_for(key, of_session.descends_from)
        return intersect(of_session.rights, revoked)

    def expected(self, key: str) -> RightsSet:
        reached = {one for origin in self.origins[key] for one in self.revoked[origin]}
        return intersect(tuple(self.own[key] | reached))

    def _decide(self, key: str, rule: Any, body: Any) -> None:
        command = Command(verb="v", key=key, id=f"c{len(self.facts[key])}", body=body)
        decided = rule(self.states[key], command, now_ms=1)
        for number, fact in enumerate(decided, 1):
            fill_envelope(
                fact,
                id=f"session.{key}.{len(self.facts[key]) + number}",
                at_ms=1,
                session=key,
                cause=(),
                cause_digest="",
                source="n",
                traceparent="",
            )
        for fact in CODEC.decode(encode_facts(decided)) if decided else ():
            self.states[key] = evolve(self.states[key], fact)
            self.turns[key] = self.decider.observe(self.turns[key], fact)
            self.facts[key].append(fact)


@law(history=steps)
def test_a_revocation_reaches_every_descendant(history: list[tuple[Any, ...]]):
    realm = Realm()
    for step in history:
        realm.apply(step)
        for key in SESSIONS:
            if realm.states[key].is_open:
                assert realm.left(key) == realm.expected(key), (key, history)
