"""``rookery hooks`` on a running realm: what an operator registers, programs meet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import nats
import pytest

from rookery.bus import connect_sync
from rookery.bus.client.sync import SyncClient
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.codec import encode_json
from tests.hooks.test_live_hooks import HERE
from tests.nodes import ROOKERY, Said, access_to, node_on, rookery_here
from tests.stock_client import inbox_prefix, until
from tests.tools.worker_processes import WorkerProcess

REALM = "guarded"
NUMBERS = count(1)
NO_EVE = """
[[hook]]
id = "no-eve"
point = "before_tool_call"
when = 'name == "pay" and args.to == "eve"'
mode = "{mode}"
executor = {{ kind = "rule", then = "deny", code = "recipient", summary = "eve gets nothing" }}
"""
ENFORCED = NO_EVE.format(mode="enforce")
OF_CONTEXT = ENFORCED.replace("before_tool_call", "after_context_assembly")
OF_CONTEXT = OF_CONTEXT.replace("deny", "stop_run")
CAP = """
[[hook]]
id = "cap"
point = "before_tool_call"
rights = ["modify_tool_request"]
when = 'name == "pay"'
order = 10
mode = "enforce"
privacy = "content_capture_allowed"
executor = { kind = "python", function = "tests.hooks.hook_tools.for_realms" }
"""


SERVED = CAP.replace('"cap"', '"for-realms"').replace(
    'kind = "python", function = "tests.hooks.hook_tools.for_realms"', 'kind = "nats"'
)
PROGRAM = """
[[hook]]
id = "unlucky"
point = "before_tool_call"
rights = ["deny"]
when = 'name == "pay"'
mode = "enforce"
timeout_ms = 2000
privacy = "content_capture_allowed"
executor = {{ kind = "sandbox", language = "{language}", code = '''{code}''' }}
"""
PROGRAMS = {
    "python": """
amount = hook["view"]["content"]["amount"]
if amount == 66:
    raise ValueError("broken")
reason = {"code": "unlucky", "redacted_summary": f"{amount} is not paid"}
{"type": "deny", "payload": reason} if amount == 13 else None
""",
    "typescript": """
const amount: number = hook.view.content.amount
if (amount === 66) throw new Error("broken")
const reason = { code: "unlucky", redacted_summary: `${amount} is not paid` }
amount === 13 ? { type: "deny", payload: reason } : null
""",
}
WATCHER = """
[[hook]]
id = "watch-runs"
point = "after_run_terminal"
queue = { capacity = 8, terminal_reserve = 1, overflow = "summarize_and_continue" }
executor = { kind = "python", function = "tests.hooks.hook_tools.for_realms" }
"""
SAME_NAMES = """
from rookery.actors import tool

@tool
def look(value: str) -> str:
    return value

@tool(name="look")
def look_too(value: str) -> str:
    return value

