"""Laws of approvals that hold in every history of answers, revocations, waits and crashes.

Method: the real deciders and executors process random steps (``approval_histories``); the laws are
checked over all facts and calls. At the end all pending work is done: every answer that arrived in
time has counted, however late a node processed it, and every valid grant was used.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rookery.actors.approvals.effects import ReleaseCall
from rookery.actors.approvals.state import ApprovalSettings
from rookery.schemas.approvals.records import ApprovalLifecycleStatus
from rookery.schemas.calls import ApprovalMode, AutoApproval, AutoRule, CallArguments
from rookery.schemas.commands import RevokeGrant
from rookery.schemas.digest import digest_json
from rookery.schemas.envelope import Command
from rookery.schemas.facts import approval, tool
from tests.approvals.approval_histories import History
from tests.selection import examples
from tests.tools.tool_fixtures import capability

GRANT_TTL_MS, SESSION_GRANT_TTL_MS, TIMEOUT_MS = 50_000, 100_000, 150_000
CAPABILITIES = (
    capability("guarded", approval_policy=ApprovalMode.MANUAL, concurrency=1_000),
    capability(
        "small",
        approval_policy=AutoApproval(AutoRule("args.a < 2 and counts.session < 3")),
        concurrency=1_000,
    ),
)
CALLS = range(1, 5)

calls = st.tuples(
    st.just("call"),
    st.sampled_from(CALLS),
    st.sampled_from(["guarded", "small"]),
    st.integers(0, 3),
)
answers = st.tuples(
    st.just("answer"),
    st.sampled_from(CALLS),
    st.sampled_from(["approved", "approved_for_session", "approved_for_session", "denied"]),
    st.sampled_from([*["as shown"] * 4, "other arguments", "another's approval", "late"]),
)
unwatched = st.tuples(
    st.just("sleep"),
    st.sampled_from([1, TIMEOUT_MS - 1, TIMEOUT_MS]),
)
sent = st.tuples(
    st.just("send"),
    st.sampled_from(CALLS),
    st.sampled_from(["approved", "denied"]),
    st.sampled_from(["as shown", "as shown", "other arguments"]),
)
"""Steps while no node runs."""
settles = st.tuples(st.just("settle"))
performs = st.tuples(st.just("perform"), st.integers(0, 3))
deaths = st.tuples(st.just("die in"), st.integers(0, 3), st.integers(1, 3))
waits = st.tuples(
    st.just("wait"),
    st.sampled_from([1, GRANT_TTL_MS - 1, GRANT_TTL_MS, SESSION_GRANT_TTL_MS, TIMEOUT_MS]),
)
others = st.one_of(
    deaths,
    waits,
    st.tuples(st.just("crash")),
    st.tuples(st.just("revoke"), st.booleans(), st.integers(0, 2)),
    st.tuples(st.just("forge"), st.sampled_from(CALLS), st.booleans()),
    st.tuples(st.just("replay"), st.integers(0, 5)),
)
steps = st.lists(
    st.one_of(calls, answers, sent, unwatched, settles, performs, others), min_size=8, max_size=40
)
"""Half of the steps continue the history, or it would rarely reach the interesting states."""
ASKED = (("call", 1, "guarded", 1), ("settle",))
OPENINGS = (
    (),
    (*ASKED, ("answer", 1, "approved", "as shown")),
    (*ASKED, ("answer", 1, "approved_for_session", "as shown"), ("settle",)),
    (*ASKED, ("send", 1, "approved", "as shown"), ("sleep", TIMEOUT_MS)),
    (
        *(*ASKED, ("answer", 1, "approved_for_session", "as shown"), ("settle",)),
        *(("call", 2, "guarded", 2), ("perform", 0)),
    ),
)


class HistoryBuilder:
    """Builds a history step by step."""

    def __init__(self) -> None:
        self.history = History(
            *CAPABILITIES,
            settings=ApprovalSettings(
                timeout_ms=TIMEOUT_MS,
                grant_ttl_ms=GRANT_TTL_MS,
                session_grant_ttl_ms=SESSION_GRANT_TTL_MS,
            ),
        )
        self.operations: dict[int, str] = {}
        self.sent: list[Command[Any]] = []
        """Every answer, in order of arrival."""

    def apply(self, step: tuple[Any, ...]) -> None:
        getattr(self, f"_{step[0].replace(' ', '_')}")(*step[1:])

    def _call(self, number: int, name: str, amount: int) -> None:
        if number not in self.operations:
            self.operations[number] = self.history.call(number, name, a=amount)

    def _is_asked(self, number: int) -> bool:
        operation = self.operations.get(number)
        requests = self.history.of(approval.Requested)
        return any(one.operation_id == operation for one in requests)

    def _answer(self, number: int, decision: str, how: str) -> None:
        self._send(number, decision, how)
        self.history.process_inbox()

    def _send(self, number: int, decision: str, how: str) -> None:
        if not self._is_asked(number):
            return
        more = {}
        if how == "other arguments":
            more["request_digest"] = digest_json({"args": [], "kwargs": {"a": 9}})
        if how == "another's approval":
            requests = self.history.of(approval.Requested)
            more["approval_id"] = requests[0].approval_id
        if how == "late":  # The timer is late, too.
            self.history.now_ms += TIMEOUT_MS
        answer = self.history.answer_to(self.operations[number], decision, **more)
        self.sent.append(self.history.arrive(answer))

    def _sleep(self, milliseconds: int) -> None:
        self.history.pass_unwatched_ms(milliseconds)

    def _replay(self, number: int) -> None:
        if number < len(self.sent):
            self.sent.append(self.history.arrive(self.sent[number].body))
            self.history.process_inbox()

    def _perform(self, number: int) -> None:
        pending = self.history.pending
        if pending:
            self.history.perform(pending[number % len(pending)])

    def _die_in(self, number: int, question: int) -> None:
        """Crash while a call is released, if one is: that is where most could be lost."""
        pending = self.history.pending
        releases = [effect for effect in pending if isinstance(effect, ReleaseCall)]
        self.history.crash_in = question
        if effects := releases or pending:
            self.history.perform(effects[number % len(effects)])
        self.history.crash_in = 0

    def _crash(self) -> None:
        self.history.crash()

    def _wait(self, milliseconds: int) -> None:
        self.history.pass_ms(milliseconds)

    def _settle(self) -> None:
        self.history.settle()

    def _revoke(self, of_session: bool, number: int) -> None:
        kind = approval.SessionGrantIssued if of_session else approval.GrantIssued
        ids = [one.grant_id for one in self.history.of(kind)]
        if number < len(ids):
            self.history.put("approval", RevokeGrant(grant_id=ids[number]), verb="grants")

    def _forge(self, number: int, named: bool) -> None:
        """Let the turn react to a use of a grant that the approvals never recorded: for a call on
        the grant of another one."""
        if number not in self.operations:
            return
        grants = self.history.of(approval.GrantIssued)
        used = approval.GrantConsumed(
            id="approval.s.0",
            run="run-1",
            generation=1,
            approval_id="a",
            operation_id=self.operations[number],
            request_digest=digest_json({"args": [], "kwargs": {"a": 9}}),
            grant_id=grants[0].grant_id if named and grants else "",
        )
        self.history.react("approval", used)


def check_laws(history: History) -> None:
    """Check the laws that hold after every step."""
    made = {fact.operation_id: fact for fact in history.of(tool.IntentRecorded)}
    used = {fact.grant_id: fact for fact in history.of(approval.GrantConsumed)}
    issued = {fact.grant_id: fact for fact in history.of(approval.GrantIssued)}
    wanted = {fact.operation_id: fact for fact in history.of(tool.Requested)}
    assert len(used) == len(history.of(approval.GrantConsumed)), "no grant is used twice"
    assert len({fact.grant_id for fact in made.values()}) == len(made), "nor by two calls"
    for operation, intent in made.items():
        consumed = used[intent.grant_id]
        grant = issued[intent.grant_id]
        assert consumed.operation_id == grant.operation_id == operation
        assert consumed.at_ms < grant.expires_at_ms
        assert grant.request_digest == wanted[operation].request_digest
        before = history.facts[: history.facts.index(consumed)]
        revoked = {f.grant_id for f in before if isinstance(f, approval.GrantRevoked)}
        assert not {intent.grant_id, grant.session_grant_id} & revoked
        assert history.facts.index(consumed) < history.facts.index(intent)
        assert grant_has_a_reason(history, grant)
    answered_once(history)
    for operation, arguments in history.acts:
        assert operation in made
        assert digest_json(arguments) == wanted[operation].request_digest
        assert isinstance(arguments, CallArguments)


def answered_once(history: History) -> None:
    """An answer counts at most once, before its deadline, and only for the request it names."""
    requests = {one.approval_id: one for one in history.of(approval.Requested)}
    over: set[str] = set()
    for fact in history.facts:
        match fact:
            case approval.Answered(approval_id=approval_id):
                asked = requests[approval_id]
                assert approval_id not in over
                assert fact.arrived_ms < asked.due_ms
                said = history.answer_to(
                    asked.operation_id,
                    fact.decision,
                    approval_id=approval_id,
                    request_digest=asked.request_digest,
                )
                assert fact.answer_digest == digest_json(said)
                over.add(approval_id)
            case approval.Closed(approval_id=approval_id):
                over.add(approval_id)


def first_in_time_counts(builder: HistoryBuilder) -> None:
    """The first valid answer that arrived in time counts, whatever was in the inbox meanwhile."""
    counted = {one.approval_id: one for one in builder.history.of(approval.Answered)}
    for asked in builder.history.of(approval.Requested):
        in_time = [
            command
            for command in builder.sent
            if command.body.approval_id == asked.approval_id
            and command.body.request_digest == asked.request_digest
            and command.arrived_ms < asked.due_ms
        ]
        answered = counted.get(asked.approval_id)
        assert bool(in_time) == (answered is not None)
        if answered is not None:
            assert answered.answer_digest == digest_json(in_time[0].body)
            assert answered.arrived_ms == in_time[0].arrived_ms


def grant_has_a_reason(history: History, grant: approval.GrantIssued) -> bool:
    """Whether an answer to this request, a rule or a valid session grant caused the grant."""
    answers = [one for one in history.of(approval.Answered) if one.decision != "denied"]
    if any(one.approval_id == grant.approval_id for one in answers):
        (asked,) = [
            one for one in history.of(approval.Requested) if one.approval_id == grant.approval_id
        ]
        return asked.request_digest == grant.request_digest
    (allowed,) = [
        one for one in history.of(approval.AutoAllowed) if one.approval_id == grant.approval_id
    ]
    if allowed.rule:
        return not allowed.session_grant_id
    (of_session,) = [
        one
        for one in history.of(approval.SessionGrantIssued)
        if one.grant_id == allowed.session_grant_id
    ]
    before = history.facts[: history.facts.index(allowed)]
    ended = {
        one.grant_id
        for one in before
        if isinstance(one, approval.GrantRevoked | approval.GrantExpired)
    }
    assert of_session.tool == allowed.tool
    return allowed.at_ms < of_session.expires_at_ms and of_session.grant_id not in ended


@examples(300)
@given(st.sampled_from(OPENINGS), steps)
def test_every_released_call_was_granted_and_every_grant_is_used_or_requested_again(
    opening: tuple[Any, ...], taken: list[tuple[Any, ...]]
):
    builder = HistoryBuilder()
    history = builder.history
    for step in (*opening, *taken):
        builder.apply(step)
        check_laws(history)
    history.process_inbox()
    history.crash()
    history.settle()
    check_laws(history)
    first_in_time_counts(builder)
    intents = Counter(fact.operation_id for fact in history.of(tool.IntentRecorded))
    assert all(count == 1 for count in intents.values())
    for operation, asked in history.approvals.asked.items():
        granted = asked.status in (
            ApprovalLifecycleStatus.APPROVED,
            ApprovalLifecycleStatus.APPROVED_FOR_SESSION,
        )
        ended = {fact.operation_id for fact in history.of(tool.Failed)}
        assert granted == (operation in intents), "an answered grant is used, or asked for anew"
        assert (not granted and not asked.is_pending) == (operation in ended)
