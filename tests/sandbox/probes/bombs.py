"""Probes that use up time, memory, stack, output and calls."""

from __future__ import annotations

from typing import Any

from tests.sandbox.probes.probe import (
    CALLS,
    CPU,
    DENIED,
    FAILED,
    MEMORY,
    OK,
    RAISES,
    STACK,
    SYNTAX,
    WALL,
    End,
    Probe,
    direct,
    past,
)

__all__ = ["PROBES"]

_SHORT = {"cpu_ms": 80}
_FUEL = (
    "while True: pass",
    "for _ in iter(int, 1): pass",
    "3 ** (3 ** 19)",
    "sum(range(10 ** 12))",
    "[0] * 10 ** 6 == [0] * 10 ** 6 and max(iter(int, 1))",
    "import re\nre.match('(a+)+$', 'a' * 40 + 'b')",
    "import itertools\nsum(1 for _ in itertools.product(range(99), repeat=9))",
    "import random\nwhile True: random.SystemRandom().random()",
    "import time\nend = time.time() + 10 ** 6\nwhile time.time() < end: pass",
    "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    "import asyncio\nasync def f():\n    while True: await asyncio.sleep(0)\nawait f()",
    "import asyncio\nawait asyncio.gather(*(asyncio.sleep(10 ** 6) for _ in range(9)))\n"
    "while True: await asyncio.sleep(10 ** 6)",
    "import zlib\nwhile True: zlib.compress(b'x' * 10 ** 6)",
    "import statistics\nstatistics.correlation(range(10 ** 7), range(10 ** 7))",
    "class A:\n    def __del__(self): A()\nA()\nwhile True: pass",
    "def g(): yield from iter(int, 1)\nlist(zip(g(), ()))\nfor _ in g(): pass",
    "import hashlib\nwhile True: hashlib.sha3_512(bytes(10 ** 6)).digest()",
    "import math\nmath.factorial(10 ** 7)",
)
_MEMORY = (
    "bytearray(1 << 30)",
    "'x' * (1 << 30)",
    "[0] * (1 << 28)",
    "x = 'x'\nwhile True: x += x",
    "x = []\nwhile True: x = [x, x, bytes(1 << 20)]",
    "x = {}\nfor i in range(10 ** 8): x[i] = str(i) * 99",
    "1 << (1 << 33)",
    "''.join('x' for _ in range(10 ** 8))",
    "import itertools\nlist(itertools.permutations(range(20)))",
    "import array\narray.array('d', bytes(1 << 30))",
    "import collections\ncollections.deque(iter(lambda: bytes(9999), 1))",
    "import collections, itertools\ncollections.deque(itertools.repeat(0))",
    "import asyncio\nasync def f(x): await asyncio.gather(f(x * 2), f(x * 2))\nawait f('x' * 9999)",
    "import random\nrandom.randbytes(1 << 28)",
    "f'{1:>{1 << 30}}'",
    "'%0999999999d' % 1",
    "import struct\nstruct.pack('999999999x')",
    "import difflib\ndifflib.SequenceMatcher(None, [bytes(99) for _ in range(10 ** 7)], [])",
    "import json\njson.loads('[' + '[],' * 9_999_999 + '[]]')",
    "def g(n):\n    x = bytes(1 << 20)\n    yield from g(n + 1)\nlist(g(0))",
)
_DECOMPRESSION = (
    "import base64, zlib\nbomb = zlib.compress(zlib.compress(bytes(1 << 24)) * 999)\n"
    "zlib.decompress(zlib.decompress(bomb)[:20_000] * 1) and bytes(1 << 27)",
    "import zlib\nsmall = zlib.compress(bytes(1 << 24))\n"
    "[zlib.decompress(small) for _ in range(99)]",
    "import zlib\nd = zlib.decompressobj()\nx = [d.decompress(zlib.compress(bytes(1 << 24)))]\n"
    "x *= 9\nb''.join(x)",
)
_XML = (
    "import xml.etree.ElementTree as e\nlines = ['<!ENTITY a0 \"' + 'x' * 999 + '\">']\n"
    'lines += [f\'<!ENTITY a{n + 1} "{f"&a{n};" * 10}">\' for n in range(9)]\n'
    "e.fromstring('<!DOCTYPE a [' + ''.join(lines) + ']><a>&a9;</a>')"
)
_STACK = (
    "def f(): f()\nf()",
    "def f(): return [f() for _ in '1']\nf()",
    "f = lambda x: f(x)\nf(1)",
    "class A:\n    def __getattr__(self, name): return getattr(self, name + 'x')\nA().y",
    "class A:\n    def __repr__(self): return repr(self)\nrepr(A())",
    "class A:\n    def __eq__(self, other): return other == self\nA() == A()",
    "async def f(): await f()\nawait f()",
    "def g(): yield from g()\nlist(g())",
    "import functools\n@functools.cache\ndef f(n): return f(n + 1)\nf(0)",
    "x = []\nfor _ in range(10 ** 5): x = [x]\nrepr(x)",
    "x = y = []\nfor _ in range(10 ** 5): x = [x]\nimport copy\ncopy.deepcopy(x)",
    "import json\njson.loads('[' * 10 ** 5)",
    "import ast\nx = []\nfor _ in range(9999): x = [x]\nast.literal_eval(repr(x))",
)
_PICKLE = (
    ("pickle.loads(b'cposix\\nsystem\\n(S\"true\"\\ntR.')", RAISES, "AttributeError"),
    ("pickle.loads(b'cos\\nsystem\\n(S\"true\"\\ntR.')", DENIED, "no process"),
    ("pickle.loads(b'c__builtin__\\neval\\n(S\"1/0\"\\ntR.')", RAISES, "ZeroDivisionError"),
    ("pickle.loads(b'\\x80\\x04' + b'(' * 9_999_999)", MEMORY, "MemoryError"),
    ("pickle.loads(b'\\x80\\x05\\x96' + b'\\xff' * 7 + b'\\x7f')", RAISES, "OverflowError"),
    ("pickle.loads(b'\\x80\\x04X\\xff\\xff\\xff\\x7f')", RAISES, "Error"),
    ("pickle.loads(b'\\x80\\x04r\\xff\\xff\\xff\\x0f.')", RAISES, "stack underflow"),
)
_CALLS_BOMBS: tuple[tuple[str, dict[str, Any], End], ...] = (
    ("while True: add(1)", {}, CALLS),
    ("while True:\n    try: add(1)\n    except BaseException: pass", {}, CALLS),
    ("import asyncio\nawait asyncio.gather(*map(fetch, range(9999)))", {}, CALLS),
    ("for i in range(99): await fetch(i)", {}, CALLS),
    ("add(1)", {"max_external_calls": 0}, CALLS),
    ("add('x' * (50 << 20))", {}, MEMORY),
    ("async def f():\n    while True: fetch(1)\nawait f()", {"memory_mb": 32}, MEMORY),
    ("x = []\nfor _ in range(9999): x = [x]\nadd(x)", {}, STACK),
    ("add(*range(10 ** 5))", {}, FAILED),
)
_OUTPUT = (
    "while True: print('x' * 999)",
    "while True: print('x', end='')",
    "import inspect\nwhile True: inspect.os.write(1, b'x' * 4096)",
    "import warnings\nwhile True: warnings.warn('x' * 99 + str(object()))",
)

