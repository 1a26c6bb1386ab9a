"""The files of a TypeScript session, by node's ``fs``: in its memory, below /work, within a limit,
and in every snapshot.
"""

from __future__ import annotations

import pytest

from rookery.actors.sandbox import FilesStep, Sandbox, StepEnded
from rookery.actors.sandbox.typescript import JavaScriptGuest
from rookery.actors.sandbox.typescript.build import JavaScriptBuild
from rookery.schemas.run import FileInput, Language
from tests.builds import own_build
from tests.sandbox.runtime.test_guest_registry import Published, opened
from tests.sandbox.session_fixture import NOW_MS, TOOLS, Stage, later
from tests.sandbox.typescript.test_earlier_typescript import earlier

FS = "import fs from 'node:fs'\n"


def test_files_stay_from_run_to_run_and_sessions_do_not_share_them(ts_sandbox: Sandbox, ts: Stage):
    ts.run(f"{FS}fs.writeFileSync('a.txt', 'kept')")
    assert ts.value("fs.readFileSync('/work/a.txt', 'utf8')") == "kept"
    other = Stage(ts_sandbox, "another", language=Language.TYPESCRIPT)
    assert other.value("require('fs').readdirSync('.')") == []
    other.end()


def test_a_snapshot_and_a_waiting_run_hold_the_files(ts_sandbox: Sandbox, ts: Stage):
    ts.run(
        f"{FS}fs.mkdirSync('d/e', {{ recursive: true }})\n"
        "fs.writeFileSync('d/e/a', Uint8Array.from({ length: 256 }, (_, n) => n))"
    )
    ts.wait(
        "fs.writeFileSync('b', '1'); fs.appendFileSync('b', await approve())",
        answer=later("approve"),
    )
    taken = ts_sandbox.snapshot(ts.name).data
    copy = ts_sandbox.restore(taken, tools=TOOLS, session_id="copy")
    for name, answer in ((ts.name, "2"), (copy, "3")):
        there = Stage(ts_sandbox, name, create=False, language=Language.TYPESCRIPT)
        there.resume(answer)
        code = "[fs.readFileSync('d/e/a').every((b, n) => b === n), `${fs.readFileSync('b')}`]"
        assert there.value(code) == [True, f"1{answer}"]
    Stage(ts_sandbox, copy, create=False).end()


def test_a_run_that_a_limit_ends_leaves_no_file(ts: Stage):
    source = f"{FS}fs.writeFileSync('a', 'x'); for (;;);"
    assert ts.code(source, limits={"cpu_ms": 80}) == "TIMEOUT_CPU"
    assert ts.value("require('fs').readdirSync('/work')") == []


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("import { readFileSync as read, writeFileSync } from 'fs'\nwriteFileSync('a', 'x')\n"
         "read('a', 'utf-8')", "x"),
        ("import * as fs from 'fs'\nimport path from 'node:path'\n"
         "[typeof fs.default.statSync, path.join('a', '../b')]", ["function", "b"]),
        ("import fs = require('fs')\nfs.existsSync('a')", False),
        ("import { promises as fs } from 'fs'\nawait fs.writeFile('a', 'é')\n"
         ";(await fs.readFile('a')).length", 2),
        ("import { readFile, writeFile } from 'node:fs/promises'\n"
         "await writeFile('a', new Uint8Array([104, 105]))\nawait readFile('a', 'utf8')", "hi"),
        ("import { type Dirent, readdirSync } from 'fs'\nconst d: Dirent[] = []\n"
         "readdirSync('/')", ["tmp", "work"]),
        ("const { existsSync } = await import('node:fs'); existsSync('/work')", True),
        ("const fs = require('fs'); let n = 0\n"
         "fs.writeFile('a', '12', () => fs.stat('a', (_, s) => { n = s.size }))\n"
         "await new Promise(r => setTimeout(r, 1)); n", 2),
        ("import { Buffer } from 'buffer'\nBuffer.from('aé').toString('hex')", "61c3a9"),
        ("import fs from 'fs'\ntry { fs.readFileSync(where) } catch (e: any) { y = e.code }\ny",
         "EACCES"),
    ],
)  # fmt: skip
def test_modules_are_imported_as_programs_import_them(ts: Stage, code: str, value: object):
    ts.run("let where = '/etc/' + 'passwd', y = ''")
    assert ts.value(code) == value


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("fs.readFileSync(outside)", "EACCES"),
        ("fs.writeFileSync('../etc' + '/x', '')", "EACCES"),
        ("fs.writeFileSync('/work/' + '../../etc/x', '')", "EACCES"),
        ("fs.mkdirSync('/tmp/' + '../etc')", "EACCES"),
        ("fs.renameSync('a', '../a')", "EACCES"),
        ("fs.rmSync('/work/', { recursive: true })", "EACCES"),
        ("fs.rmSync('/', { recursive: true })", "EACCES"),
        ("fs.renameSync('/work', '/tmp/x')", "EACCES"),
        ("fs.readFileSync(new URL('file:///etc/passwd'))", "EACCES"),
        ("fs.readFileSync(Buffer.from('/etc/passwd'))", "EACCES"),
        ("fs.symlinkSync('/etc/passwd', 'b')", "EPERM"),
        ("fs.linkSync('a', 'b')", "EPERM"),
        ("fs.writeFileSync('q/'.repeat(600) + 'q', '')", "ENAMETOOLONG"),
        ("fs.openSync('a')", "ERR_FEATURE_UNAVAILABLE_ON_PLATFORM"),
        ("fs.createReadStream('a')", "ERR_FEATURE_UNAVAILABLE_ON_PLATFORM"),
    ],
)
def test_no_path_leaves_the_session(ts: Stage, code: str, reason: str):
    ts.run(f"{FS}let outside = '/etc/' + 'passwd', got = ''\nfs.writeFileSync('a', 'x')")
    got = ts.value(f"try {{ {code} }} catch (e: any) {{ got = e.code }}\ngot")
    assert got == reason
    assert ts.value("[fs.readFileSync('a', 'utf8'), fs.readdirSync('.')]") == ["x", ["a"]]


