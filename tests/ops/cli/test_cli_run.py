"""``rookery run`` and ``rookery validate``: streams, messages and exit codes.

No node is running in these tests, so the command starts one in its own process. Running nodes have
tests of their own.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from rookery.bus import connect_sync
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.nodes import without_progress
from tests.ops.fixtures import CommandLine, Realm

EXAMPLES = "rookery.ops.examples.tools:registry"
TYPESCRIPT = ("--language", "typescript", "--session", "ts")
SLOW = """
import asyncio
from rookery.actors import tool

@tool(timeout_ms=60_000)
async def slow(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds
"""


@pytest.fixture
def alone(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """A user with a node that serves."""
    user = CommandLine(tmp_path_factory.mktemp("served"))
    with user.served("--tools", EXAMPLES):
        yield user


# --- results --------------------------------------------------------------------------------------


def test_output_then_result_go_to_stdout_and_the_rest_to_stderr(shell: CommandLine):
    code = "print('one')\n{'n': n + price('tea')}"
    ended = shell.rookery("run", "-e", code, "--input", "n=4")
    assert (ended.code, ended.out, ended.err) == (0, 'one\n{"n":7}\n', "")
    said = shell.rookery("run", "-e", "console.error('two'); result = 1", *TYPESCRIPT)
    assert (said.code, said.out, said.err) == (0, "1\n", "two\n")
    silent = shell.rookery("run", "-e", "x = 1")
    assert (silent.code, silent.out, silent.err) == (0, "", "")


def test_output_is_printed_while_the_program_runs_and_only_once(shell: CommandLine):
    code = "import sys\nprint('one')\nprint('two', file=sys.stderr)\nwhile True: pass"
    limits = ("--limit", "cpu_ms=60000", "--limit", "wall_ms=60000")
    with shell.started("run", "-e", code, *limits) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "one\n"
        errors = iter(process.stderr.readline, "")
        assert next(line for line in errors if without_progress(line)) == "two\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (out, "one" in err, "two" in err) == ("", False, False)


def test_json_is_the_answer_and_nothing_else(shell: CommandLine):
    ended = shell.rookery("run", "-e", "print('one')\n1 + 1", "--session", "mine", "--json")
    assert (ended.code, ended.err) == (0, "")
    assert (ended.json["status"], ended.json["result"], ended.json["stdout"]) == ("ok", 2, "one\n")
    assert ended.json["session_id"] == "mine"
    assert ended.json["run_id"]
    failed = shell.rookery("run", "-e", "1 / 0", "--json")
    assert (failed.code, failed.err, failed.json["status"]) == (1, "", "runtime_error")


def test_an_error_is_shown_with_its_line_and_what_to_do(shell: CommandLine):
    ended = shell.rookery("run", "-e", "a = 1\nif a:\n\tb = a + prize('tea')")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.splitlines() == [
        "UNKNOWN_TOOL: NameError: name 'prize' is not defined",
        "  3 | \tb = a + prize('tea')",
        "    | \t        ^^^^^",
        "hint: list_tools() says what can be called",
    ]


def test_what_is_meant_is_underlined_also_where_characters_are_wide(shell: CommandLine):
    ended = shell.rookery("run", "-e", "if 1:\n\tx = '日本' + '京' + prize")
    assert ended.err.splitlines()[1:3] == [
        "  2 | \tx = '日本' + '京' + prize",
        "    | \t                    ^^^^^",
    ]


def test_a_cut_stream_is_a_warning_and_no_failure(shell: CommandLine):
    ended = shell.rookery("run", "-e", "print('x' * 99)", "--limit", "max_stdout_bytes=10")
    assert (ended.code, ended.out) == (0, "xxxxxxxxxx\n")
    assert ended.err.startswith("warning STDOUT_EXCEEDED: ")


def test_a_program_comes_from_a_file_or_from_stdin(shell: CommandLine):
    (shell.home / "program.py").write_bytes("\ufeffname = 'säule'\r\nname\r\n".encode())
    (shell.home / "program.ts").write_text("const n: number = 41; result = n + 1")
    (shell.home / "given.json").write_text('{"a": [1, 2]}')
    assert shell.rookery("run", "program.py").out == '"säule"\n'
    assert shell.rookery("run", "program.ts", "--session", "ts").out == "42\n"
    for said in (["-", "--input", "given=@given.json"], ["--input", "given=@given.json", "-"]):
        with shell.started("run", *said) as process:
            out, err = process.communicate("sum(given['a'])")
        assert (process.returncode, out, without_progress(err)) == (0, "3\n", "")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "nothing to run"),
        (["-e", "1", "program.py"], "more than one of a file, -e"),
        (["nowhere.py"], "nowhere.py: No such file"),
        (["--nonsense"], "Unknown option: --nonsense"),
        (["-e", "1", "--nonsense"], "Unknown option: --nonsense"),
        (["--sesion", "s", "program.py"], "Did you mean --session?"),
        (["program.py", "other.py"], "too many arguments: other.py"),
        (["-e", "1", "--input", "x"], "'x' is not NAME=JSON"),
        (["-e", "1", "--input", "x=text"], "hint: text is quoted: --input 'x=\"text\"'"),
        (["-e", "1", "--limit", "memory=1"], "memory_mb"),
        (["-e", "1", "--limit", "memory_mb=lots"], "'lots' is no number"),
        (["-e", "1", "--language", "cobol"], "one of python, typescript"),
        (["-e", "1", "--mode", "hurry"], "hurry"),
        (["-e", "1", "--session", "a b"], "INVALID_SESSION_ID"),
        (["-e", "1", "--tools", EXAMPLES], "rookery up --tools"),
    ],
)
def test_what_cannot_be_meant_is_2_and_says_what_to_type(
    shell: CommandLine, arguments: list[str], says: str
):
    ended = shell.rookery("run", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.err


def test_a_request_the_node_refuses_is_3_and_a_run_that_fails_is_1(shell: CommandLine):
    assert shell.rookery("run", "-e", "1 / 0", "--session", "retired").code == 1
    url = shell.rookery("auth", "url", "operator").out.strip()
    with connect_sync(url) as client:
        client.ask("admission", "retired", {"input": "Retire"})
    ended = shell.rookery("run", "-e", "1", "--session", "retired")
    assert (ended.code, ended.out) == (3, "")
    assert ended.err.startswith("GUARD_REJECTED: ")


def test_detached_it_prints_the_id_under_which_the_run_goes_on(shell: CommandLine):
    ended = shell.rookery("run", "-e", "price('cake')", "--session", "detached", "--detach")
    assert ended.code == 0
    run_id = ended.out.strip()
    waited = shell.rookery("run", "-e", "1", "--session", "detached", "--json")
    facts = shell.rookery("journal", "tail", "--session", "detached", "--json").lines
    ends = [line["fact"] for line in facts if line["fact"]["type"] == "turn.completed.v1"]
    assert [end["run"] for end in ends] == [run_id, waited.json["run_id"]]
    assert ends[0]["result"]["result"] == 5


def test_without_a_server_at_the_url_it_is_5(alone: CommandLine):
    ended = alone.rookery("run", "-e", "1", "--url", "nats://127.0.0.1:1")
    assert (ended.code, ended.out) == (5, "")


def test_a_server_without_a_node_of_the_realm_is_5(realm: Realm):
    url = realm.server.url_for(Role.CLIENT, realm=realm.name)
    commands = (["run"], ["run", "--detach"], ["validate"])
    with ThreadPoolExecutor() as threads:
        for ended in threads.map(
            lambda words: realm.shell(*words, "-e", "1", "--url", url), commands
        ):
            assert (ended.code, ended.out) == (5, "")


# --- validation -----------------------------------------------------------------------------------


def test_validation_says_what_is_wrong_and_makes_no_session(shell: CommandLine):
    good = shell.rookery("validate", "-e", "1 / 0", "--session", "validated")
    assert (good.code, good.out, good.err) == (0, "ok\n", "")
    bad = shell.rookery("validate", "-e", "x = 1\nimport ssl", "--session", "validated")
    assert (bad.code, bad.out) == (1, "")
    assert bad.err.splitlines()[1:3] == ["  2 | import ssl", "    |        ^^^"]
    printed = shell.rookery("validate", "-e", "1 +", "--session", "validated", "--json")
    assert (printed.code, printed.json["error"]["code"]) == (1, "SYNTAX_ERROR")
    assert shell.rookery("sessions", "show", "validated").code == 4


# --- a node of one's own --------------------------------------------------------------------------


def test_where_no_node_runs_one_is_started_for_the_run_and_stopped_after_it(alone: CommandLine):
    with alone.started("run", "-e", "x = price('tea')\nx", "--tools", EXAMPLES) as process:
        out, err = process.communicate()
    assert (process.returncode, out) == (0, "3\n")
    said = [line for line in err.splitlines() if not line.startswith("stopping: ")]
    assert not said, "a node says that it stops only if that takes a while"
    with alone.started("run", "-e", "x + 1") as process:
        assert process.communicate()[0] == "4\n", "the session is on the store"
    with EmbeddedServer(alone.home / "store", admin=True):
        assert alone.rookery("journal", "verify").code == 0


def test_a_run_that_takes_its_time_says_what_it_waits_for_and_ends_with_ctrl_c(alone: CommandLine):
    (alone.home / "slowtools.py").write_text(SLOW)
    arguments = ("-e", "await slow(50)", "--timeout-ms", "60000", "--tools", "slowtools:slow")
    with alone.started("run", *arguments) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("run "), line
        assert line.endswith(" waits for slow\n")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    assert err.endswith(" is cancelled\n")
    with EmbeddedServer(alone.home / "store", admin=True):
        facts = [line["fact"] for line in alone.rookery("journal", "tail", "--json").lines]
    (cancelled,) = [fact for fact in facts if fact["type"] == "turn.cancelled.v1"]
    assert msgspec.convert(cancelled["run"], str) in line
