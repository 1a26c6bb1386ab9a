"""The standard modules a program is promised, each imported and put to work."""

from __future__ import annotations

import pytest

from rookery.actors.sandbox import PYTHON_MODULES
from tests.sandbox.stage import Stage

WORK = {
    "abc": ("abc.ABC.__name__", "ABC"),
    "array": ("array.array('i', [1, 2]).tolist()", [1, 2]),
    "ast": ("ast.literal_eval('[1]')", [1]),
    "asyncio": ("await asyncio.wait_for(asyncio.sleep(0, 1), 5)", 1),
    "base64": ("base64.b64encode(b'a').decode()", "YQ=="),
    "binascii": ("binascii.hexlify(b'a').decode()", "61"),
    "bisect": ("bisect.bisect([1, 3], 2)", 1),
    "calendar": ("calendar.isleap(2024)", True),
    "cmath": ("cmath.sqrt(-1).imag", 1.0),
    "codecs": ("codecs.encode('a', 'utf-16-le')[0]", 97),
    "collections": ("collections.deque([1, 2]).pop()", 2),
    "collections.abc": ("isinstance([], collections.abc.Sequence)", True),
    "colorsys": ("colorsys.rgb_to_hsv(1, 0, 0)[2]", 1),
    "contextlib": ("with contextlib.suppress(ValueError): int('x')\n1", 1),
    "contextvars": ("contextvars.ContextVar('a', default=3).get()", 3),
    "copy": ("copy.deepcopy([[1]])", [[1]]),
    "csv": ("next(csv.reader(['a,b']))", ["a", "b"]),
    "dataclasses": (
        "@dataclasses.dataclass\nclass P:\n    x: int = 1\ndataclasses.asdict(P())",
        {"x": 1},
    ),
    "datetime": ("(datetime.date(2024, 1, 31) + datetime.timedelta(1)).isoformat()", "2024-02-01"),
    "decimal": ("str(decimal.Decimal('0.1') + decimal.Decimal('0.2'))", "0.3"),
    "difflib": ("difflib.get_close_matches('appel', ['apple'])", ["apple"]),
    "enum": ("enum.Enum('E', 'A').A.value", 1),
    "fnmatch": ("fnmatch.fnmatch('a.py', '*.py')", True),
    "fractions": ("str(fractions.Fraction(1, 3) * 3)", "1"),
    "functools": ("functools.reduce(int.__add__, [1, 2])", 3),
    "gc": ("gc.collect() >= 0", True),
    "graphlib": ("[*graphlib.TopologicalSorter({1: {2}}).static_order()]", [2, 1]),
    "hashlib": ("hashlib.sha3_256(b'').hexdigest()[:8]", "a7ffc6f8"),
    "heapq": ("heapq.nsmallest(1, [2, 1])", [1]),
    "hmac": ("hmac.new(b'k', b'', 'sha256').hexdigest()[:4]", "8bb9"),
    "html": ("html.escape('<')", "&lt;"),
    "html.parser": ("html.parser.HTMLParser().feed('<a>')", None),
    "inspect": ("list(inspect.signature(lambda a: 1).parameters)", ["a"]),
    "itertools": ("[*itertools.chain([1], [2])]", [1, 2]),
    "json": ("json.loads(json.dumps({'a': 1}, indent=1))", {"a": 1}),
    "keyword": ("keyword.iskeyword('if')", True),
    "linecache": ("linecache.getline('nothing', 1)", ""),
    "locale": ("locale.localeconv()['decimal_point']", "."),
    "logging": ("logging.getLogger('a').name", "a"),
    "math": ("math.comb(5, 2)", 10),
    "numbers": ("isinstance(1, numbers.Number)", True),
    "operator": ("operator.itemgetter(1)([1, 2])", 2),
    "pickle": ("pickle.loads(pickle.dumps([1]))", [1]),
    "pprint": ("pprint.pformat([1])", "[1]"),
    "queue": ("q = queue.Queue()\nq.put(1)\nq.get(timeout=1)", 1),
    "random": ("random.Random(1).randint(1, 10**9)", 144272510),
    "re": ("re.sub('a+', 'b', 'caat')", "cbt"),
    "reprlib": ("reprlib.repr('a' * 99)[:4]", "'aaa"),
    "secrets": ("len(secrets.token_hex(4))", 8),
    "shlex": ("shlex.split('a \"b c\"')", ["a", "b c"]),
    "statistics": ("statistics.median([1, 2, 9])", 2),
    "string": ("string.Template('$a').substitute(a=1)", "1"),
    "struct": ("struct.unpack('<H', b'ab')[0]", 25185),
    "textwrap": ("textwrap.dedent('  a')", "a"),
    "time": ("time.sleep(2) or time.strftime('%Y', time.gmtime(0))", "1970"),
    "timeit": ("timeit.timeit('1', number=3) > 0", True),
    "tokenize": ("tokenize.tok_name[1]", "NAME"),
    "traceback": ("traceback.format_exception_only(ValueError('a'))", ["ValueError: a\n"]),
    "types": ("types.SimpleNamespace(a=1).a", 1),
    "typing": ("typing.get_args(list[int])[0].__name__", "int"),
    "unicodedata": ("unicodedata.name('é')", "LATIN SMALL LETTER E WITH ACUTE"),
    "unittest": ("unittest.TestCase().assertEqual(1, 1)", None),
    "uuid": ("uuid.uuid4().version + uuid.uuid1().version", 5),
    "warnings": ("warnings.warn('w')", None),
    "weakref": ("class A: pass\na = A()\nweakref.ref(a)() is a", True),
    "xml.etree.ElementTree": ("xml.etree.ElementTree.fromstring('<a><b/></a>')[0].tag", "b"),
    "zlib": ("zlib.decompress(zlib.compress(b'a')).decode()", "a"),
    "zoneinfo": ("zoneinfo.ZoneInfo.__name__", "ZoneInfo"),
}


def test_every_promised_module_is_put_to_work_here():
    assert sorted(WORK) == sorted(PYTHON_MODULES)


@pytest.mark.parametrize("module", PYTHON_MODULES)
def test_a_promised_module_works(stage: Stage, module: str):
    code, value = WORK[module]
    assert stage.value(f"import {module}\n{code}") == value
