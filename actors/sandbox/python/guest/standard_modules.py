"""The modules of the standard library that every program can import.

The build imports the eager ones, so every session begins with them in memory. ``library`` loads the
lazy ones when a program first imports them. The host reads this module, too, to list them.
"""

from __future__ import annotations

from importlib import import_module

__all__ = ["LAZY", "MODULES", "load"]

_EAGER = (
    "abc argparse array ast asyncio base64 binascii bisect calendar cmath codecs collections"
    " collections.abc colorsys configparser contextlib contextvars copy csv dataclasses datetime"
    " decimal difflib enum fnmatch fractions functools gc glob graphlib gzip hashlib heapq hmac"
    " html html.parser inspect io itertools json keyword linecache locale logging math numbers"
    " operator os os.path pathlib pickle pprint queue random re reprlib secrets shlex shutil"
    " sqlite3 statistics string struct sys tempfile textwrap time timeit tokenize traceback types"
    " typing unicodedata unittest urllib.parse uuid warnings weakref xml.etree.ElementTree zipfile"
    " zlib zoneinfo"
).split()
LAZY = (
    "atexit builtins cProfile cmd code copyreg dis doctest email.message errno filecmp fileinput"
    " getopt gettext http http.cookies importlib ipaddress logging.handlers marshal mimetypes"
    " optparse pickletools pkgutil platform plistlib pstats pydoc quopri runpy sched shelve signal"
    " stat symtable sysconfig tarfile token tomllib trace tracemalloc unittest.mock wave"
    " xml.dom.minidom xml.sax"
).split()
MODULES = tuple(sorted((*_EAGER, *LAZY)))

_DEPENDENCIES = (
    "_pylong _strptime encodings.ascii encodings.base64_codec encodings.cp1252 encodings.hex_codec"
    " encodings.idna encodings.latin_1 encodings.rot_13 encodings.utf_16 encodings.utf_16_be"
    " encodings.utf_16_le encodings.utf_32 encodings.utf_32_be encodings.utf_32_le"
    " encodings.utf_8_sig json.decoder string.templatelib xml.etree.ElementPath"
).split()
"""Modules that the eager ones import when a program first needs them."""


def load() -> None:
    for name in (*_EAGER, *_DEPENDENCIES):
        import_module(name)