def test_imports_translate_to_the_same_program_in_this_edition(javascript_guest: JavaScriptGuest):
    """If this fails, add a new edition: sessions continue with the one that they began with."""
    source = (
        "import a, { b as c, 'd' as e, type F } from 'fs'\nimport * as g from \"node:path\"\n"
        "import h = require('fs/promises')\n"
    )
    calls = "a; c; e; g; h; import('buffer'); require('fs')"
    texts = [
        javascript_guest.translate(text, (), lambda: False).text
        for text in (source + calls, "import 'fs'; 1")
    ]
    assert [" ".join(text.split()) for text in texts] == [
        "var a=__import('fs','default'),c=__import('fs','b'),e=__import('fs','d'); "
        "var g=__import('node:path','*'); var h=__import('fs/promises','default'); "
        "a; c; e; g; h; __import.later('buffer'); require('fs')",
        "; 1",
    ]


def test_a_path_outside_that_only_the_run_knows_has_a_code(ts: Stage):
    outcome = ts.run(f"{FS}const where = '/etc/' + 'passwd'\nfs.readFileSync(where)")
    assert outcome.error is not None
    assert (outcome.status, outcome.error.code) == ("permission_denied", "PERMISSION_DENIED")
    assert "list_tools()" in outcome.error.message


@pytest.mark.parametrize(
    "code",
    [
        "import fs from 'fs'\nfs.readFileSync('/etc/passwd')",
        "const { writeFileSync } = require('fs'); writeFileSync('/etc/x', '')",
        "import cp from 'node:child_process'\ncp.execSync('ls')",
        "import http from 'http'\nhttp.get('x')",
        "const os = require('os'); os.cpus()",
        "await import('node:net')",
        "await import('fs' + '')",
        "require(['f', 's'].join(''))",
        "export * from 'fs'",
        "import 'left-pad'",
    ],
)
def test_what_is_outside_is_refused_before_anything_runs(ts: Stage, code: str):
    outcome = ts.run(f"write('log')\n{code}")
    assert outcome.error is not None
    assert (outcome.error.code, outcome.metrics.external_calls_count) == ("UNSUPPORTED_FEATURE", 0)


