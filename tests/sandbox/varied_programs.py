"""Sixty programs that use what could differ between processes."""

from __future__ import annotations

__all__ = ["PROGRAMS"]

PROGRAMS: dict[str, str] = {
    "arithmetic": "sum(i * i for i in range(999))",
    "long integers": "str(3 ** 999)[:40]",
    "division": "[7 / 3, -7 // 2, round(2.675, 2)]",
    "floats": "import math\n[0.1 + 0.2, math.sin(1e6), math.exp(0.5), 1e308 * 1.1 > 1e308, 5e-324]",
    "a float sum": "import math\nx = [1 / n for n in range(1, 999)]\n[sum(x), math.fsum(x)]",
    "decimals": "from decimal import Decimal as D\nstr(D(1) / D(7) + D('1e-9').sqrt())",
    "fractions": "from fractions import Fraction as F\nstr(sum(F(1, n) for n in range(1, 30)))",
    "complex numbers": "import cmath\nz = cmath.exp(1j * cmath.pi)\n[z.real, z.imag, abs(z)]",
    "statistics": "import statistics as s\n[s.stdev([1, 2, 4]), s.median([3, 1]), s.mode('aab')]",
    "strings": "['é'.encode().hex(), 'ß'.upper(), 'x'.center(9, '*'), '%08.3f' % 3.14159]",
    "formats": "x = 1234.5\n[f'{x:,.2f}', f'{x!r:>12}', f'{255:#x}', '{:%}'.format(0.25)]",
    "regular expressions": "import re\nre.sub(r'(\\w)(\\w)', r'\\2\\1', 'deterministic')",
    "text": "import textwrap, difflib\n[textwrap.fill('a b c ' * 9, 20), difflib.SequenceMatcher(0,"
    " 'abcd', 'bcde').ratio()]",
    "a set of strings": "list({'alpha', 'beta', 'gamma', 'delta', 'epsilon', 'zeta'})",
    "a set of tuples": "[list(x) for x in {('a', 1), ('b', 2), ('c', 3)}]",
    "a set that shrinks": "s = {str(i) for i in range(99)}\nfor _ in range(90): s.pop()\nlist(s)",
    "set algebra": "list({'a', 'b', 'c'} ^ {'b', 'x', 'y'} | frozenset(('q', 'r')))",
    "the order of a dict": "d = {str(i): i for i in range(9)}\ndel d['7']\nd['7'] = 0\nlist(d)",
    "hashes": "[hash('a'), hash(b'a'), hash(('a', 1.5)), hash(1.5), hash(None)]",
    "addresses": "class A: pass\n[repr(A()), id(A()), repr(object()), repr(lambda: 0)]",
    "counting": "from collections import Counter\nCounter('mississippi').most_common()[0][1]",
    "default dicts": "from collections import defaultdict\nd = defaultdict(list)\n"
    "for w in 'the cat the dog'.split(): d[len(w)].append(w)\n{str(k): v for k, v in d.items()}",
    "heaps": "import heapq\nh = []\nfor n in (5, 1): heapq.heappush(h, n)\nheapq.nsmallest(2, h)",
    "sorting": "sorted(['b', 'A', 'a', 'B'], key=str.lower) + sorted('zyx', reverse=True)",
    "permutations": "import itertools\n[''.join(p) for p in itertools.permutations('abc')][3]",
    "graphs": "from graphlib import TopologicalSorter as T\n"
    "list(T({'d': {'b', 'c'}, 'b': {'a'}, 'c': {'a'}}).static_order())",
    "random": "import random\n[random.random(), random.randint(1, 99), random.choice('abc')]",
    "shuffles": "import random\nx = list(range(20))\nrandom.shuffle(x)\n"
    "x + random.sample(range(99), 5)",
    "system randomness": "import random, secrets\n"
    "[random.SystemRandom().random(), secrets.token_hex(8)]",
    "gaussians": "import random\n[random.gauss(0, 1), random.betavariate(1, 2)]",
    "uuids": "import uuid\n[str(f()) for f in (uuid.uuid1, uuid.uuid4, uuid.uuid4)]",
    "time": "import time\n[time.time(), time.monotonic(), time.perf_counter_ns(), time.ctime()]",
    "dates": "import datetime as d\n[str(d.datetime.now()), str(d.datetime.now(d.UTC)),"
    " d.date(2024, 2, 29).strftime('%j')]",
    "sleeping": "import time\nt = time.time()\ntime.sleep(3)\ntime.time() - t",
    "exceptions": "try: {}['x']\nexcept KeyError as e: r = repr(e)\nr",
    "a traceback": "import traceback\ndef f(): 1 / 0\ntry: f()\nexcept Exception:\n"
    "    t = traceback.format_exc()\nt",
    "an uncaught error": "x = 'before'\n[][1]",
    "exception groups": "n = 0\ntry: raise ExceptionGroup('g', [ValueError(1)])\n"
    "except* ValueError as e: n = len(e.exceptions)\nn",
    "classes": "class A:\n    def __init__(self): self.x = [1]\n    def __lt__(self, o): return 1\n"
    "class B(A):\n    @property\n    def y(self): return self.x * 2\n"
    "[B().y, A() < B(), B.mro()[1] is A]",
    "dataclasses": "from dataclasses import dataclass, asdict, field\n@dataclass(order=True)\n"
    "class P:\n    x: int\n    y: list = field(default_factory=list)\nasdict(max(P(1), P(2, [3])))",
    "enums": "from enum import Flag, auto\nclass C(Flag):\n    R = auto(); G = auto()\nstr(~C.R)",
    "closures and generators": "def g():\n    n = yield 1\n    yield n\nk=g()\nnext(k)\nk.send(5)",
    "deep recursion": "def f(n): return n and 1 + f(n - 1)\nf(200)",
    "rubbish": "import gc\nfor i in range(999):\n    x = []; x.append(x)\ngc.collect() >= 0",
    "weak references": "import weakref\nclass A: pass\na = A()\n"
    "d = weakref.WeakValueDictionary(a=a)\nbefore = len(d)\ndel a\n[before, len(d)]",
    "pickles": "import base64, pickle\nbase64.b64encode(pickle.dumps({'s': {'a', 'b'}})).decode()",
    "hashing and packing": "import hashlib, struct, zlib\n[hashlib.sha3_256(b'x').hexdigest(),"
    " zlib.crc32(b'x'), struct.pack('>d', 0.1).hex(), zlib.compress(b'ab' * 99).hex()]",
    "output": "import warnings\nprint('a', 1.5, {'s', 't'})\nwarnings.warn('w')",
    "files": "import os, tempfile\n"
    "with tempfile.NamedTemporaryFile(delete=False) as f: f.write(b'x')\n"
    "os.utime(f.name)\n[f.name, os.listdir(), list(os.stat(f.name)), os.getcwd()]",
    "a database": "import sqlite3\nc = sqlite3.connect('a.db')\n"
    "c.execute('create table t as select random() as x, datetime() as y')\nc.commit()\n"
    "[c.execute('select * from t').fetchall(), open('a.db', 'rb').read().hex()]",
    "archives": "import gzip, zipfile, time\nopen('a', 'w').write('x' * 99)\n"
    "with zipfile.ZipFile('z', 'w') as z: z.write('a')\n"
    "[gzip.compress(b'x').hex(), open('z', 'rb').read().hex()]",
    "modules loaded late": "import tomllib, wave, xml.sax, email.message\nlen(dir(wave))",
    "converted results": "[{'b', 'a', 1, 2.5, None}, {(1, 2): {3}}, object(), print]",
    "asyncio.run": "import asyncio\nasync def f(n): return await fetch(n)\nasyncio.run(f(1))",
    "open files while a call waits": "f = open('w', 'w+'); f.write('1')\nx = await approve()\n"
    "f.write(str(x)); f.seek(0)\nf.read()",
    "a connection while a call waits": "import sqlite3\nc = sqlite3.connect('b.db')\n"
    "c.execute('create table t (x)'); c.execute('insert into t values (1)')\nx = await approve()\n"
    "c.commit()\n[c.execute('select x from t').fetchall(), sqlite3.connect('b.db').total_changes]",
    "synchronous calls": "[add(n, b=len({'a', 'b'})) for n in range(9)]",
    "awaited calls": "import asyncio\nawait asyncio.gather(*(fetch(n) for n in range(5)))",
    "calls that wait": "import random, time\na = random.random()\nb = await approve(a)\n"
    "[a, b, random.random(), time.time(), add(1)]",
    "tasks and timers": "import asyncio\nseen = []\nasync def f(n):\n    await asyncio.sleep(n)\n"
    "    seen.append(await fetch(n))\nasync with asyncio.TaskGroup() as t:\n"
    "    for n in (3, 1, 2): t.create_task(f(n))\nseen",
}
