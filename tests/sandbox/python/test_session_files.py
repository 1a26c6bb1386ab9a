"""The files of a session: in its memory, below /work, within a limit, and in every snapshot."""

from __future__ import annotations

import pytest

from rookery.actors.sandbox import Sandbox
from tests.sandbox.session_fixture import TOOLS, Stage, later


def test_files_stay_from_run_to_run_and_sessions_do_not_share_them(sandbox: Sandbox, stage: Stage):
    stage.run("open('a.txt', 'w').write('kept')")
    assert stage.value("open('/work/a.txt').read()") == "kept"
    other = Stage(sandbox, "another")
    assert other.value("import os\nos.listdir()") == []
    other.end()


def test_a_snapshot_and_a_waiting_run_hold_the_files(sandbox: Sandbox, stage: Stage):
    stage.run("import os\nos.makedirs('d/e')\nopen('d/e/a', 'wb').write(bytes(range(256)))")
    stage.wait("f = open('b', 'w'); f.write('1'); x = await approve(); f.write(x); f.close()",
               answer=later("approve"))  # fmt: skip
    taken = sandbox.snapshot(stage.name).data
    copy = sandbox.restore(taken, tools=TOOLS, session_id="copy")
    for name, answer in ((stage.name, "2"), (copy, "3")):
        there = Stage(sandbox, name, create=False)
        there.resume(answer)
        code = "[open('d/e/a', 'rb').read() == bytes(range(256)), open('b').read()]"
        assert there.value(code) == [True, f"1{answer}"]
    Stage(sandbox, copy, create=False).end()


def test_an_open_database_works_after_a_snapshot(sandbox: Sandbox, stage: Stage):
    stage.run("import sqlite3\nc = sqlite3.connect('a.db'); c.execute('create table t (x)')")
    stage.run("c.execute('insert into t values (1)'); f = open('a.txt', 'w'); f.write('half')")
    copy = sandbox.restore(sandbox.snapshot(stage.name).data, tools=TOOLS, session_id="open")
    there = Stage(sandbox, copy, create=False)
    there.run("c.commit(); c.execute('insert into t values (2)'); c.commit(); f.close()")
    code = (
        "[sqlite3.connect('a.db').execute('select sum(x) from t').fetchone(), open('a.txt').read()]"
    )
    assert there.value(code) == [[3], "half"]
    assert stage.value("c.rollback(); f.close()\n" + code) == [[None], "half"]
    there.end()


