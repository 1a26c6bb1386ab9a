"""Messages and hints for modules and calls that the sandbox does not have.

A hint names an offered tool that serves the same purpose; if there is none, it names
``list_tools()``.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from guest.system.packages import PACKAGES

__all__ = [
    "absent_module",
    "blocked_call",
    "library_hint",
    "outside_path",
    "refused_module",
    "refused_names",
]

_WEB_TOOLS = ("fetch_text", "fetch_json", "http_get", "http_send", "fetch_url", "fetch")
_FILE_TOOLS = ("read_text", "write_text", "list_dir", "read_file", "write_file")
_NO_TOOL = "no tool for it is offered here; list_tools() says which there are"
_DISCOVER = "list_tools() says which tools there are"

_WEB = (
    "aiohttp ftplib http.client http.server httpx imaplib poplib requests smtplib socket"
    " socketserver ssl telnetlib urllib.request urllib.robotparser urllib3 webbrowser websockets"
    " wsgiref xmlrpc"
).split()
_THREADS = "_thread concurrent.futures multiprocessing threading".split()
_PROCESSES = "_posixsubprocess pty subprocess".split()
_NATIVE = "cffi ctypes fcntl mmap pwd grp resource select selectors termios".split()
_PACKED = "bz2 lzma".split()
_SCREENS = "curses pygame readline tkinter turtle turtledemo tty".split()
_PACKAGES = {
    "IPython": "print() and the value of the last expression",
    "PIL": "plain bytes, or SVG text",
    "bs4": "html.parser or xml.etree.ElementTree",
    "dateutil": "datetime.fromisoformat() and datetime.strptime()",
    "lxml": "xml.etree.ElementTree or html.parser",
    "matplotlib": "SVG text written to a file, or a table",
    "networkx": "dicts of neighbours, heapq and graphlib",
    "numpy": "lists, array, math and statistics",
    "pandas": "csv, sqlite3, collections and statistics",
    "plotly": "SVG text written to a file, or a table",
    "psycopg2": "sqlite3, or a tool",
    "pydantic": "dataclasses",
    "pytest": "assert, or unittest",
    "pytz": "zoneinfo",
    "regex": "re",
    "scipy": "math, cmath and statistics",
    "seaborn": "SVG text written to a file, or a table",
    "simplejson": "json",
    "sklearn": "plain Python over lists",
    "sympy": "fractions, decimal and math",
    "tabulate": "str.ljust() and str.rjust()",
    "toml": "tomllib",
    "torch": "plain Python over lists",
    "tqdm": "a plain loop",
    "ujson": "json",
    "yaml": "json, tomllib or configparser",
}


def refused_module(name: str, tools: Container[str]) -> tuple[str, str] | None:
    """Message and hint for a module that cannot work in the sandbox; ``None`` for others."""
    if _within(name, _WEB):
        return _not_available(name), _tool_hint("the web is reached", _WEB_TOOLS, tools)
    if _within(name, _THREADS):
        return _not_available(name), "use asyncio: awaited calls of tools run at the same time"
    if _within(name, _PROCESSES):
        return _not_available(name), f"a program starts no process: {_NO_TOOL}"
    if _within(name, _NATIVE):
        return _not_available(name), f"compiled code and the system are out of reach: {_NO_TOOL}"
    if _within(name, _SCREENS):
        return _not_available(name), f"there is no screen: print(), or SVG text; {_DISCOVER}"
    if _within(name, _PACKED):
        return _not_available(name), f"use gzip, zlib or zipfile; {_DISCOVER}"
    return None


def refused_names() -> list[str]:
    return sorted({*_WEB, *_THREADS, *_PROCESSES, *_NATIVE, *_PACKED, *_SCREENS})


def absent_module(name: str) -> tuple[str, str] | None:
    """Message and hint for a well-known package outside the standard library."""
    top = name.partition(".")[0]
    if top in _PACKAGES:
        return _not_available(name), f"use {_PACKAGES[top]}; {_present()}{_DISCOVER}"
    return None


def _present() -> str:
    """The packages that a program can import, for a hint."""
    names = sorted(name for package in PACKAGES.listed for name in package["imports"])
    return f"packages that are here: {', '.join(names)}; " if names else ""


def library_hint(name: str) -> tuple[str, str]:
    """Message and hint for an unknown module."""
    hint = f"the standard library is here, and modules written to /work; {_present()}{_DISCOVER}"
    return f"there is no module {name!r}", hint


def blocked_call(name: str, tools: Container[str]) -> tuple[str, str]:
    del tools
    return f"{name}() is not available in the sandbox", f"a program starts no process: {_NO_TOOL}"


def outside_path(path: str, tools: Container[str]) -> tuple[str, str]:
    message = f"open() of {path[:200]!r}: a program has no files outside /work and /tmp"
    return message, _tool_hint("use a relative path; other files are reached", _FILE_TOOLS, tools)


def _not_available(name: str) -> str:
    return f"module {name!r} is not available in the sandbox"


def _within(name: str, modules: Iterable[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _tool_hint(what: str, fitting: Iterable[str], tools: Container[str]) -> str:
    offered = [f"{tool}()" for tool in fitting if tool in tools]
    through = " or ".join(offered) if offered else "tools"
    return f"{what} through {through}: {_DISCOVER}"
