"""The command line in a shell: exit codes, streams, and no Python tracebacks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rookery.ops.cli import app
from rookery.ops.cli.output import exit_code
from rookery.schemas.errors import CodedError, Failed, Refused
from tests.ops.fixtures import ROOKERY, Ended, Realm, clean_environment, rookery

COMMANDS = (
    "up",
    "run",
    "validate",
    "watch",
    "runs",
    "sessions",
    "tools",
    "nodes",
    "realm",
    "journal",
    "inbox",
    "config",
    "doctor",
    "bench",
    "machine",
    "version",
)


@pytest.fixture
def alone(tmp_path: Path):
    """A user on whose machine nothing runs."""

    def run(*arguments: str, **variables: str) -> Ended:
        environment = clean_environment(tmp_path) | variables
        return rookery(*arguments, environment=environment, directory=tmp_path)

    return run


def test_help_names_every_command_and_loads_none_of_them():
    program = (
        "import sys; from rookery.ops.cli import main; code = main(['--help']);"
        "assert not {'nats', 'pykka', 'prometheus_client'} & set(sys.modules); sys.exit(code)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(COMMANDS) <= set(done.stdout.split())


def test_the_help_of_a_group_names_all_its_commands_or_none():
    for group in (name for name in app if not name.startswith("-")):
        words = set(re.findall(r"[a-z]+", app[group].help.lower()))
        commands = {name for name in app[group] if not name.startswith("-")}
        assert commands <= words or not commands & words, f"rookery {group}: {commands - words}"


def test_a_shell_sees_the_exit_code_and_never_a_traceback(realm: Realm):
    realm.write("one", 2, broken_at=2)
    for code, arguments in {
        0: ("journal", "tail"),
        1: ("journal", "verify"),
        2: ("journal", "nonsense"),
        3: ("journal", "tail", "--url", realm.server.address.replace("//", "//wrong@")),
        4: ("sessions", "show", "other"),
        5: ("journal", "tail", "--realm", "nobodys"),
    }.items():
        ended = realm.shell(*arguments)
        assert ended.code == code
        assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["config", "show", "--nonsense"], ["inbox", "dead", "show", "x"]]
)
def test_a_usage_error_is_2_and_says_what_to_type(alone, arguments):
    ended = alone(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("INVALID_ARGUMENT: ")
    assert "--help` lists options" in ended.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["runs", "show"], "RUN is missing"),
        (["runs", "resolve", "x"], "CALL is missing"),
        (["nodes", "drain"], "NODE is missing"),
        (["runs", "list", "--limit"], "--limit requires an argument"),
        (["runs", "list", "--sesion", "x"], "Did you mean --session?"),
    ],
)
def test_a_usage_error_names_what_is_wrong_as_the_help_does(alone, arguments, says):
    ended = alone(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.err.splitlines()[0]


def test_with_json_an_error_is_an_object_on_stdout(alone):
    ended = alone("config", "show", "--json", ROOKERY_LOG_LEVLE="info")
    assert (ended.code, ended.err) == (2, "")
    assert ended.json["error"]["code"] == "CONFIG_UNKNOWN_KEY"
    assert "ROOKERY_LOG_LEVEL" in ended.json["error"]["hint"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["watch"],
        ["runs", "list"],
        ["runs", "show", "r"],
        ["nodes", "list"],
        ["sessions", "list"],
        ["journal", "tail"],
        ["inbox", "dead", "list"],
    ],
)
def test_without_a_server_every_reader_ends_with_5(alone, arguments):
    ended = alone(*arguments, "--json")
    assert ended.code == 5
    assert ended.json["error"]["code"] == "SERVER_UNREACHABLE"
    assert "rookery up" in ended.json["error"]["hint"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Failed("CHAIN_BROKEN", "m"), 1),
        (Refused("CONFIG_INVALID", "m"), 2),
        (Refused("INVALID_SESSION_ID", "m"), 2),
        (Refused("STORE_IN_USE", "m"), 3),
        (Refused("UNAUTHORIZED", "m"), 3),
        (Refused("DURABILITY_UNKNOWN", "m"), 3),
        (Refused("SESSION_NOT_FOUND", "m"), 4),
        (Refused("DEAD_LETTER_NOT_FOUND", "m"), 4),
        (Failed("SERVER_UNREACHABLE", "m"), 5),
        (Refused("SERVER_NOT_FOUND", "m"), 5),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error: CodedError, code: int):
    assert exit_code(error) == code


def test_config_show_prints_every_value_with_its_origin_and_no_token(alone):
    ended = alone(
        "config", "show", "--origin", "--json", "--realm", "mine", NATS_URL="nats://s3cret@h:1"
    )
    assert ended.code == 0
    assert ended.json["realm"] == {"value": "mine", "origin": "flag"}
    assert ended.json["url"] == {"value": "nats://***@h:1", "origin": "environment NATS_URL"}
    assert ended.json["quotas.queue_length_max"] == {"value": 1000, "origin": "default"}
    table = alone("config", "show", NATS_URL="nats://s3cret@h:1")
    assert "s3cret" not in ended.out + table.out
    assert "quotas.queue_length_max" in table.out


def test_common_options_may_precede_the_command(alone):
    before = alone("--realm", "mine", "--json", "config", "show")
    assert before.code == 0
    assert before.json["realm"] == "mine"
    assert alone("--json").code == 2


def test_config_show_reads_the_file_of_the_option(alone, tmp_path):
    (tmp_path / "mine.toml").write_text('realm = "filed"')
    ended = alone("config", "show", "--config", "mine.toml", "--json")
    assert ended.json["realm"] == "filed"


def test_version_says_what_runs_here(alone):
    assert set(alone("version", "--json").json) == {"rookery", "python"}
    assert alone("version").out.startswith("rookery ")
    assert alone("--version").out.strip() == alone("version", "--json").json["rookery"]


def test_bench_lists_what_there_is_and_refuses_what_there_is_not(alone):
    assert "baseline" in alone("bench", "--json").json
    ended = alone("bench", "nonsense")
    assert ended.code == 2
    assert "baseline" in ended.err


def test_sessions_are_listed_and_shown(realm: Realm):
    realm.write("one", 2)
    realm.write("two", 1)
    listed = realm.rookery("sessions", "list", "--json")
    assert listed.code == 0
    assert listed.json["total"] == 2
    assert {session["meta"]["id"] for session in listed.json["sessions"]} == {"one", "two"}
    table = realm.rookery("sessions", "list")
    assert table.out.split()[:2] == ["SESSION", "PHASE"]
    assert "\x1b" not in table.out
    shown = realm.rookery("sessions", "show", "one")
    assert shown.code == 0
    assert shown.out.splitlines()[0].split() == ["session", "one"]


def test_an_unknown_session_is_4(realm: Realm):
    realm.write("one", 1)
    ended = realm.rookery("sessions", "show", "other")
    assert (ended.code, ended.out) == (4, "")
    assert ended.err.startswith("SESSION_NOT_FOUND: ")


def test_a_realm_that_was_never_served_is_5_and_is_not_created(realm: Realm):
    for _ in range(2):
        ended = realm.rookery("journal", "tail")
        assert ended.code == 5
        assert f"rookery up --realm {realm.name}" in ended.err


def test_a_wrong_credential_is_refused_with_3(realm: Realm):
    for wrong in ("wrong@", "default.node:wrong@"):
        url = realm.server.address.replace("//", f"//{wrong}")
        ended = realm.rookery("journal", "tail", "--url", url)
        assert ended.code == 3
        assert ended.err.startswith("UNAUTHORIZED: ")
        assert "wrong" not in ended.err


def test_dead_letters_are_listed_shown_retried_and_dropped(realm: Realm):
    realm.bury("s1", b'{"code":"1"}')
    realm.bury("s2", b"\xff")
    listed = realm.rookery("inbox", "dead", "list", "--json").json
    assert [(d["number"], d["verb"], d["key"], d["code"]) for d in listed] == [
        (1, "run", "s1", "COMMAND_QUARANTINED"),
        (2, "run", "s2", "COMMAND_QUARANTINED"),
    ]
    assert "it failed three times" in realm.rookery("inbox", "dead", "list").out
    shown = realm.rookery("inbox", "dead", "show", "1", "--json").json
    assert shown["body"] == '{"code":"1"}'
    assert realm.rookery("inbox", "dead", "show", "2", "--json").json["body_base64"] == "/w=="
    assert realm.rookery("inbox", "dead", "retry", "1").code == 0
    assert realm.rookery("inbox", "dead", "drop", "2").code == 0
    assert realm.rookery("inbox", "dead", "list").out == "no dead letters\n"
    for action in ("show", "retry", "drop"):
        assert realm.rookery("inbox", "dead", action, "2").code == 4


# --- what cannot be said or written ---------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "-e", "\udcff\udcfe"],
        ["runs", "show", "\udcff"],
        ["runs", "cancel", "run", "--reason", "\udcff"],
        ["tools", "describe", "\udcff"],
    ],
)
def test_an_argument_that_is_not_utf_8_is_refused(realm: Realm, arguments: list[str]):
    ended = realm.shell(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("INVALID_ARGUMENT: argument '\\udcff")


@pytest.mark.parametrize("arguments", [["journal", "tail"], ["journal", "tail", "--json"]])
@pytest.mark.parametrize("buffered", ["", "1"])
def test_a_full_disk_behind_stdout_is_a_line_and_an_exit_code_of_its_own(
    realm: Realm, arguments: list[str], buffered: str
):
    realm.write("one", 1)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*ROOKERY, *arguments],
            env=realm.environment | {"PYTHONUNBUFFERED": buffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 74
    assert done.stderr == "cannot write to stdout: No space left on device\n"


def test_where_stdout_is_ascii_other_characters_are_written_as_json_writes_them(realm: Realm):
    wide = "é😀"
    realm.environment["PYTHONIOENCODING"] = "ascii"
    said = realm.shell("sessions", "show", wide, "--json")
    assert said.code == 2
    assert r"\u00e9\ud83d\ude00" in said.out
    assert wide in said.json["error"]["message"]


@pytest.mark.starts_something
@pytest.mark.parametrize("store", ["/proc/x", "/tmp/" + "a" * 300])
def test_a_store_that_cannot_be_there_is_a_wrong_setting(alone, store: str):
    ended = alone("up", "--store", store)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"CONFIG_INVALID: store {store}: ")
