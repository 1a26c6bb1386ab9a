"""Wrong inputs: every entry point refuses one with the same code, hint and position, and it changes
nothing.

Errors that a node can find before the first fact are refused at once. Errors that only the program
shows end its run; its session is unchanged, and no tool was called.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from rookery.actors.admission.decider import AdmissionDecider
from rookery.actors.admission.in_flight import InFlightCounter
from rookery.actors.execution.driver import RunProvisioner
from rookery.actors.hooks import NodeHooks
from rookery.bus import connect_sync
from rookery.bus.client.sync import SyncClient
from rookery.bus.roles import Role
from rookery.schemas.commands import INTERNAL_VERBS, SIGNED_VERBS
from rookery.schemas.envelope import Command
from rookery.schemas.errors import CODES, Refused
from rookery.schemas.run import Language, RunRequest, SessionLimits
from tests.execution.programs import Programs, play_programs
from tests.execution.realm_fixture import PAYLOAD_BYTES_MAX, Serving
from tests.stock_client import Fields, Stock, until
from tests.wire.test_commands import EXAMPLES

KEPT = "kept = 41"
THERE = "wrong-there"
"""The session with a variable; other sessions do not exist."""
NOT_THERE = "wrong-nowhere"


# --- at the door ----------------------------------------------------------------------------------


class Wrong(NamedTuple):
    """An input that no node can process."""

    code: str
    body: Fields
    says: str
    """A part of the hint."""
    verb: str = "run"
    session: str = THERE
    words: tuple[str, ...] = ()
    """The same input on the command line, if it has a form there."""


def limit(name: str, value: object, says: str, code: str = "INVALID_ARGUMENT") -> Wrong:
    body = {"code": "kept = 1", "limits": {name: value}}
    return Wrong(code, body, says, words=("run", "-e", "kept = 1", "--limit", f"{name}={value}"))


SOME, NAMES = "is a whole number from 1 to 4294967295", ", ".join(SessionLimits.__struct_fields__)
LARGE = "1" * PAYLOAD_BYTES_MAX

WRONG = {
    "no memory": limit("memory_mb", 0, f"memory_mb {SOME}"),
    "no time": limit("wall_ms", 0, f"wall_ms {SOME}"),
    "no stack": limit("max_stack_depth", 0, "max_stack_depth is a whole number from 1 to 65535"),
    "less than no calls": limit("max_external_calls", -1, "from 0 to 4294967295"),
    "a limit beyond its field": limit("max_stack_depth", 1 << 16, "from 1 to 65535"),
    "a limit beyond all bounds": limit("max_stdout_bytes", 1 << 70, "from 0 to 4294967295"),
    "half a limit": limit("cpu_ms", 1.5, f"cpu_ms {SOME}"),
    "a limit in words": limit("cpu_ms", "lots", f"cpu_ms {SOME}"),
    "a limit nobody knows": limit("memory", 1, NAMES, "UNKNOWN_FIELD"),
    "no time at all": Wrong(
        "INVALID_ARGUMENT",
        {"code": "kept = 1", "timeout_ms": 0},
        f"timeout_ms {SOME}",
        words=("run", "-e", "kept = 1", "--timeout-ms", "0"),
    ),
    "a language nobody knows": Wrong(
        "INVALID_ARGUMENT",
        {"code": "1", "language": "cobol"},
        "one of python, typescript",
        words=("run", "-e", "1", "--language", "cobol"),
    ),
    "a language of other sessions": Wrong(
        "UNSUPPORTED_FEATURE",
        {"code": "1", "language": "ts"},
        "another session",
        words=("run", "-e", "1", "--language", "ts"),
    ),
    "an input that is no name": Wrong(
        "INVALID_ARGUMENT",
        {"code": "1", "inputs": {"a b": 1}},
        "letters",
        words=("run", "-e", "1", "--input", "a b=1"),
    ),
    "an input that is no name in Python": Wrong(
        "INVALID_ARGUMENT",
        {"code": "1", "inputs": {"class": 1}},
        "a keyword of Python",
        words=("run", "-e", "1", "--input", "class=1"),
    ),
    "a session that is not the subject's": Wrong(
        "INVALID_ARGUMENT", {"code": "1", "session_id": "a/b"}, "leave it out"
    ),
    "an oversize request": Wrong(
        "PAYLOAD_TOO_LARGE", {"code": LARGE}, "blob store", words=("run", "oversize.py")
    ),
    "a session begun anew with other limits": Wrong(
        "SESSION_IDENTITY_IN_USE",
        {"limits": {"wall_ms": 9}},
        f"rookery sessions show {THERE}",
        verb="create",
        words=("sessions", "create", THERE, "--limit", "wall_ms=9"),
    ),
    "a session begun with a limit of nothing": Wrong(
        "INVALID_ARGUMENT",
        {"limits": {"wall_ms": 0}},
        f"wall_ms {SOME}",
        verb="create",
        session=NOT_THERE,
        words=("sessions", "create", NOT_THERE, "--limit", "wall_ms=0"),
    ),
    "a limit of nothing for a session": Wrong(
        "INVALID_ARGUMENT",
        {"memory_mb": 0},
        f"memory_mb {SOME}",
        verb="limits",
        words=("sessions", "limits", THERE, "memory_mb=0"),
    ),
    "limits for a session that is not there": Wrong(
        "SESSION_NOT_FOUND",
        {"memory_mb": 9},
        "rookery sessions list",
        verb="limits",
        session=NOT_THERE,
        words=("sessions", "limits", NOT_THERE, "memory_mb=9"),
    ),
    "an end for a session that is not there": Wrong(
        "SESSION_NOT_FOUND",
        {},
        "rookery sessions list",
        verb="destroy",
        session=NOT_THERE,
        words=("sessions", "destroy", NOT_THERE),
    ),
    "an undo in a session that is not there": Wrong(
        "SESSION_NOT_FOUND",
        {},
        "rookery sessions list",
        verb="undo",
        session=NOT_THERE,
        words=("sessions", "undo", NOT_THERE),
    ),
    "the conversation of a session that is not there": Wrong(
        "SESSION_NOT_FOUND",
        {},
        "rookery sessions list",
        verb="conversation",
        session=NOT_THERE,
        words=("sessions", "context", NOT_THERE),
    ),
}
PATIENCE_S = 45.0
EXITS = {"INVALID_ARGUMENT": 2, "UNKNOWN_FIELD": 2, "SESSION_NOT_FOUND": 4}


@pytest.fixture(scope="module")
def client(driving: Serving) -> Iterator[SyncClient]:
    with connect_sync(driving.url, realm=driving.realm) as opened:
        ran(opened, KEPT)
        yield opened


def ran(client: SyncClient, code: str) -> Any:
    """The run's result, when its last fact is committed."""
    handle = client.submit(THERE, code)
    for _ in handle.events():
        pass
    return handle.result(PATIENCE_S).result


