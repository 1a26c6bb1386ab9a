"""The standard modules a program may count on.

What is imported here when the guest is built is there at once in every session; the others come
from ``library`` when a program imports them first. Also used by the host, to name them.
"""

from __future__ import annotations

from importlib import import_module

__all__ = ["LATER", "MODULES", "load"]

_AT_ONCE = (
    "abc argparse array ast asyncio base64 binascii bisect calendar cmath codecs collections"
    " collections.abc colorsys configparser contextlib contextvars copy csv dataclasses datetime"
    " decimal difflib enum fnmatch fractions functools gc glob graphlib gzip hashlib heapq hmac"
    " html html.parser inspect io itertools json keyword linecache locale logging math numbers"
    " operator os os.path pathlib pickle pprint queue random re reprlib secrets shlex shutil"
    " sqlite3 statistics string struct sys tempfile textwrap time timeit tokenize traceback types"
    " typing unicodedata unittest urllib.parse uuid warnings weakref xml.etree.ElementTree zipfile"
    " zlib zoneinfo"
).split()
LATER = (
    "atexit builtins cProfile cmd code copyreg dis doctest email.message errno filecmp fileinput"
    " getopt gettext http http.cookies importlib ipaddress logging.handlers marshal mimetypes"
    " optparse pickletools pkgutil platform plistlib pstats pydoc quopri runpy sched shelve signal"
    " stat symtable sysconfig tarfile token tomllib trace tracemalloc unittest.mock wave"
    " xml.dom.minidom xml.sax"
).split()
MODULES = tuple(sorted((*_AT_ONCE, *LATER)))

_BEHIND_THEM = (
    "_pylong _strptime encodings.ascii encodings.base64_codec encodings.cp1252 encodings.hex_codec"
    " encodings.idna encodings.latin_1 encodings.rot_13 encodings.utf_16 encodings.utf_16_be"
    " encodings.utf_16_le encodings.utf_32 encodings.utf_32_be encodings.utf_32_le"
    " encodings.utf_8_sig json.decoder string.templatelib xml.etree.ElementPath"
).split()
"""What the promised ones import only when it is needed."""


def load() -> None:
    for name in (*_AT_ONCE, *_BEHIND_THEM):
        import_module(name)
