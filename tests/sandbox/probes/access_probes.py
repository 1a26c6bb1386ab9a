"""Probes that access files, the network and the environment of the host."""

from __future__ import annotations

from tests.sandbox.probes.probe import (
    DENIED,
    OK,
    RAISES,
    UNKNOWN,
    UNSUPPORTED,
    End,
    Probe,
    direct,
    past,
)

__all__ = ["PROBES"]

_DENIED = "PermissionError"
_FILES: tuple[tuple[str, End, str], ...] = (
    ("open(path).read()", DENIED, _DENIED),
    ("open(path, 'w').write('x')", DENIED, _DENIED),
    ("open(path, 'ab').write(b'x')", DENIED, _DENIED),
    ("open('/etc/passwd', 'rb').read()", DENIED, _DENIED),
    ("open('/proc/self/environ', 'rb').read()", DENIED, _DENIED),
    ("open('/proc/self/mem', 'r+b').read(1)", DENIED, _DENIED),
    ("open('../../../../../etc/passwd').read()", DENIED, _DENIED),
    ("open(path + '\\0.txt')", RAISES, "ValueError"),
    ("import io; io.FileIO(path).read()", DENIED, _DENIED),
    ("import codecs; codecs.open(path).read()", DENIED, _DENIED),
    ("import tokenize; tokenize.open(path).read()", DENIED, _DENIED),
    ("import os; os.open(path, os.O_RDWR)", DENIED, _DENIED),
    ("import os; os.remove(path)", DENIED, _DENIED),
    ("import os; os.rename(path, path + '2')", DENIED, _DENIED),
    ("import os; os.symlink(path, folder + '/link')", DENIED, "no links"),
    ("import os; os.link(path, folder + '/link')", DENIED, "no links"),
    ("import os; os.truncate(path, 0)", DENIED, _DENIED),
    ("import os; os.utime(path)", DENIED, _DENIED),
    ("import os; os.mkdir(folder + '/new')", DENIED, _DENIED),
    ("import os; os.rmdir(folder)", DENIED, _DENIED),
    ("import os; os.listdir(folder)", DENIED, _DENIED),
    ("import os; os.scandir('/etc')", DENIED, _DENIED),
    ("import os; os.symlink(path, 'link')", DENIED, "no links"),
    ("import os; os.link(path, 'link')", DENIED, "no links"),
    ("import os; os.chdir('/'); open('etc/passwd')", DENIED, _DENIED),
    ("import os; os.chdir('..'); os.chdir('..'); open('etc/passwd')", DENIED, _DENIED),
    ("open('/work/../etc/passwd')", DENIED, _DENIED),
    ("open(b'/etc/passwd')", DENIED, _DENIED),
    ("open(3)", RAISES, "OSError"),
    ("import pathlib; pathlib.Path('/etc/passwd').read_text()", DENIED, _DENIED),
    ("import shutil; shutil.copy(path, 'x')", DENIED, _DENIED),
    ("import shutil; shutil.rmtree('/')", DENIED, _DENIED),
    ("import shutil; shutil.rmtree('/work')", DENIED, _DENIED),
    ("import tempfile; tempfile.mkdtemp(dir=folder)", DENIED, _DENIED),
    ("import sqlite3; sqlite3.connect(path)", DENIED, _DENIED),
    ("import sqlite3; sqlite3.connect('file:' + path, uri=True)", DENIED, _DENIED),
    ("import _sqlite3; _sqlite3.connect(path)", RAISES, "OperationalError"),
    ("import sqlite3; sqlite3.connect(':memory:').enable_load_extension(True)", RAISES,
     "AttributeError"),
    ("import zipfile; zipfile.ZipFile(path)", DENIED, _DENIED),
    ("import tarfile; tarfile.open(path)", DENIED, _DENIED),
    ("import gzip; gzip.open(path).read()", DENIED, _DENIED),
    ("import fileinput; [*fileinput.input(path)]", DENIED, _DENIED),
    ("import runpy; runpy.run_path(path)", DENIED, _DENIED),
    ("import configparser; configparser.ConfigParser().read_file(open(path))", DENIED, _DENIED),
    ("import os; os.stat(path)", DENIED, _DENIED),
    ("import os; os.readlink('/proc/self/exe')", DENIED, _DENIED),
    ("import os; os.chdir(folder)", DENIED, _DENIED),
    ("import posix; posix.open('/etc', 0)", DENIED, _DENIED),
    ("import _io; _io.open_code(path)", DENIED, _DENIED),
    ("import logging; logging.FileHandler(path)", DENIED, _DENIED),
    ("import xml.etree.ElementTree as e; e.parse(path)", DENIED, _DENIED),
    ("import zoneinfo; zoneinfo.ZoneInfo('../../..' + path)", RAISES, "ValueError"),
    ("import importlib.machinery as m; m.SourceFileLoader('x', path).get_data(path)", DENIED,
     _DENIED),
)  # fmt: skip
_NOTHING_THERE: tuple[tuple[str, object], ...] = (
    ("import os; result = [os.path.exists(p) for p in (path, folder, '/etc')]", [False] * 3),
    ("import os; result = os.access(path, os.R_OK)", False),
    (
        "import os; result = list(os.walk('/'))",
        [["/", ["tmp", "work"], []], ["/tmp", [], []], ["/work", [], []]],
    ),
    ("import glob; result = glob.glob('/*') + glob.glob('/etc/*')", ["/tmp", "/work"]),
    ("import pathlib; result = [str(p) for p in pathlib.Path('/').rglob('*')]", ["/tmp", "/work"]),
    ("import linecache; result = linecache.getlines(path)", []),
    ("import mimetypes; result = mimetypes.read_mime_types(path)", None),
    (
        "import sqlite3; c = sqlite3.connect('x'); c.execute(f'ATTACH {path!r} AS y')\n"
        "result = c.execute('SELECT count(*) FROM y.sqlite_master').fetchall()",
        [[0]],
    ),
    (
        "import os\nresult = 0\nfor n in range(64):\n"
        "    try: result += len(os.read(n, 4096))\n    except OSError: pass",
        0,
    ),
    (
        "import os\nresult = 0\nfor n in range(3, 64):\n"
        "    try: result += os.write(n, b'x')\n    except OSError: pass",
        0,
    ),
)