@pytest.mark.parametrize("what", WRONG)
def test_every_entry_point_refuses_it_with_the_same_text_and_no_fact(
    driving: Serving, client: SyncClient, what: str
):
    wrong = WRONG[what]

    async def scenario(stock: Stock) -> None:
        before = await facts_of(stock, wrong.session)
        code, message, hint = said = await told_at(stock, "api", wrong)
        assert (code, code in CODES) == (wrong.code, True)
        assert message
        assert wrong.says in hint
        assert await told_at(stock, "cmd", wrong) == said
        if wrong.verb == "run":
            only = wrong._replace(body={**wrong.body, "validate_only": True})
            for alike in (wrong._replace(verb="validate"), only):
                for door in ("api", "cmd"):
                    assert await told_at(stock, door, alike) == said, (door, alike.verb)
        with pytest.raises(Refused) as caught:
            await asyncio.to_thread(of_client, client, wrong)
        assert words_of(caught.value.code, caught.value.message, caught.value.hint) == said
        assert await facts_of(stock, wrong.session) == before
        assert bool(before) is (wrong.session == THERE)

    driving.visit(scenario)
    assert ran(client, "kept + 1") == 42


@pytest.mark.parametrize("what", [what for what in WRONG if WRONG[what].words])
def test_the_command_line_refuses_it_too(driving: Serving, client: SyncClient, what: str):
    wrong = WRONG[what]
    (driving.folder / "oversize.py").write_text(LARGE)
    where = ("--session", THERE) if wrong.words[0] == "run" else ()

    async def scenario(stock: Stock) -> None:
        before = await facts_of(stock, wrong.session)
        said = await asyncio.to_thread(driving.rookery, *wrong.words, *where)
        error = json.loads(said.out)["error"]
        assert said.code == EXITS.get(wrong.code, 3), said
        at_the_shell = ("INVALID_ARGUMENT", wrong.code)
        assert error["code"] in at_the_shell, "words the shell knows are wrong have one code"
        assert error["message"]
        assert error["hint"]
        assert await facts_of(stock, wrong.session) == before

    driving.visit(scenario)


async def told_at(client: Stock, door: str, wrong: Wrong) -> tuple[str, str, str]:
    """Code, message and hint."""
    reply = client.reply()
    await client.publish(door, wrong.verb, wrong.session, wrong.body, reply=reply)
    name = reply.rpartition(".")[2]
    error = (await until(lambda: client.answers[name]))[0].error
    return words_of(error["code"], error["message"], error["hint"])


def words_of(code: str, message: str, hint: str) -> tuple[str, str, str]:
    """The same error can have bodies of different length."""
    return code, re.sub(r"has [0-9]+ bytes", "has some bytes", message), hint


def of_client(client: SyncClient, wrong: Wrong) -> Any:
    match wrong.verb:
        case "run":
            return client.run(wrong.session, wrong.body)
        case "create":
            return client.create(wrong.session, **wrong.body)
        case "limits":
            return client.set_limits(wrong.session, **wrong.body)
        case "undo":
            return client.undo(wrong.session)
        case "conversation":
            return client.conversation(wrong.session)
    return client.destroy(wrong.session)