def test_a_run_that_a_limit_ends_leaves_no_file(stage: Stage):
    assert stage.code("open('a', 'w').write('x')\nwhile True: pass", limits={"cpu_ms": 80}) == (
        "TIMEOUT_CPU"
    )
    assert stage.value("import os\nos.listdir()") == []


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("f = open('a', 'w+'); f.write('one\\ntwo\\n'); f.seek(0); [*f]", ["one\n", "two\n"]),
        ("open('a', 'a').write('1'); open('a', 'a').write('2'); open('a').read()", "12"),
        ("f = open('a', 'wb', buffering=0); f.write(b'xyz'); f.truncate(2); f.tell()", 3),
        ("f = open('a', 'w+b'); f.seek(3); f.write(b'x'); f.seek(0); list(f.read())",
         [0, 0, 0, 120]),
        ("open('a', 'w', newline='\\r\\n').write('x\\n'); list(open('a', 'rb').read())",
         [120, 13, 10]),
        ("open('a', 'w', encoding='utf-16').write('é'); len(open('a', 'rb').read())", 4),
        ("open('a', 'x').close(); open('a').read()", ""),
        ("print('x', file=open('a', 'w')); open('a').read()", "x\n"),
        ("f = open('a', 'w'); [f.fileno() > 2, f.mode, f.name, f.writable(), f.readable()]",
         [True, "w", "a", True, False]),
        ("import os\nfd = os.open('a', os.O_RDWR | os.O_CREAT); os.write(fd, b'abc')\n"
         "os.lseek(fd, 1, 0); [os.read(fd, 9).decode(), os.fstat(fd).st_size]", ["bc", 3]),
        ("import os\nf = open('a', 'w'); f.write('x'); os.remove('a'); f.close(); os.listdir()",
         []),
        ("import os\nopen('a', 'w').write('1'); open('b', 'w').write('2'); os.replace('a', 'b')\n"
         "[os.listdir(), open('b').read()]", [["b"], "1"]),
        ("import os\nos.makedirs('x/y'); os.chdir('x'); [os.getcwd(), os.listdir(), "
         "os.path.abspath('../..//work/x')]", ["/work/x", ["y"], "/work/x"]),
        ("import os\nopen('a', 'w').close(); os.utime('a', (1, 2)); os.chmod('a', 0o400)\n"
         "[os.stat('a').st_mtime, oct(os.stat('a').st_mode), os.access('a', os.W_OK)]",
         [2.0, "0o100400", False]),
        ("from pathlib import Path\nPath('x/y').mkdir(parents=True); Path('x/y/a.py').touch()\n"
         "[str(p) for p in sorted(Path().rglob('*'))]", ["x", "x/y", "x/y/a.py"]),
        ("import shutil, os\nos.mkdir('x'); open('x/a', 'w').write('1'); shutil.copytree('x', 'y')"
         "\nshutil.make_archive('z', 'zip', 'y'); shutil.rmtree('x')\n"
         "shutil.unpack_archive('z.zip', 'w')\n[sorted(os.listdir()), open('w/a').read()]",
         [["w", "y", "z.zip"], "1"]),
        ("import tempfile, os\nwith tempfile.NamedTemporaryFile('w', suffix='.x') as f:\n"
         "    name = f.name\n[name[:5], name[-2:], os.path.exists(name)]",
         ["/tmp/", ".x", False]),
        ("import sqlite3\nc = sqlite3.connect('a.db'); c.execute('create table t (x)')\n"
         "with c: c.executemany('insert into t values (?)', [(1,), (2,)])\n"
         "d = sqlite3.connect('/work/a.db'); d.execute('select sum(x) from t').fetchone()", [3]),
        ("import sqlite3\nc = sqlite3.connect('a.db'); c.execute('create table t (x)')\n"
         "c.commit(); c.close(); open('b.db', 'wb').write(open('a.db', 'rb').read())\n"
         "sqlite3.connect('b.db').execute('select name from sqlite_master').fetchall()", [["t"]]),
        ("open('m.py', 'w').write('def f(): return 7')\nimport m\nm.f()", 7),
        ("import os\nos.mkdir('p'); open('p/__init__.py', 'w').write('from .q import x')\n"
         "open('p/q.py', 'w').write('x = 8')\nimport p\np.x", 8),
        ("with open('/dev/null', 'w') as f: f.write('x')\nopen('/dev/null').read()", ""),
    ],
)  # fmt: skip
def test_files_do_what_files_do(stage: Stage, code: str, value: object):
    assert stage.value(code) == value


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("open('no')", "FileNotFoundError"),
        ("open('no/a', 'w')", "FileNotFoundError"),
        ("open('d')", "IsADirectoryError"),
        ("open('a', 'x')", "FileExistsError"),
        ("open('a/b')", "NotADirectoryError"),
        ("open('a/')", "NotADirectoryError"),
        ("open('a', 'rw')", "ValueError"),
        ("open('a\\0')", "ValueError"),
        ("open('x' * 300, 'w')", "OSError"),
        ("open('a').write('x')", "UnsupportedOperation"),
        ("f = open('a'); f.close(); f.read()", "ValueError"),
        ("os.rmdir('d')", "OSError"),
        ("os.remove('d')", "IsADirectoryError"),
        ("os.mkdir('d')", "FileExistsError"),
        ("os.rename('d', 'd/e/f')", "OSError"),
        ("os.listdir('a')", "NotADirectoryError"),
        ("os.symlink('a', 'b')", "PermissionError"),
        ("os.link('a', 'b')", "PermissionError"),
        ("os.rmdir('/work')", "PermissionError"),
        ("open(outside)", "PermissionError"),
        ("open(outside, 'w')", "PermissionError"),
        ("os.mkdir(outside)", "PermissionError"),
        ("os.chdir(outside)", "PermissionError"),
        ("os.close(77)", "OSError"),
    ],
)
def test_what_files_cannot_do_is_an_exception_the_program_can_catch(
    stage: Stage, code: str, kind: str
):
    stage.run("import io, os\nfrom io import UnsupportedOperation\noutside = '/etc/x'")
    stage.run("os.makedirs('d/e'); open('a', 'w').write('x')")
    assert stage.value(f"try: {code}\nexcept {kind} as e: y = 'caught'\ny") == "caught"
    assert stage.value("[open('a').read(), sorted(os.listdir())]") == ["x", ["a", "d"]]