def test_a_hundred_thousand_files_do_not_fit_and_removed_ones_release_their_bytes(ts: Stage):
    code = f"""{FS}
fs.writeFileSync("large", new Uint8Array(14 << 20))
let stopped = 0, reason = ""
try {{ for (; stopped < 100000; stopped++) fs.writeFileSync(`f${{stopped}}`, "") }}
catch (e: any) {{ reason = e.code }}
for (const name of fs.readdirSync(".")) fs.rmSync(name)
fs.writeFileSync("a", new Uint8Array((16 << 20) - 512))
fs.rmSync("a")
for (let n = 0; n < 40; n++) {{
  fs.mkdirSync("d/e", {{ recursive: true }})
  fs.writeFileSync("d/e/x", new Uint8Array(1 << 20)); fs.writeFileSync("d/y", "")
  fs.renameSync("d/e/x", "d/y"); fs.truncateSync("d/y", 9); fs.copyFileSync("d/y", "d/e/z")
  fs.rmSync("d", {{ recursive: true }})
}}
fs.writeFileSync("a", new Uint8Array((16 << 20) - 512))
;[stopped > 4000 && stopped < 4100, reason]
"""
    limits = {"cpu_ms": 20_000, "wall_ms": 60_000, "memory_mb": 128}
    assert ts.value(code, limits=limits) == [True, "ENOSPC"]
    full = "let why = ''; try { fs.appendFileSync('a', '1') } catch (e: any) { why = e.code }\nwhy"
    assert ts.value(full) == "ENOSPC"
    assert ts.value("fs.truncateSync('a', 1); fs.appendFileSync('a', 'x'); 1") == 1


def test_folders_are_not_nested_deeper_than_a_path_can_name(ts: Stage):
    code = f"""{FS}
const deep = "a/".repeat(400)
fs.mkdirSync(deep, {{ recursive: true }})
let why = ""
for (const name of ["b", "c", "d"]) {{
  fs.mkdirSync(`${{name}}/` + "a/".repeat(400), {{ recursive: true }})
  try {{ fs.renameSync("a", `${{name}}/${{deep}}x`) }} catch (e: any) {{ why = e.code }}
}}
;[why, fs.readdirSync(".")]
"""
    assert ts.value(code) == ["ENAMETOOLONG", ["a", "b", "c", "d"]]


HOSTILE = """
const lie = () => { throw new Error("no") }
Map.prototype.get = Map.prototype.set = Array.prototype.push = Uint8Array.prototype.set = lie
JSON.stringify = () => '{"value":{"data":"eA==","size":1e15}}'
Object.assign = String.prototype.startsWith = Date.now = lie
1
"""


def test_a_program_that_breaks_its_own_prelude_breaks_its_own_session_only(
    ts_sandbox: Sandbox, ts: Stage
):
    ts.run(HOSTILE)
    outcome = ts.run(
        f"{FS}fs.writeFileSync('out', 'x')", files={"a": FileInput(data=b"x" * 70_000)}
    )
    assert outcome.error is not None
    found = ts_sandbox.files(ts.name, FilesStep(op="list", path="/work"))
    assert isinstance(found, StepEnded)
    other = Stage(ts_sandbox, "whole", language=Language.TYPESCRIPT)
    assert other.value(f"{FS}fs.writeFileSync('a', 'x'); fs.readFileSync('a', 'utf8')") == "x"
    other.end()


def test_a_guest_of_an_earlier_edition_has_no_modules_and_takes_no_files(
    tmp_path_factory: pytest.TempPathFactory,
):
    first = earlier()
    build = JavaScriptBuild(
        edition=2, engine=first.engine, transformer=first.transformer, prelude=first.prelude
    )
    with opened(tmp_path_factory.mktemp("second"), own_build(), Published(build.piece)) as sandbox:
        sandbox.rebuild(
            "old",
            seed=b"seed",
            created_ms=NOW_MS,
            language=Language.TYPESCRIPT,
            tools=TOOLS,
            build=build.digest,
        )
        stage = Stage(sandbox, "old", create=False, language=Language.TYPESCRIPT)
        assert stage.code(f"{FS}fs.readdirSync('.')") == "UNSUPPORTED_FEATURE"
        assert stage.code("const fs = require('fs')") == "UNSUPPORTED_FEATURE"
        assert stage.code("1", files={"a": FileInput(text="x")}) == "UNSUPPORTED_FEATURE"
        assert stage.value("1 + 1") == 2
        stage.end()
