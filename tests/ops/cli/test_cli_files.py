"""``rookery files`` and the artifacts of runs, as a user types them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ops.fixtures import CommandLine


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    user = CommandLine(tmp_path_factory.mktemp("files"))
    with user.served():
        yield user


def test_files_are_put_listed_got_and_removed(shell: CommandLine):
    (shell.home / "in.csv").write_text("a,b\n")
    put = shell.rookery("files", "put", "desk", "data/in.csv", "in.csv")
    assert put.out.startswith("data/in.csv: 4 bytes, recorded as run ")
    assert shell.rookery("files", "list", "desk").out == "/work/data/\n/work/data/in.csv  4\n"
    assert shell.rookery("files", "get", "desk", "data/in.csv").out == "a,b\n"
    assert shell.rookery("files", "get", "desk", "data/in.csv", "--out", "copy.csv").out == ""
    assert (shell.home / "copy.csv").read_text() == "a,b\n"
    assert shell.rookery("files", "remove", "desk", "data/in.csv").code == 0
    assert shell.rookery("files", "list", "desk").out == "/work/data/\n"
    with shell.started("files", "put", "desk", "typed.txt", "-") as process:
        process.communicate("from stdin")
    assert shell.rookery("files", "get", "desk", "typed.txt").out == "from stdin"


def test_what_cannot_be_done_has_a_code_and_an_exit_code(shell: CommandLine):
    shell.rookery("run", "-e", "1", "--session", "odd")
    for arguments, code in (
        (("put", "odd", "/etc/x", "copy.csv"), "PERMISSION_DENIED"),
        (("get", "odd", "nothing"), "FILE_NOT_FOUND"),
        (("remove", "odd", "nothing"), "FILE_NOT_FOUND"),
        (("list", "nowhere"), "SESSION_NOT_FOUND"),
        (("remove", "nowhere", "a.txt"), "SESSION_NOT_FOUND"),
        (("put", "odd", ""), "INVALID_ARGUMENT: '' names a folder"),
        (("put", "odd", "out", "copy.csv"), "INVALID_ARGUMENT: 'out' names a folder"),
    ):
        (shell.home / "copy.csv").touch()
        ended = shell.rookery("files", *arguments)
        assert (ended.code > 1, code in ended.err) == (True, True), ended
    missing = shell.rookery("files", "put", "odd", "x", "no-such-file")
    assert (missing.code, "no-such-file: No such file" in missing.err) == (2, True)


def test_a_run_gets_files_and_lists_its_artifacts(shell: CommandLine):
    (shell.home / "rows.csv").write_text("1\n2\n")
    code = (
        "import os\nos.mkdir('out')\n"
        "open('out/sum.txt', 'w').write(str(sum(map(int, open('rows.csv')))))"
    )
    ended = shell.rookery("run", "-e", code, "--session", "made", "--put", "rows.csv=rows.csv")
    assert (ended.out, ended.err) == ("1\n", "artifact /work/out/sum.txt: text/plain, 1 bytes\n")
    run_id = shell.rookery("runs", "list", "--session", "made", "--json").json["runs"][0]["run_id"]
    shown = shell.rookery("runs", "show", run_id).out
    assert "made     /work/out/sum.txt: text/plain, 1 bytes" in shown
    assert shell.rookery("runs", "artifact", run_id, "sum.txt").out == "3"
    refused = shell.rookery("runs", "artifact", run_id, "other.txt")
    assert f"run {run_id} has no artifact 'other.txt'\n" in refused.err
    assert "hint: its artifacts: /work/out/sum.txt" in refused.err


def test_control_characters_of_programs_do_not_reach_the_terminal(shell: CommandLine):
    write = "import os\nos.mkdir('out')\nopen('out/\\x1b[31mred', 'w').write('1')"
    written = shell.rookery("run", "-e", write, "--session", "red")
    listed = shell.rookery("files", "list", "red")
    raised = shell.rookery("run", "-e", r"raise ValueError('a\nb\x1b[2J')", "--session", "red")
    run_id = shell.rookery("runs", "list", "--session", "red", "--json").json["runs"][0]["run_id"]
    shown = shell.rookery("runs", "show", run_id)
    assert "artifact /work/out/\ufffd[31mred: " in written.err
    assert "/work/out/\ufffd[31mred  1\n" in listed.out
    assert "ValueError: a\nb\ufffd[2J" in raised.err
    assert "ValueError: a b\ufffd[2J" in shown.out
    assert "\x1b" not in written.err + listed.out + raised.err + shown.out