PROBES: tuple[Probe, ...] = (
    *(direct("fuel", code, code, CPU, limits=_SHORT) for code in _FUEL),
    direct("fuel", "wall time", "while True: pass", WALL, limits={"wall_ms": 80}),
    *(direct("memory", code, code, MEMORY) for code in _MEMORY),
    *(direct("decompression", code, code, MEMORY) for code in _DECOMPRESSION),
    direct("decompression", "a billion laughs", _XML, SYNTAX, says="ParseError"),
    *(direct("recursion", code, code, STACK) for code in _STACK),
    *(past("pickle", f"import pickle; {code}", end, says) for code, end, says in _PICKLE),
    *(direct("calls", code, code, end, limits=limits) for code, limits, end in _CALLS_BOMBS),
    *(direct("output", code, code, CPU, limits=_SHORT) for code in _OUTPUT),
    direct("sleep", "time.sleep", "import time\ntime.sleep(10 ** 9)\n1", OK, value=1),
    direct(
        "sleep", "asyncio.sleep", "import asyncio\nawait asyncio.sleep(10 ** 9, 2)", OK, value=2
    ),
    direct("sleep", "for nothing", "import asyncio\nawait asyncio.Event().wait()", RAISES),
    past("sleep", "import threading; result = threading.Event().wait(10 ** 6)", OK, value=False),
    past("sleep", "import select; select.select([], [], [], 10 ** 6)", OK),
    past("sleep", "import select; select.select([], [1, 2], [1], 10 ** 6)", OK),
    past("sleep", "import selectors; selectors.SelectSelector().select(10 ** 6)", OK),
    past("sleep", "import os; result = len(os.read(0, 99))", OK, value=0),
    past("sleep", "import queue; queue.Queue().get()", RAISES),
    direct("sleep", "an input that never comes", "input()", RAISES, says="EOFError"),
)