_NETWORK: tuple[tuple[str, End, str], ...] = (
    ("import socket; socket.create_connection(('127.0.0.1', port))", DENIED, "PermissionError"),
    ("import socket; socket.socket().connect(('127.0.0.1', port))", DENIED, "PermissionError"),
    ("import socket as s; s.socket(s.AF_INET6).connect(('::1', port))", DENIED,
     "PermissionError"),
    ("import socket as s; s.socket(s.AF_INET, s.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', port))",
     DENIED, "PermissionError"),
    ("import socket; socket.socket().bind(('127.0.0.1', 0))", DENIED, "PermissionError"),
    ("import socket; socket.create_server(('127.0.0.1', 0))", DENIED, "PermissionError"),
    ("import socket; socket.gethostbyname('localhost')", DENIED, "PermissionError"),
    ("import socket; socket.getaddrinfo('example.com', 443)", DENIED, "PermissionError"),
    ("import socket; socket.socket(fileno=3).send(b'x')", RAISES, "Error"),
    ("import socket; socket.socketpair()", DENIED, "PermissionError"),
    ("import asyncio\nasync def f(): await asyncio.open_connection('127.0.0.1', port)\n"
     "asyncio.get_event_loop_policy().new_event_loop().run_until_complete(f())", DENIED,
     "PermissionError"),
    ("import asyncio\nasync def f(): await asyncio.open_connection('127.0.0.1', port)\n"
     "asyncio.run(f())", DENIED, "PermissionError"),
    ("import urllib.request as u; u.urlopen(f'http://127.0.0.1:{port}')", RAISES, "URLError"),
    ("import http.client as h; h.HTTPConnection('127.0.0.1', port).request('GET', '/')", DENIED,
     "PermissionError"),
)  # fmt: skip

_ENVIRONMENT: tuple[tuple[str, object], ...] = (
    ("import os; result = dict(os.environ)", {}),
    ("import os; result = os.getenv(variable)", None),
    ("import posix; result = len(posix.environ)", 0),
    ("import os; os.environ[variable] = 'x'; result = os.environ[variable]", "x"),
    ("import os; os.unsetenv(variable); os.putenv(variable, 'x')", None),
    ("import sys; result = sys.argv + sys.orig_argv", ["main.py"]),
    ("import sys; result = [sys.platform, sys.executable]", ["wasi", ""]),
    ("import time; result = [*time.tzname]", ["UTC", "UTC"]),
    ("import os; result = os.getcwd()", "/work"),
    ("import os; result = os.getpid()", 42),
)
_NOBODY: tuple[tuple[str, End, str], ...] = (
    ("import os; os.getlogin()", RAISES, "Error"),
    ("import os; os.getuid()", RAISES, "AttributeError"),
    ("import os; os.kill(os.getpid(), 9)", DENIED, "no process"),
    ("import os; os.system('true')", DENIED, "no process"),
    ("import os; os.execv('/bin/sh', ['sh'])", RAISES, "Error"),
    ("import os; os.fork()", RAISES, "Error"),
    ("import _posixsubprocess", UNSUPPORTED, "ModuleNotFoundError"),
    ("import signal; signal.raise_signal(9)", RAISES, "the interpreter stopped"),
)

PROBES: tuple[Probe, ...] = (
    direct("file", "open()", "open('/etc/passwd').read()", UNSUPPORTED),
    direct("network", "import socket", "import socket", UNSUPPORTED),
    direct("environment", "import ctypes", "from ctypes import CDLL", UNSUPPORTED),
    direct("network", "a tool that is not offered", "fetch_url('http://127.0.0.1')", UNKNOWN),
    *(past("file", *row) for row in _FILES),
    *(past("file", code, OK, value=value) for code, value in _NOTHING_THERE),
    *(past("network", *row) for row in _NETWORK),
    *(past("environment", code, OK, value=value) for code, value in _ENVIRONMENT),
    *(past("environment", *row) for row in _NOBODY),
)
