"""Hooks of every live point that fail as the name of their session says, for each failure policy,
hooks that change a run, and tools whose calls are counted from outside: registries of real nodes.

A session is called ``<point>--<policy>--<fault>``, and has the hook of that name.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from rookery.actors import tool
from rookery.actors.hooks import (
    add_input,
    change_approval,
    deny,
    hook,
    modify_arguments,
    report_cleanup,
    request_retry,
    rewrite_result,
    stop_completion,
)
from rookery.actors.hooks.executors.ports import HookExecutor, HookExecutors
from rookery.actors.tools import ToolRegistry
from rookery.actors.tools.authoring import HOOK_ATTRIBUTE
from rookery.schemas.ids import HookExecutorRef
from rookery.schemas.run import SideEffect
from rookery.schemas.seed.hook_invocation import HookInput

__all__ = ["FAULTS", "POINTS", "POLICIES", "Book", "changing", "failing", "guarded", "session_of"]

POINTS: Final = (
    *("run_starting", "before_tool_call", "before_approval_request"),
    *("after_tool_call", "before_run_complete"),
)
POLICIES: Final = ("deny", "interrupt_run", "fail_run")
FAULTS: Final = ("error", "timeout", "missing", "garbage")
FOLDER: Final = Path(os.environ.get("HOOKS_FOLDER", "."))
SERVICE: Final = "service-is-back"
TIMEOUT_MS: Final = 50
"""Of a hook that is to time out, or has no executor. The others have as much as the 5 s of their
point allow: on a busy machine, any of them may take long."""
ANSWER_MS: Final = 800
SLOW_MS: Final = 1_000
TIME_LEFT_MS: Final = 1_200


class Book:
    """What tools and hooks have done, in a file outside of every node."""

    def __init__(self, folder: Path) -> None:
        self._path, self._back = folder / "book.txt", folder / SERVICE

    def write(self, *words: object) -> None:
        with self._path.open("a", encoding="utf-8") as book:
            book.write(f"{' '.join(map(str, words))}\n")

    def lines(self) -> list[list[str]]:
        if not self._path.exists():
            return []
        return [line.split(" ") for line in self._path.read_text(encoding="utf-8").splitlines()]

    def heal(self) -> None:
        """From now on no hook fails."""
        self._back.touch()

    @property
    def is_healed(self) -> bool:
        return self._back.exists()

    def gate(self, session: str) -> Path:
        """The file for which the slow hook of a session waits."""
        return self._path.with_name(f"{session}.gate")


BOOK: Final = Book(FOLDER)


def session_of(*parts: str) -> str:
    return "--".join(part.replace("_", "-") for part in parts)


def _fault_of(call: HookInput) -> str:
    return call.agent_id.as_str().rpartition("--")[2]


# --- tools ----------------------------------------------------------------------------------------


@tool(side_effect=SideEffect.WRITE, idempotent=False)
def pay(session: str, amount: int) -> str:
    """Pay an amount."""
    BOOK.write("pay", session, amount)
    return f"paid {amount}"


@tool(side_effect=SideEffect.WRITE, idempotent=False, approval_policy="manual")
def guarded_pay(session: str, amount: int) -> str:
    """Pay an amount that an approver has seen."""
    BOOK.write("pay", session, amount)
    return f"paid {amount}"


@tool(side_effect=SideEffect.READ)
def look(session: str, number: int) -> int:
    """Return the number."""
    BOOK.write("look", session, number)
    return number


# --- hooks that fail ------------------------------------------------------------------------------


def _fail(call: HookInput) -> Any:
    """Fails as the session says, until the service is back."""
    if BOOK.is_healed:
        return None
    match _fault_of(call):
        case "error":
            raise ConnectionError("nobody answers")
        case "timeout":
            time.sleep(0.4)
        case "garbage":
            return {"decision": "allow"}
    return None


def _failing(point: str, policy: str, *faults: str) -> Any:
    """A hook for the sessions of these faults, named after the first."""

    def guard(call: HookInput) -> Any:
        return _fail(call)

    sessions = [session_of(point, policy, fault) for fault in faults]
    guard.__qualname__ = sessions[0].replace("-", "_")
    when = " or ".join(f'session == "{session}"' for session in sessions)
    timeout_ms = TIMEOUT_MS if {"timeout", "missing"} & {*faults} else ANSWER_MS
    settings = {"mode": "enforce", "failure": policy, "name": sessions[0]}
    return getattr(hook(point, when=when, timeout_ms=timeout_ms, **settings)(guard), HOOK_ATTRIBUTE)


def _slow(point: str) -> Any:
    def answer_late(call: HookInput) -> Any:
        BOOK.write("slow", name)
        end_s = time.monotonic() + SLOW_MS / 1_000
        while not BOOK.gate(name).exists() and time.monotonic() < end_s:
            time.sleep(0.01)

    name = session_of(point, "slow")
    answer_late.__qualname__ = name.replace("-", "_")
    when = f'session == "{name}"'
    made = hook(point, mode="enforce", failure="deny", when=when, timeout_ms=SLOW_MS, name=name)
    return getattr(made(answer_late), HOOK_ATTRIBUTE)


def lose_executor(call: HookInput) -> Any:
    """The executor of the session's hook vanishes under a running node, which still starts runs."""
    name = call.agent_id.as_str().removeprefix("agent.").replace("-", "_")
    for executors in _OPENED:
        lost = HookExecutorRef(f"python:{__name__}.{name}")
        executors._executors[lost] = None  # type: ignore[assignment]