async def facts_of(client: Stock, session: str) -> dict[str, int]:
    """The number of messages of each family of the session, once its earlier runs have ended."""
    view = await client.ask("session", session)
    assert view.code in ("", "SESSION_NOT_FOUND")
    info = await (await client.admin()).stream_info(
        f"ROOKERY_{client.realm}_JOURNAL", subjects_filter=f"rookery.{client.realm}.ev.*.{session}"
    )
    return dict(info.state.subjects or {})


def test_a_language_without_a_guest_is_refused_before_any_fact():
    offers = RunProvisioner(
        builds={Language.PYTHON: "b"},
        tools=(),
        catalogue="",
        limits_max=SessionLimits(),
        entropy=bytes,
        hooks=NodeHooks(),
    )
    admission = AdmissionDecider(
        queued_max=9,
        in_flight_max=9,
        realm_load=InFlightCounter(),
        driven=True,
        judge=offers.validate,
    )

    def decide(language: Language) -> Any:
        command = Command(verb="run", key="s", id="c", body=RunRequest(language=language))
        return admission.decide(admission.initial("s"), command, now_ms=1)

    with pytest.raises(Refused) as caught:
        decide(Language.TYPESCRIPT)
    assert caught.value.code == "UNSUPPORTED_FEATURE"
    assert caught.value.hint == "languages: python"
    assert decide(Language.PYTHON)


# --- inside a run ---------------------------------------------------------------------------------


class Ends(NamedTuple):
    """A program that must fail, and its error."""

    code: str
    program: str
    says: str
    """A part of the message."""
    status: str = "validation_error"
    span: tuple[int, int] | None = None


FAULT = "runtime_error"
ENDS = {
    "a syntax error": Ends("SYNTAX_ERROR", "kept = 1\nif kept", "expected ':'", span=(2, 8)),
    "an unknown tool": Ends("UNKNOWN_TOOL", "nothing('x')", "'nothing'", span=(1, 1)),
    "a blocked import": Ends("UNSUPPORTED_FEATURE", "kept = 1\nimport ssl", "'ssl'", span=(2, 8)),
    "a call that does not fit its schema": Ends(
        "TOOL_ERROR", "block('long')", "TYPE_ERROR: block: $.seconds", FAULT, (1, 1)
    ),
    "too few arguments": Ends("TOOL_ERROR", "block()", "TYPE_ERROR: block", FAULT, (1, 1)),
    "arguments too large": Ends(
        "TOOL_ERROR", "echo('x' * 2_000_000)", "PAYLOAD_TOO_LARGE: echo", FAULT, (1, 1)
    ),
    "a result that is not JSON": Ends("RESULT_NOT_SERIALIZABLE", "result = {1, 2}", "of type set"),
    "a result with what is not JSON inside": Ends(
        "RESULT_NOT_SERIALIZABLE", "result = [1, {'a': (lambda: 1)}]", "of type function"
    ),
}


@pytest.mark.parametrize("what", ENDS)
def test_an_invalid_program_is_refused_with_its_position_and_changes_nothing(
    driving: Serving, what: str
):
    ends = ENDS[what]

    async def scenario(programs: Programs) -> None:
        await programs.run(KEPT)
        answer = await programs.run(ends.program)
        error = answer["error"]
        assert (error["code"], answer["status"]) == (ends.code, ends.status), answer
        assert ends.says in error["message"]
        assert error["hint"]
        assert answer["diagnostics"] == [{"severity": "error", **error}]
        if ends.span:
            assert (error["span"]["line"], error["span"]["column"]) == ends.span
        assert (await programs.run("kept + 1"))["result"] == 42
        assert not programs.of("tool.intent_recorded"), "no tool was executed"

    play_programs(driving, f"ends-{list(ENDS).index(what)}", scenario)


NO_SESSION = {
    "catalogue",
    "catalogued",
    "hooks",
    "hooked",
    "hook_trial",
    "policy",
    "sign_card",
    "leases",
    "leased",
    "login",
    "finish_login",
    "approvers",
    "quarantine",
    "sessions",
    "resources",
    "runs",
    "tools",
    "agents",
    "pending",
    "granted",
}
"""Verbs whose keys name no session."""


@pytest.mark.parametrize("key", ["_approvers", "_mine", "%5Fmine"])
def test_keys_that_begin_with_an_underscore_are_no_sessions(driving: Serving, key: str):
    async def scenario(programs: Programs) -> None:
        for verb in sorted(EXAMPLES.keys() - NO_SESSION - INTERNAL_VERBS - SIGNED_VERBS):
            body = msgspec.to_builtins(EXAMPLES[verb])
            answer = await programs.client.ask(verb, key, body)
            assert answer.code == "INVALID_SESSION_ID", (verb, answer)
        forked = await programs.client.ask(
            "fork", programs.session, {"run_id": "r", "session": "_approvers", "at_sequence": 1}
        )
        assert forked.code == "INVALID_SESSION_ID"
        assert programs.client.facts[key] == []

    play_programs(driving, "reserved", scenario, Role.OPERATOR)
