"""Probes through the standard library: files, code made at run time, imports, archives, pickles,
databases, regular expressions."""

from __future__ import annotations

from tests.sandbox.probes.probe import (
    CPU,
    DENIED,
    MEMORY,
    OK,
    RAISES,
    STACK,
    SYNTAX,
    UNSUPPORTED,
    End,
    Probe,
    direct,
)

__all__ = ["PROBES"]

_SHORT = {"cpu_ms": 80}
_FULL = "a session may take"
_FILES: tuple[tuple[str, End, str], ...] = (
    ("f = open('a', 'wb')\nwhile True: f.write(bytes(1 << 16))", RAISES, _FULL),
    ("f = open('a', 'wb')\nf.truncate(1 << 40)", RAISES, _FULL),
    ("f = open('a', 'wb', buffering=0)\nf.seek(1 << 50)\nf.write(b'x')", RAISES, _FULL),
    ("import os\nos.truncate(os.open('a', os.O_RDWR | os.O_CREAT), 1 << 62)", RAISES, _FULL),
    ("x = [open(f'f{n}', 'w') for n in range(9999)]", RAISES, "file descriptors"),
    ("import os\nfor n in range(10 ** 6): os.mkdir('d'); os.chdir('d')", RAISES, ""),
    ("import os\nos.makedirs('/'.join('d' * 3000))", STACK, ""),
    ("import os\nos.mkdir('/'.join('ab' for _ in range(9999)))", RAISES, "too long"),
    ("import os\nos.symlink('.', 'loop')", DENIED, "no links"),
    ("name = '/work/' + '../' * 50 + 'etc/passwd'\nopen(name)", DENIED, "outside /work"),
    ("name = '/workshop'\nopen(name, 'w')", DENIED, "outside /work"),
    ("name = '/work/./../proc/self/environ'\nopen(name)", DENIED, "outside /work"),
    ("import os\nos.chdir('/')\nos.rename('work', 'other')", DENIED, "itself"),
    ("import os\nos.rmdir('/')", DENIED, "itself"),
    ("import os\nos.rmdir('/tmp')", DENIED, "itself"),
    ("import os\nos.replace('/tmp', '/work/t')", DENIED, "itself"),
    ("while True: open('/tmp/a', 'ab').write(bytes(1 << 16))", RAISES, _FULL),
    ("open('/tmp/../etc/passwd')", UNSUPPORTED, "outside /work"),
    ("import os\n[os.dup(0) for _ in range(3)]", RAISES, "OSError"),
    ("import os\nos.close(0); os.close(1); os.close(2)\nprint('x')", OK, ""),
    ("import _io\n_io.FileIO('/etc/passwd')", DENIED, "outside /work"),
    ("import io\nio.open_code('/etc/passwd')", DENIED, "outside /work"),
    ("import os\ntype(os.stat.__code__)(*[0] * 18)", RAISES, "TypeError"),
)
_CODE: tuple[tuple[str, End, str], ...] = (
    ("exec('x = 1\\n' * 10 ** 6)", MEMORY, ""),
    ("exec('while True: pass')", CPU, ""),
    ("s = 'exec(s)'\nexec(s)", STACK, ""),
    ("eval('(' * 10 ** 5)", MEMORY, "too complex"),
    ("eval('+'.join('1' * 10 ** 5))", STACK, ""),
    ("compile('[' * 90 + '1' + ' for x in y]' * 90, '', 'eval')", RAISES, ""),
    ("exec('import socket as s; s.create_connection((\"127.0.0.1\", 80))')", DENIED, ""),
    ("exec('import subprocess; subprocess.run([\"ls\"])')", RAISES, "OSError"),
    ("exec('import threading; threading.Thread(target=print).start()')", RAISES, "thread"),
    ("exec('import ctypes')", UNSUPPORTED, "ctypes"),
    ("exec('().__class__.__base__.__subclasses__()[999999]')", RAISES, "IndexError"),
    ("exec(compile('raise SystemExit(5)', '', 'exec'))", RAISES, "SystemExit"),
)
_IMPORTS: tuple[tuple[str, End, str], ...] = (
    ("open('m.py', 'w').write('import m2')\nopen('m2.py', 'w').write('import m')\nimport m\n1",
     OK, ""),
    ("open('m.py', 'w').write('while True: pass')\nimport m", CPU, ""),
    ("open('m.py', 'w').write('1 +')\nimport m", SYNTAX, ""),
    ("open('m.so', 'wb').write(b'\\x7fELF')\nimport sys\nimport m", UNSUPPORTED, "no module"),
    ("open('m.pyc', 'wb').write(bytes(99))\nimport sys.path\n", UNSUPPORTED, "'sys.path'"),
    ("import sys\nclass H:\n    def find_spec(self, *a):\n        while True: pass\n"
     "sys.meta_path.insert(0, H())\nimport wave", CPU, ""),
    ("import sys\nsys.path.append('/python'); import idlelib", UNSUPPORTED, "idlelib"),
    ("import importlib.machinery as m\n"
     "m.ExtensionFileLoader('x', 'x.so').load_module('x')", UNSUPPORTED, "ImportError"),
    ("import zipfile, sys\nwith zipfile.ZipFile('m.zip', 'w') as z: z.writestr('zm.py', 'x = 1')\n"
     "sys.path.append('m.zip')\nimport zm\nzm.x", OK, ""),
)  # fmt: skip
_ARCHIVES: tuple[tuple[str, End, str], ...] = (
    ("import io, zipfile\nb = io.BytesIO()\n"
     "with zipfile.ZipFile(b, 'w', zipfile.ZIP_DEFLATED) as z:\n"
     "    for n in range(9): z.writestr(f'{n}', bytes(4 << 20))\n"
     "zipfile.ZipFile(b).extractall('out')", RAISES, _FULL),
    ("import gzip\nb = gzip.compress(bytes(8 << 20))\nx = [gzip.decompress(b) for _ in range(9)]",
     MEMORY, ""),
    ("import io, zipfile\nb = io.BytesIO()\n"
     "with zipfile.ZipFile(b, 'w') as z: z.writestr('../../etc/evil', 'x')\n"
     "zipfile.ZipFile(b).extractall('out')\nimport os\n[os.listdir('out'), os.listdir('out/etc')]",
     OK, ""),
    ("import io, tarfile\nb = io.BytesIO()\nt = tarfile.open(fileobj=b, mode='w')\n"
     "i = tarfile.TarInfo('../../etc/evil'); t.addfile(i); t.close(); b.seek(0)\n"
     "tarfile.open(fileobj=b).extractall('out')", DENIED, "outside /work"),
    ("import io, tarfile\nb = io.BytesIO()\nt = tarfile.open(fileobj=b, mode='w')\n"
     "i = tarfile.TarInfo('l'); i.type = tarfile.SYMTYPE; i.linkname = '/etc'\n"
     "t.addfile(i); t.close(); b.seek(0)\n"
     "tarfile.open(fileobj=b).extractall('out', filter='fully_trusted')\n"
     "import os\nos.path.exists('out/l')", OK, ""),
    ("import shutil, os\nos.mkdir('d'); shutil.copytree('d', 'd/d/d/d'); "
     "shutil.copytree('.', 'e/e/e/e')", OK, ""),
)  # fmt: skip
_OTHERS: tuple[tuple[str, str, End, str], ...] = (
    ("pickle", "import pickle\nclass A:\n    def __reduce__(self): return eval, ('1/0',)\n"
     "pickle.loads(pickle.dumps(A()))", RAISES, "ZeroDivisionError"),
    ("pickle", "import pickle, io\nclass A:\n    def __reduce__(self): return open, ('/etc/x',)\n"
     "pickle.loads(pickle.dumps(A()))", DENIED, "outside /work"),
    ("pickle", "import marshal\nexec(marshal.loads(marshal.dumps(compile('1/0', '', 'exec'))))",
     RAISES, "ZeroDivisionError"),
    ("memory", "import sqlite3\nc = sqlite3.connect(':memory:')\n"
     "c.execute('select length(randomblob(1 << 29))').fetchone()", MEMORY, ""),
    ("fuel", "import sqlite3\nc = sqlite3.connect(':memory:')\nc.execute('with recursive r(x) as "
     "(select 1 union all select x + 1 from r) select count(*) from r').fetchone()", CPU, ""),
    ("file", "import sqlite3\nc = sqlite3.connect('a.db')\nc.execute('create table t (x)')\n"
     "c.execute('insert into t values (zeroblob(20000000))')\nc.commit()", MEMORY, ""),
    ("fuel", "import re\nre.fullmatch('(a|a)*b', 'a' * 50)", CPU, ""),
    ("fuel", "import re\nre.sub('(.*)*x', '', 'y' * 40)", CPU, ""),
    ("memory", "import re\nre.compile('(' * 50 + 'a{1000}' + '){1000}' * 50)", OK, ""),
    ("recursion", "import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(): f()\nf()", STACK, ""),
    ("fuel", "import asyncio\nasync def f():\n    while True: pass\nasyncio.run(f())", CPU, ""),
    ("recursion", "import asyncio\nasync def f(): return g()\ndef g(): return asyncio.run(f())\n"
     "g()", STACK, ""),
    ("output", "import sys\nwhile True: sys.stdout.buffer.write(b'x' * 9999)", CPU, ""),
    ("environment", "import os\nos.environ['LD_PRELOAD'] = '/work/x.so'\nlen(os.environ)", OK, ""),
    ("sleep", "import asyncio\nasyncio.run(asyncio.sleep(10 ** 9))\n1", OK, ""),
)  # fmt: skip