_OPENED: Final = list[HookExecutors]()
"""Of this process; a node freezes its objects, so that they cannot be found otherwise."""
_OPEN: Final = HookExecutors.__init__


def _opened(self: HookExecutors, executors: Iterable[HookExecutor] = ()) -> None:
    _OPEN(self, executors)
    _OPENED.append(self)


HookExecutors.__init__ = _opened  # type: ignore[method-assign]


def _losing() -> Any:
    settings = {"mode": "enforce", "failure": "fail_open_observe_only", "phase": "early"}
    made = hook(
        "run_starting", when='ends_with(session, "--missing")', timeout_ms=TIME_LEFT_MS, **settings
    )
    return getattr(made(lose_executor), HOOK_ATTRIBUTE)


# --- hooks that change ----------------------------------------------------------------------------

SEEN: Final = {"mode": "enforce", "sees": "content_capture_allowed", "timeout_ms": 1_500}
RETRIED: Final = set[str]()
CHANGING: Final = 'starts_with(session, "change--")'


@hook("run_starting", rights=["inject_context"], when=CHANGING, **SEEN)
def give_amount(_: HookInput) -> Any:
    return add_input("amount", 500, "an amount")


@hook("before_tool_call", rights=["modify_tool_request"], when=CHANGING, order=1, **SEEN)
def cap(call: HookInput) -> Any:
    """Payments are at most 100, and each of another amount."""
    amount = call.view.content.get("amount", 0)
    BOOK.write("cap", call.agent_id.as_str().removeprefix("agent."), amount)
    return modify_arguments({"amount": 100 + amount % 100}, "capped") if amount > 199 else None


@hook("after_tool_call", rights=["rewrite_tool_result"], when=CHANGING, **SEEN)
def shout(call: HookInput) -> Any:
    value = call.view.content
    return rewrite_result(value.upper(), "louder") if isinstance(value, str) else None


@hook("after_tool_call", rights=["request_retry"], when=CHANGING, order=1, **SEEN)
def look_again(call: HookInput) -> Any:
    """A negative number is looked at twice."""
    name = call.view.subject_refs[0].id.as_str()
    if not isinstance(call.view.content, int) or call.view.content >= 0 or name in RETRIED:
        return None
    RETRIED.add(name)
    return request_retry("negative")


@hook("before_tool_call", rights=["deny", "request_approval"], when=CHANGING, order=200, **SEEN)
def judge(call: HookInput) -> Any:
    amount = call.view.content.get("amount", 0)
    return deny("unlucky", "no payment of 113") if amount == 113 else None


@hook("before_approval_request", rights=["modify_approval_request"], when=CHANGING, **SEEN)
def hurry(_: HookInput) -> Any:
    return change_approval("within an hour", timeout_ms=3_600_000, risk="Critical")


@hook("before_run_complete", rights=["request_retry"], when=CHANGING, order=1, **SEEN)
def run_again(call: HookInput) -> Any:
    run = call.run_id.as_str()
    if "again" not in str(call.view.content) or run in RETRIED:
        return None
    RETRIED.add(run)
    return request_retry("once more")


@hook("before_run_complete", rights=["stop_completion_with_repair_needed"], when=CHANGING, **SEEN)
def see_result(call: HookInput) -> Any:
    BOOK.write("complete", call.agent_id.as_str().removeprefix("agent."))
    if "withhold" in str(call.view.content):
        return stop_completion("ledger", "the ledger does not balance")
    return None


@hook(
    "before_tool_call",
    when='starts_with(session, "parked--")',
    failure="interrupt_run",
    mode="enforce",
    order=200,
    timeout_ms=1_500,
)
def dead_guard(_: HookInput) -> Any:
    if not BOOK.is_healed:
        raise ConnectionError("nobody answers")


@hook(
    "on_run_cancel_requested",
    rights=["request_cleanup_repair"],
    when='session == "cancelled"',
    mode="enforce",
)
def left_behind(_: HookInput) -> Any:
    return report_cleanup("half of a payment")


def _failing_hooks() -> Iterator[Any]:
    for point in POINTS:
        for policy in POLICIES:
            for faults in (("error", "garbage"), ("timeout",), ("missing",)):
                yield _failing(point, policy, *faults)
        yield _slow(point)
    yield _losing()
    yield left_behind


failing = ToolRegistry.of(pay, guarded_pay, *_failing_hooks())
changing = ToolRegistry.of(
    *(pay, guarded_pay, look),
    *(give_amount, cap, judge, look_again, shout, hurry, run_again, see_result, dead_guard),
)
guarded = ToolRegistry.of(pay, dead_guard)
"""One guard alone."""
