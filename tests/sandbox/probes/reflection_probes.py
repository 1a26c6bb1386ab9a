"""Probes by imports, reflection and access to the interpreter's internals."""

from __future__ import annotations

from tests.sandbox.probes.probe import (
    CPU,
    FOREIGN,
    MEMORY,
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

_ABSENT = "ModuleNotFoundError"
_IMPORTS = (
    "_ctypes",
    "_testcapi",
    "cffi",
    "ensurepip",
    "ftplib",
    "mmap",
    "multiprocessing",
    "numpy",
    "pip",
    "pty",
    "requests",
    "smtplib",
    "ssl",
    "_lzma",
    "bz2",
    "webbrowser",
    "wasmtime",
    "rookery",
)
_LOADERS: tuple[tuple[str, End, str], ...] = (
    ("import importlib.machinery as m; m.ExtensionFileLoader('x', path).create_module(None)",
     RAISES, "AttributeError"),
    ("import _imp; _imp.create_dynamic(None)", RAISES, "AttributeError"),
    ("import zipimport; zipimport.zipimporter(path)", UNSUPPORTED, "ZipImportError"),
    ("import sys; sys.path.append(folder); import canary", UNSUPPORTED, _ABSENT),
    ("import sys; sys.modules['os'] = None; import os", UNSUPPORTED, _ABSENT),
    ("import _interpreters", UNSUPPORTED, _ABSENT),
    ("import _thread; _thread.start_new_thread(print, ())", RAISES, "start new thread"),
)  # fmt: skip
_REFLECTION = (
    "().__class__.__mro__[1].__subclasses__()",
    "[].__class__.__base__.__subclasses__()",
    "(lambda: 0).__globals__",
    "__builtins__",
    "print.__self__.__import__('os')",
    "f'{().__class__}'",
    "class A:\n    x = ().__class__",
    "__import__('subprocess')",
    "''.__class__.__name__.__class__",
    "x = int\nx.__subclasses__()",
)
_REACHED: tuple[tuple[str, End, str], ...] = (
    ("getattr((), '__cla' + 'ss__').mro()[1].__subclasses__()[0].no_such", RAISES,
     "AttributeError"),
    ("import gc; [o for o in gc.get_objects() if o is secret]", UNKNOWN, "NameError"),
    ("import sys; sys._getframe(99)", RAISES, "ValueError"),
    ("import gc; gc.freeze(); gc.get_referrers(sys)", UNKNOWN, "NameError"),
    ("import types; f = lambda: 0\n"
     "f.__code__ = f.__code__.replace(co_code=b'\\x97\\0' * 9); f()", RAISES,
     "the interpreter stopped"),
    ("raise SystemExit(3)", RAISES, "SystemExit"),
    ("raise BaseExceptionGroup('x', [GeneratorExit()])", RAISES, "BaseExceptionGroup"),
    ("class E(Exception):\n    def __str__(self): raise SystemExit\nraise E", RAISES,
     "the program ended its interpreter"),
    ("import os; os._exit(0)", RAISES, "the program ended its interpreter"),
    ("import os; os.abort()", RAISES, "the interpreter stopped"),
    ("import faulthandler; faulthandler._sigsegv()", RAISES, "the interpreter stopped"),
    ("import threading; l = threading.Lock(); l.acquire(); l.acquire()", RAISES,
     "the interpreter stopped"),
    ("import marshal; marshal.loads(b'[' + b'\\xff' * 9)", RAISES, "Error"),
)  # fmt: skip
_ENDLESS_REPR = "class A:\n    def __repr__(self):\n        while True: pass\nA()"
_ENDLESS = "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E"
_RESULTS = (
    "object()",
    "print",
    "{1, 2}",
    "b'x'",
    "float('nan')",
    "float('-inf')",
    "{1: 2}",
    "'\\ud800'",
    "1 << 20_000",
    "[type('D', (dict,), {})({type('S', (str,), {})('a'): object()})]",
)
_CYCLIC = "x = []\nx.append(x)"
_OWN_METHODS: dict[str, tuple[str, End]] = {
    "a repr that raises": ("class A:\n    def __repr__(self): 1 / 0\nA()", OK),
    "a repr that is no text": ("class A:\n    def __repr__(self): return 5\nA()", OK),
    "a repr that recurses": ("class A:\n    def __repr__(self): return repr(self)\nA()", OK),
    "a repr of 1 GB": ("class A:\n    def __repr__(self): return 'x' * (1 << 30)\nA()", OK),
    "a repr that leaves": ("class A:\n    def __repr__(self): raise SystemExit(1)\nA()", RAISES),
    "items that never end": (
        "class A(list):\n    def __iter__(self):\n        while True: yield object()\nA([{1}])",
        MEMORY,
    ),
    "keys that lie": (
        "class A(dict):\n    def __iter__(self): return iter([1, 2])\nA({3: {4}})",
        OK,
    ),
    "a class that lies": ("class A:\n    @property\n    def __class__(self): return dict\nA()", OK),
    "a million objects": ("[object() for _ in range(10 ** 5 * 3)]", OK),
    "a very deep one": ("x = ()\nfor _ in range(5000): x = (x,)\nx", OK),
}
_FORGE = "import guest.app\nguest.app.encode = lambda _: forged"
_NO_SESSION = "import guest.app\nguest.app.APP.session = None"
_FORGED = {
    "a call that was not made": '{"waits": {"calls": [{"id": 1, "name": "secret", "args": [], '
    '"kwargs": {}}], "outstanding": [1]}}',
    "a synchronous call as an awaited one": '{"waits": {"calls": [{"id": 1, "name": "write", '
    '"args": [], "kwargs": {}}], "outstanding": [1]}}',
    "waiting for nothing": '{"waits": {"calls": [], "outstanding": []}}',
    "waiting for an unreported call": '{"waits": {"calls": [], "outstanding": [7]}}',
    "a timer without end": '{"waits": {"calls": [], "outstanding": [], "timer_s": 1e308}}',
    "the host's own code": '{"error": {"code": "CANCELLED", "message": "forged"}}',
    "another limit's code": '{"error": {"code": "TIMEOUT_CPU", "message": "never"}}',
    "an unknown code": '{"error": {"code": "ROOT", "message": ""}}',
    "an error without words": '{"error": {}}',
    "infinity": '{"value": 1e999}',
    "deep nesting": '{"value": ' + "[" * 100_000,
    "no JSON": "\\x00",
    "the wrong shape": "[1, 2, 3]",
    "nothing": "",
}
_DIRECT: tuple[tuple[str, End, str], ...] = (
    ("w.call_tool('add', 'no JSON')", RAISES, "unreadable arguments"),
    ("w.call_tool('add', '{\"args\": 5, \"kwargs\": {}}')", RAISES, "unreadable arguments"),
    ("w.call_tool('add', '{\"args\": [1e999], \"kwargs\": {}}')", RAISES, "unreadable arguments"),
    ("w.call_tool('add', '{\"args\": ' + '[' * 50_000)", RAISES, "unreadable arguments"),
    ("w.call_tool('add', 5)", RAISES, "the interpreter stopped"),
    ("w.pass_time(-1)", RAISES, "the interpreter stopped"),
    ("w.emit(1, b'x')", RAISES, "the interpreter stopped"),
)

PROBES: tuple[Probe, ...] = (
    *(past("import", f"import {name}", UNSUPPORTED, _ABSENT) for name in _IMPORTS),
    *(past("import", *row) for row in _LOADERS),
    direct("import", "relative", "from . import guest", UNSUPPORTED),
    *(direct("reflection", code, code, UNSUPPORTED) for code in _REFLECTION),
    *(past("reflection", *row) for row in _REACHED),
    direct("reflection", "an exception without end", _ENDLESS, CPU, limits={"cpu_ms": 80}),
    *(direct("result", code, f"result = {code}", FOREIGN) for code in _RESULTS),
    direct("result", "an endless repr", _ENDLESS_REPR, CPU, limits={"cpu_ms": 80}),
    direct("result", "cyclic", f"{_CYCLIC}\nresult = x", FOREIGN),
    *(direct("result", f"last: {code}", code, OK) for code in _RESULTS),
    direct("result", "last: cyclic", f"{_CYCLIC}\nx", OK),
    *(direct("result", name, code, end) for name, (code, end) in _OWN_METHODS.items()),
    *(
        direct("forgery", name, "1", RAISES, first=_FORGE, inputs={"forged": forged})
        for name, forged in _FORGED.items()
    ),
    *(past("forgery", f"import wit_world as w; {code}", *end) for code, *end in _DIRECT),
    past("forgery", "import wit_world as w; result = 'UNKNOWN_TOOL' in w.call_tool("
         "'fetch', '{\"args\": [1], \"kwargs\": {}}')", OK, value=True),
    direct("forgery", "no session", "1", RAISES, first=_NO_SESSION),
)  # fmt: skip