def test_a_path_outside_that_only_the_run_knows_has_a_code_and_a_hint(stage: Stage):
    outcome = stage.run("where = '/etc/passwd'\nopen(where)")
    assert outcome.error is not None
    assert (outcome.status, outcome.error.code) == ("permission_denied", "PERMISSION_DENIED")
    assert "/work" in outcome.error.message
    assert outcome.error.hint is not None
    assert "list_tools()" in outcome.error.hint


def test_the_limit_on_bytes_is_the_error_of_a_full_disk_and_the_session_lives(stage: Stage):
    code = """
import errno, shutil
try:
    with open('a', 'wb', buffering=0) as f:
        while True: f.write(bytes(1 << 20))
except OSError as error: number = error.errno
[number == errno.ENOSPC, shutil.disk_usage('/work').free < 1 << 20, len(open('a', 'rb').read())]
"""
    assert stage.value(code) == [True, True, 15 << 20]
    code = "import os\nos.remove('a'); open('b', 'wb').write(bytes(9 << 20)); os.listdir()"
    assert stage.value(code) == ["b"]


def test_a_hundred_thousand_files_do_not_fit(stage: Stage):
    code = """
import os
open('large', 'wb').write(bytes(14 << 20))
try:
    for n in range(100_000): open(f'f{n}', 'w').close()
except OSError: stopped = n
for name in os.listdir(): os.remove(name)
[4_000 < stopped < 4_100, os.statvfs('/work').f_bfree]
"""
    assert stage.value(code, limits={"cpu_ms": 20_000, "wall_ms": 60_000}) == [True, 32_768]


def test_folders_are_not_nested_deeper_than_a_path_can_name(stage: Stage):
    code = """
import os, errno
def chain(name, depth):
    os.mkdir(name)
    for _ in range(depth):
        name += '/a'
        os.mkdir(name)
    return name
first, second = chain('x', 400), chain('y', 400)
try: os.rename('x', second + '/m')
except OSError as error: number = error.errno
os.mkdir('out'); open(first + '/f', 'w').write('x'); os.rename('x', 'out/x')
[number == errno.ENAMETOOLONG, sorted(os.listdir()), os.path.isdir(second + '/m')]
"""
    moved = stage.run(code, limits={"cpu_ms": 20_000, "wall_ms": 60_000})
    assert moved.result == [True, ["out", "y"], False]
    (made,) = moved.artifacts
    assert made.artifact_ref == "/work/out/x" + "/a" * 400 + "/f"


def test_removed_files_release_their_bytes(stage: Stage):
    code = """
import os, sqlite3, tempfile, shutil
for n in range(30):
    with tempfile.TemporaryDirectory() as folder:
        open(f'{folder}/a', 'wb').write(bytes(1 << 20))
        os.rename(f'{folder}/a', f'{folder}/b')
        open(f'{folder}/b', 'wb').write(bytes(1 << 10))
        connection = sqlite3.connect(f'{folder}/c'); connection.execute('create table t (x)')
        connection.commit(); connection.close()
    with tempfile.TemporaryFile() as file: file.write(bytes(1 << 20))
f = open('x', 'w'); os.remove('x'); f.write('x'); g = os.dup(f.fileno()); f.close(); os.close(g)
current_policy()['files']['size_bytes']
"""
    assert stage.value(code) == 0