TOOLS = [look, look_too]
"""
CAPPED = {"redacted_summary": "capped", "arguments_patch": {"amount": 100}}
GOOD = encode_json(
    {"invocation_id": "THIS", "response": {"type": "modify_tool_request", "payload": CAPPED}}
)
WRONG: list[tuple[list[bytes], str]] = [
    ([], "PERMISSION_DENIED"),
    ([b"garbage", GOOD], "PERMISSION_DENIED"),
    ([GOOD.replace(b"THIS", b"other/run"), GOOD], "PERMISSION_DENIED"),
    ([GOOD.replace(b"modify_tool_request", b"rewrite_tool_result")], "PERMISSION_DENIED"),
    ([b"[" * 1_000], "PERMISSION_DENIED"),
    ([b"x" * 300_000], "PERMISSION_DENIED"),
]
"""What is answered, in order, and what the program gets."""


class GuardedRealm:
    """A realm whose node has tools, and functions that hooks can name."""

    def __init__(self, server: EmbeddedServer, client: SyncClient, folder: Path) -> None:
        self._server, self.client, self.folder = server, client, folder
        self.access = access_to(server, REALM)

    def hooks(self, *words: str) -> Said:
        return rookery_here(self.folder, "hooks", *words, *self.access)

    def add(self, text: str) -> Said:
        (self.folder / "hooks.toml").write_text(text)
        return self.hooks("add", "hooks.toml")

    def parked(self) -> list[dict[str, Any]]:
        found = self.client.ask("runs", "any", {"status": "interrupted"})["runs"]
        return [one for one in found if one["code"] == "HOOK_INTERRUPTED"]

    def doctor(self) -> str:
        return rookery_here(self.folder, "doctor", *self.access).out

    def trial(self, text: str, *words: str) -> Said:
        (self.folder / "hooks.toml").write_text(text)
        return self.hooks("test", "hooks.toml", *words)

    def book(self) -> str:
        """What tools and hooks did."""
        return (self.folder / "book.txt").read_text()

    def url(self, role: Role, hook: str) -> str:
        return self._server.url_for(role, realm=REALM, surface=hook)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """A process that serves the hooks of a registry."""
        command = (ROOKERY, "hooks", "serve", "tests.hooks.hook_tools:named", "--json")
        with WorkerProcess(self.folder, *command, *self.access):
            yield

    def pay(self, to: str, amount: int = 1) -> Any:
        """The result of a payment, or its error."""
        code = f"try:\n    found = pay({to!r}, {amount})\nexcept Exception as error:\n"
        code += "    found = f'{error.code}: {error}'\nfound"
        answer = self.client.run(f"payments-{next(NUMBERS)}", code)
        assert answer.error is None, answer
        return answer.result


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedRealm]:
    folder = tmp_path_factory.mktemp("guarded")
    flags = ("--driver", "sandbox", "--tools", "tests.hooks.hook_tools:named")
    variables = {"PYTHONPATH": HERE, "HOOKS_BOOK": str(folder / "book.txt")}
    with (
        EmbeddedServer(folder / "store", admin=True) as server,
        node_on(server, REALM, folder, *flags, **variables),
        connect_sync(server.url_for(Role.CLIENT, realm=REALM), realm=REALM) as client,
    ):
        yield GuardedRealm(server, client, folder)


@pytest.fixture(autouse=True)
def no_hooks_are_left(realm: GuardedRealm) -> Iterator[None]:
    yield
    listed = realm.hooks("list", "--json").json["hooks"]
    ids = [one["registration"]["spec"]["hook_id"] for one in listed if one["sequence"]]
    if ids:
        assert realm.hooks("remove", *ids).code == 0


def test_a_registered_rule_guards_the_next_run_until_it_is_removed(realm: GuardedRealm):
    assert realm.pay("eve") == "paid 1 to eve"
    said = realm.add(ENFORCED)
    assert said.out == "no-eve is in mode enforce: before_tool_call, normal 100\n", said.err
    assert realm.pay("eve").startswith("PERMISSION_DENIED: ")
    assert "eve gets nothing" in realm.pay("eve")
    shown = realm.hooks("show", "no-eve").out
    assert 'when       name == "pay" and args.to == "eve"' in shown
    assert "spec hash  sha256:" in shown
    assert realm.hooks("remove", "no-eve").code == 0
    assert realm.pay("eve") == "paid 1 to eve"


def test_an_audited_hook_notes_what_it_would_do_until_it_is_enforced(realm: GuardedRealm):
    realm.add(NO_EVE.format(mode="audit"))
    assert realm.pay("eve") == "paid 1 to eve"
    (listed,) = [one for one in realm.hooks("list", "--json").json["hooks"] if one["sequence"]]
    assert (listed["activity"]["would"], listed["activity"]["changed"]) == (1, 0)
    assert "would deny: eve gets nothing" in realm.hooks("show", "no-eve").out
    assert realm.hooks("mode", "no-eve", "enforce").code == 0
    assert realm.pay("eve").startswith("PERMISSION_DENIED: ")
    assert realm.hooks("show", "no-eve", "--json").json["activity"]["changed"] == 1
    realm.hooks("mode", "no-eve", "off")
    assert realm.pay("eve") == "paid 1 to eve"


def test_a_file_names_a_function_of_the_nodes(realm: GuardedRealm):
    said = realm.add(CAP)
    assert said.code == 0, said
    assert realm.pay("bob", 500) == "paid 100 to bob"
    missing = realm.add(CAP.replace("for_realms", "no_such_function").replace('"cap"', '"b"'))
    assert missing.code != 0
    assert "HOOK_EXECUTOR_MISSING" in missing.err
    ref = "python:tests.hooks.hook_tools.no_such_function"
    assert f"hook executor {ref} is not resolved before start_run" in " ".join(missing.err.split())


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (OF_CONTEXT, "HOOK_POINT_NOT_LIVE"),
        (ENFORCED.replace("args.to ==", "args.to ="), "RULE_INVALID"),
        (CAP + ENFORCED.replace("executor", "order = 1\nexecutor"), "HOOK_INVALID"),
        ("[[hook]]", "HOOK_INVALID"),
    ],
)
def test_a_file_that_is_refused_changes_nothing(realm: GuardedRealm, text: str, code: str):
    said = realm.add(text)
    assert (said.code != 0, code in said.err) == (True, True), said
    assert "no-eve" not in realm.hooks("list").out


def test_a_process_serves_a_hook_for_as_long_as_it_runs(realm: GuardedRealm):
    said = realm.add(SERVED)
    assert (said.code != 0, "HOOK_EXECUTOR_MISSING" in said.err) == (True, True)
    with realm.serving():
        assert realm.add(SERVED).code == 0
        assert realm.pay("bob", 500) == "paid 100 to bob"
    assert "no process serves hook for-realms" in realm.pay("bob", 500)
    assert "no process serves" not in realm.hooks("list").out
    assert "no process serves hook for-realms" in realm.hooks("list", "--probe").out
    assert "warn     hook for-realms: no process serves" in realm.doctor()


def test_runs_that_a_dead_guard_has_parked_continue_when_they_are_resumed(realm: GuardedRealm):
    with realm.serving():
        patient = 'failure = "interrupt_run"\ntimeout_ms = 4000\n'
        assert realm.add(SERVED + patient).code == 0
    sessions = [f"parked-{number}" for number in range(3)]
    runs = [realm.client.submit(name, "pay('bob', 500)") for name in sessions]
    asyncio.run(until(lambda: len(realm.parked()) == len(runs)))
    parked = realm.parked()
    commands = {one["waits_for"]["command"] for one in parked}
    assert commands == {"rookery hooks resume for-realms"}
    assert realm.hooks("resume", "other", "--json").json == {"resumed": []}
    assert realm.add(ENFORCED.replace('args.to == "eve"', 'session == "parked-2"')).code == 0
    with realm.serving():
        said = realm.hooks("resume", "for-realms", "--json")
        assert sorted(said.json["resumed"]) == sorted(one["run_id"] for one in parked)
        *others, last = [run.result(60) for run in runs]
    assert [one.result for one in others] == ["paid 100 to bob"] * 2
    assert last.error is not None
    assert "eve gets nothing" in last.error.message, "the new hook reaches runs that were parked"
    shown = rookery_here(realm.folder, "runs", "show", last.run_id, *realm.access).out
    assert "goes on with other hooks: for-realms" in shown
    assert realm.hooks("resume", "for-realms").out == "resumed 0 runs\n"


def test_only_the_answer_of_its_own_process_to_this_invocation_counts(realm: GuardedRealm):
    """A process with a credential of the hook answers in every wrong way; one without a credential
    for it gets no invocation, and its answers do not arrive."""
    answers: list[bytes] = []

    async def answer(message: Any) -> None:
        invocation = json.loads(message.data)["invocation_id"]
        for body in answers:
            named = body.replace(b"THIS", invocation.encode())
            await message.respond(named)

    async def scenario() -> None:
        url = realm.url(Role.HOOK, "for-realms")
        prefix = inbox_prefix(url)
        async with await nats.connect(url, inbox_prefix=prefix) as process:
            await process.subscribe("rookery.guarded.hook.for-realms", "rookery", cb=answer)
            await process.flush()
            answers[:] = [GOOD]
            assert (await asyncio.to_thread(realm.add, SERVED)).code == 0
            for bodies, says in WRONG:
                answers[:] = bodies
                assert says in await asyncio.to_thread(realm.pay, "bob", 500), bodies
            answers[:] = [GOOD, GOOD, GOOD]
            assert await asyncio.to_thread(realm.pay, "bob", 500) == "paid 100 to bob"

    asyncio.run(scenario())


def test_a_hook_is_tried_with_recorded_calls_before_it_is_registered(realm: GuardedRealm):
    realm.pay("bob", 3)
    realm.pay("eve", 5)
    paid = realm.book().count("paid")
    said = realm.trial(ENFORCED, "--last", "2", "--json")
    (report,) = said.json
    assert [(one["name"], one["would"]) for one in report["verdicts"]] == [
        ("pay", "deny: eve gets nothing"),
        ("pay", ""),
    ]
    run = report["verdicts"][0]["run_id"]
    assert "deny: eve gets nothing" in realm.trial(ENFORCED, "--run", run).out
    typed = ("--call", "pay", "--args", '{"to": "eve", "amount": 1}')
    assert "deny: eve gets nothing" in realm.trial(ENFORCED, *typed).out
    assert "modify_tool_request: amount capped" in realm.trial(CAP, *typed).out
    assert realm.book().count("paid") == paid, "no tool is called"
    assert realm.trial(ENFORCED).code != 0
    assert "HOOK_NOT_FOUND" in realm.hooks("test", "gone", *typed).err


def test_an_observer_sees_the_ends_of_runs_and_no_run_waits_for_it(realm: GuardedRealm):
    assert realm.add(WATCHER).code == 0
    realm.pay("bob", 3)
    asyncio.run(until(lambda: "for realms watch-runs" in realm.book()))
    assert "queue" in realm.hooks("show", "watch-runs").out


@pytest.mark.parametrize("language", ["python", "typescript"])
def test_a_program_of_the_sandbox_judges_calls(realm: GuardedRealm, language: str):
    text = PROGRAM.format(language=language, code=PROGRAMS[language])
    said = realm.add(text)
    assert said.code == 0, said
    assert realm.pay("bob", 5) == "paid 5 to bob"
    assert "PERMISSION_DENIED" in realm.pay("bob", 66)
    assert "13 is not paid" in realm.pay("bob", 13)
    assert "SYNTAX_ERROR" in realm.add(PROGRAM.format(language=language, code="1 +")).err


def test_unknown_hooks_are_named(realm: GuardedRealm):
    for words in (("show", "gone"), ("mode", "gone", "off"), ("remove", "gone")):
        said = realm.hooks(*words)
        assert said.code != 0
        assert "HOOK_NOT_FOUND" in said.err
    assert "before_tool_call" in realm.hooks("list", "--points").out


def test_a_registry_with_one_name_twice_is_refused_by_the_command_that_serves_it(
    realm: GuardedRealm,
):
    (realm.folder / "same_names.py").write_text(SAME_NAMES)
    said = realm.hooks("serve", "same_names:TOOLS")
    assert said.code != 0
    assert "INVALID_TOOL_NAME" in said.err
    assert "two tools are called look" in said.err
