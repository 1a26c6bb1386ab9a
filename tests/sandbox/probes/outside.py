"""Files, the network and the environment: there are none, whatever asks for them."""

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

_MISSING = "FileNotFoundError"
_FILES: tuple[tuple[str, End, str], ...] = (
    ("open(path).read()", RAISES, _MISSING),
    ("open(path, 'w').write('x')", RAISES, _MISSING),
    ("open(path, 'ab').write(b'x')", RAISES, _MISSING),
    ("open('/etc/passwd', 'rb').read()", RAISES, _MISSING),
    ("open('/proc/self/environ', 'rb').read()", RAISES, _MISSING),
    ("open('/proc/self/mem', 'r+b').read(1)", RAISES, _MISSING),
    ("open('../../../../../etc/passwd').read()", RAISES, _MISSING),
    ("open(path + '\\0.txt')", RAISES, "ValueError"),
    ("import io; io.FileIO(path).read()", RAISES, _MISSING),
    ("import codecs; codecs.open(path).read()", RAISES, _MISSING),
    ("import tokenize; tokenize.open(path).read()", RAISES, _MISSING),
    ("import os; os.open(path, os.O_RDWR)", RAISES, "Error"),
    ("import os; os.remove(path)", RAISES, "Error"),
    ("import os; os.rename(path, path + '2')", RAISES, "Error"),
    ("import os; os.symlink(path, folder + '/link')", RAISES, "Error"),
    ("import os; os.link(path, folder + '/link')", RAISES, "Error"),
    ("import os; os.truncate(path, 0)", RAISES, "Error"),
    ("import os; os.utime(path)", RAISES, "Error"),
    ("import os; os.mkdir(folder + '/new')", RAISES, "Error"),
    ("import os; os.rmdir(folder)", RAISES, "Error"),
    ("import os; os.listdir(folder)", RAISES, "Error"),
    ("import os; os.scandir('/')", RAISES, "Error"),
    ("import os; os.stat(path)", RAISES, "Error"),
    ("import os; os.readlink('/proc/self/exe')", RAISES, "Error"),
    ("import os; os.chdir(folder)", RAISES, "Error"),
    ("import posix; posix.open('/', 0)", RAISES, "Error"),
    ("import _io; _io.open_code(path)", RAISES, _MISSING),
    ("import logging; logging.FileHandler(path)", RAISES, _MISSING),
    ("import xml.etree.ElementTree as e; e.parse(path)", RAISES, _MISSING),
    ("import zoneinfo; zoneinfo.ZoneInfo('../../..' + path)", RAISES, "ValueError"),
    ("import importlib.machinery as m; m.SourceFileLoader('x', path).get_data(path)", RAISES,
     _MISSING),
)  # fmt: skip
_NOTHING_THERE: tuple[tuple[str, object], ...] = (
    ("import os; result = [os.path.exists(p) for p in (path, folder, '/')]", [False] * 3),
    ("import os; result = os.access(path, os.R_OK)", False),
    ("import os; result = list(os.walk('/'))", []),
    ("import linecache; result = linecache.getlines(path)", []),
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
    ("import asyncio\nasyncio.run(asyncio.sleep(0))", RAISES, "top-level await"),
)  # fmt: skip

_ENVIRONMENT: tuple[tuple[str, object], ...] = (
    ("import os; result = dict(os.environ)", {}),
    ("import os; result = os.getenv(variable)", None),
    ("import posix; result = len(posix.environ)", 0),
    ("import os; os.environ[variable] = 'x'; result = os.environ[variable]", "x"),
    ("import os; os.unsetenv(variable); os.putenv(variable, 'x')", None),
    ("import sys; result = sys.argv + sys.orig_argv", []),
    ("import sys; result = [sys.platform, sys.executable]", ["wasi", ""]),
    ("import time; result = [*time.tzname]", ["UTC", "UTC"]),
    ("import os; result = os.getcwd()", "/"),
    ("import os; result = os.getpid()", 42),
)
_NOBODY: tuple[tuple[str, End, str], ...] = (
    ("import os; os.getlogin()", RAISES, "Error"),
    ("import os; os.getuid()", RAISES, "AttributeError"),
    ("import os; os.kill(os.getpid(), 9)", RAISES, "Error"),
    ("import os; os.system('true')", RAISES, "Error"),
    ("import os; os.execv('/bin/sh', ['sh'])", RAISES, "Error"),
    ("import os; os.fork()", RAISES, "Error"),
    ("import _posixsubprocess", UNSUPPORTED, "ModuleNotFoundError"),
    ("import signal; signal.raise_signal(9)", RAISES, "the interpreter stopped"),
)

PROBES: tuple[Probe, ...] = (
    direct("file", "open()", "open(path).read()", UNSUPPORTED),
    direct("network", "import socket", "import socket", UNSUPPORTED),
    direct("environment", "import os", "from os import environ", UNSUPPORTED),
    direct("network", "a tool nobody offers", "fetch_url('http://127.0.0.1')", UNKNOWN),
    *(past("file", *row) for row in _FILES),
    *(past("file", code, OK, value=value) for code, value in _NOTHING_THERE),
    *(past("network", *row) for row in _NETWORK),
    *(past("environment", code, OK, value=value) for code, value in _ENVIRONMENT),
    *(past("environment", *row) for row in _NOBODY),
)
