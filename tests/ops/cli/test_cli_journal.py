"""The journal on the command line: followed, read backwards, verified and exported."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.ops.fixtures import Realm


def test_tail_prints_the_last_facts_in_order(realm: Realm):
    realm.write("one", 3)
    lines = realm.rookery("journal", "tail", "-n", "3", "--json").lines
    assert [line["position"] for line in lines] == ["2.2", "3.1", "3.2"]
    assert lines[-1]["fact"]["type"] == "session.registered.v1"
    text = realm.rookery("journal", "tail", "-n", "1").out
    assert text.split()[0] == "3.2"
    assert "one  session.registered  run=r1  session_id_in=one" in text


def test_tail_looks_back_as_far_as_it_must_for_what_is_selected(realm: Realm):
    realm.write("rare", 1)
    realm.write("busy", 30)
    selected = realm.rookery("journal", "tail", "-n", "2", "--session", "rare", "--json").lines
    assert [line["position"] for line in selected] == ["1.1", "1.2"]
    assert realm.rookery("journal", "tail", "--family", "node").out == ""


@pytest.mark.parametrize("options", [("--session", "a.b"), ("--family", "*"), ("-n", "0")])
def test_a_selection_that_matches_nothing_is_a_usage_error(realm: Realm, options):
    assert realm.rookery("journal", "tail", *options).code == 2


@pytest.mark.parametrize("command", [("journal", "tail"), ("journal", "export"), ("watch",)])
def test_an_unknown_family_is_refused_with_the_known_ones(realm: Realm, command):
    realm.write("one", 1)
    ended = realm.rookery(*command, "--family", "nosuch")
    assert (ended.code, ended.out) == (2, "")
    assert "'nosuch' is no family of facts" in ended.err
    assert "one of approval, code, conversation, hook, lease" in ended.err


def test_a_whole_journal_is_verified(realm: Realm):
    realm.write("one", 3)
    realm.write("two", 2)
    assert realm.rookery("journal", "verify", "--json").json == {
        "ok": True,
        "messages": 5,
        "verified": 5,
        "entities": 2,
        "headless": 0,
    }
    assert realm.rookery("journal", "verify").out.startswith("ok: 5 messages of 2 entities")


def test_verify_names_the_first_broken_sequence(realm: Realm):
    realm.write("one", 4, broken_at=3)
    ended = realm.rookery("journal", "verify", "--json")
    assert ended.code == 1
    assert ended.json["error"]["code"] == "CHAIN_BROKEN"
    assert "message 3 of session/one" in ended.json["error"]["message"]
    (damaged,) = ended.json["damaged"]
    assert (damaged["sequence"], damaged["entity"], damaged["code"]) == (
        3, "session/one", "CHAIN_BROKEN",
    )  # fmt: skip


def test_an_export_is_verified_anywhere_until_a_byte_of_it_changes(realm: Realm, tmp_path: Path):
    realm.write("one", 3)
    file = tmp_path / "journal.jsonl"
    ended = realm.rookery("journal", "export", str(file))
    assert ended.out == f"3 messages in {file}\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal.jsonl"]
    verified = realm.rookery("journal", "verify", str(file), "--json")
    assert (verified.code, verified.json["verified"]) == (0, 3)
    good = file.read_bytes()
    file.write_bytes(good.replace(b"RegisterSession", b"registerSession", 1))
    ended = realm.rookery("journal", "verify", str(file))
    assert ended.code == 8
    assert ended.err.startswith("EXPORT_CORRUPT: line 2")
    file.write_bytes(good[: good.rindex(b"\n", 0, -1) + 1])
    assert "truncated" in realm.rookery("journal", "verify", str(file)).err


def test_an_export_may_be_of_one_session_and_go_to_stdout(realm: Realm, tmp_path: Path):
    realm.write("one", 2)
    realm.write("two", 2)
    ended = realm.rookery("journal", "export", "--session", "two")
    assert [line["sequence"] for line in ended.lines[1:-1]] == [3, 4]
    file = tmp_path / "two.jsonl"
    file.write_text(ended.out)
    assert realm.rookery("journal", "verify", str(file)).code == 0


def test_a_file_that_cannot_be_read_or_written_is_a_usage_error(realm: Realm, tmp_path: Path):
    realm.write("one", 1)
    missing = tmp_path / "no" / "such.jsonl"
    for command in ("verify", "export"):
        ended = realm.rookery("journal", command, str(missing))
        assert ended.code == 2
        assert "No such file" in ended.err


def test_watch_prints_new_facts_and_ends_cleanly(realm: Realm):
    realm.write("one", 2)
    with realm.started("watch", "--json", "--from", "2") as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        first = [msgspec.json.decode(watching.stdout.readline()) for _ in range(2)]
        assert [line["position"] for line in first] == ["2.1", "2.2"]
        realm.write("one", 1)
        assert msgspec.json.decode(watching.stdout.readline())["position"] == "3.1"
        watching.send_signal(signal.SIGINT)
        assert watching.wait(30) == 0
        assert watching.stderr.read() == ""


def test_watch_selects_facts_by_run(realm: Realm):
    realm.write("one", 1)
    with realm.started("watch", "--run", "r1", "--from", "1") as watching:
        assert watching.stdout is not None
        line = watching.stdout.readline()
    assert line.split()[0] == "1.2"
    assert "session.registered" in line


def test_a_closed_pipe_ends_the_command_without_an_error(realm: Realm):
    realm.write("one", 1)
    with realm.started("watch", "--from", "1") as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        watching.stdout.readline()
        watching.stdout.close()
        realm.write("one", 1)
        assert watching.wait(30) == 0
        assert watching.stderr.read() == ""


def test_an_export_goes_through_a_link_and_leaves_it(realm: Realm, tmp_path: Path):
    realm.write("one", 2)
    file, link = tmp_path / "elsewhere.jsonl", tmp_path / "link.jsonl"
    link.symlink_to(file)
    assert realm.rookery("journal", "export", str(link)).code == 0
    assert link.is_symlink()
    assert realm.rookery("journal", "verify", str(file)).code == 0
    assert not list(tmp_path.glob("*.part"))


def test_an_export_into_a_pipe_is_read_at_its_other_end(realm: Realm, tmp_path: Path):
    realm.write("one", 2)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reading:
        try:
            assert realm.rookery("journal", "export", str(pipe)).code == 0
            assert pipe.is_fifo(), "it was not replaced by a file"
            out, _ = reading.communicate(timeout=90)
        finally:
            reading.kill()
    assert len(out.splitlines()) == 2 + 2


def test_an_export_to_a_full_device_is_refused_and_the_device_stays(realm: Realm):
    realm.write("one", 2)
    ended = realm.rookery("journal", "export", "/dev/full")
    assert (ended.code, ended.err) == (2, "INVALID_ARGUMENT: /dev/full: No space left on device\n")
    assert Path("/dev/full").is_char_device()