_RUINED: tuple[tuple[str, str, End], ...] = (
    ("import sys; sys.meta_path.clear(); sys.path.clear()", "import wave", UNSUPPORTED),
    ("import sys; sys.modules.clear()", "import json", RAISES),
    ("import builtins; builtins.open = builtins.__import__ = None", "2", OK),
    ("import os; os.stat = os.listdir = None", "1", OK),
    ("import os; os.chdir('/'); os.chmod('work', 0)", "open('work/a', 'w').write('x')", OK),
)
"""Probes that first break their own session."""


def _limits(end: End) -> dict[str, int]:
    return _SHORT if end == CPU else {"cpu_ms": 8000, "wall_ms": 20_000}


def _probes(kind: str, rows: tuple[tuple[str, End, str], ...]) -> tuple[Probe, ...]:
    return tuple(
        direct(kind, code, code, end, says=says, limits=_limits(end)) for code, end, says in rows
    )


PROBES: tuple[Probe, ...] = (
    *_probes("file", _FILES),
    *_probes("import", _CODE + _IMPORTS),
    *_probes("decompression", _ARCHIVES),
    *(direct("import", f"then {code}", code, end, first=first) for first, code, end in _RUINED),
    *(probe for kind, *row in _OTHERS for probe in _probes(kind, ((row[0], row[1], row[2]),))),
)
