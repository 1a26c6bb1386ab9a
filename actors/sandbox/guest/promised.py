"""The standard modules a program may count on. Importing them here is what puts them into the
guest: a module that was not imported when the guest was built does not exist in it.
"""

from __future__ import annotations

from importlib import import_module

__all__ = ["MODULES", "load"]

MODULES = (
    "abc",
    "array",
    "ast",
    "asyncio",
    "base64",
    "binascii",
    "bisect",
    "calendar",
    "cmath",
    "codecs",
    "collections",
    "collections.abc",
    "colorsys",
    "contextlib",
    "contextvars",
    "copy",
    "csv",
    "dataclasses",
    "datetime",
    "decimal",
    "difflib",
    "enum",
    "fnmatch",
    "fractions",
    "functools",
    "gc",
    "graphlib",
    "hashlib",
    "heapq",
    "hmac",
    "html",
    "html.parser",
    "inspect",
    "itertools",
    "json",
    "keyword",
    "linecache",
    "locale",
    "logging",
    "math",
    "numbers",
    "operator",
    "pickle",
    "pprint",
    "queue",
    "random",
    "re",
    "reprlib",
    "secrets",
    "shlex",
    "statistics",
    "string",
    "struct",
    "textwrap",
    "time",
    "timeit",
    "tokenize",
    "traceback",
    "types",
    "typing",
    "unicodedata",
    "unittest",
    "uuid",
    "warnings",
    "weakref",
    "xml.etree.ElementTree",
    "zlib",
    "zoneinfo",
)

_BEHIND_THEM = (
    "encodings.ascii",
    "encodings.base64_codec",
    "encodings.cp1252",
    "encodings.hex_codec",
    "encodings.idna",
    "encodings.latin_1",
    "encodings.rot_13",
    "encodings.utf_16",
    "encodings.utf_16_be",
    "encodings.utf_16_le",
    "encodings.utf_32",
    "encodings.utf_32_be",
    "encodings.utf_32_le",
    "encodings.utf_8_sig",
    "json.decoder",
    "string.templatelib",
    "xml.etree.ElementPath",
)
"""What the promised ones import only when it is needed."""


def load() -> None:
    for name in (*MODULES, *_BEHIND_THEM):
        import_module(name)
