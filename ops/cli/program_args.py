"""The program arguments of the command line, and the run request made of them.

Wrong usage is refused here; the node checks the request itself.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from msgspec import UNSET

from rookery.ops.cli.usage_errors import STDIN
from rookery.schemas.errors import Refused
from rookery.schemas.ids import check_session_id
from rookery.schemas.limits import limit_hint
from rookery.schemas.run import FileInput, Language, RunRequest, SessionLimits

__all__ = [
    "NO_PROGRAM_OPTIONS",
    "File",
    "ProgramOptions",
    "find_language",
    "parse_limits",
    "run_request",
]

SUFFIXES = {".ts": Language.TYPESCRIPT, ".mts": Language.TYPESCRIPT, ".py": Language.PYTHON}

File = Annotated[str | None, Parameter(help="The program; - reads standard input.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ProgramOptions:
    """The program, its session, inputs and limits."""

    code: Annotated[
        str | None,
        Parameter(name=["-e", "--code"], help="The program itself.", allow_leading_hyphen=True),
    ] = None
    session: Annotated[str, Parameter(help="Session to run it in.")] = RunRequest().session_id
    language: Annotated[
        str | None,
        Parameter(help="Default: by the file's suffix, typescript for .ts, else python."),
    ] = None
    input: Annotated[
        list[str] | None,
        Parameter(help="A variable of the program: NAME=JSON, or NAME=@FILE of JSON.", negative=""),
    ] = None
    put: Annotated[
        list[str] | None,
        Parameter(
            help="A file of the session to write first: PATH=FILE, below /work.", negative=""
        ),
    ] = None
    limit: Annotated[
        list[str] | None, Parameter(help="A limit of this run: NAME=NUMBER.", negative="")
    ] = None
    timeout_ms: Annotated[int | None, Parameter(help="Time limit of the run.")] = None


NO_PROGRAM_OPTIONS = ProgramOptions()


def run_request(file: str | None, words: ProgramOptions, **more: Any) -> RunRequest:
    """The run request of a command line."""
    return RunRequest(
        session_id=check_session_id(words.session),
        language=_language(words.language, file),
        code=_source(file, words.code),
        inputs=dict(_input(text) for text in words.input or ()),
        files=dict(_put(text) for text in words.put) if words.put else UNSET,
        timeout_ms=words.timeout_ms,
        limits=SessionLimits(**parse_limits(words.limit, "--limit ")) if words.limit else None,
        **more,
    )


def _source(file: str | None, code: str | None) -> str:
    if (file is None) == (code is None):
        text = "nothing to run" if file is None else "both a file and -e"
        raise Refused("INVALID_ARGUMENT", text, hint="give a FILE, - or -e CODE")
    if code is not None:
        return code
    return _text(str(file), sys.stdin.buffer.read() if file == STDIN else _bytes(str(file)))


def _bytes(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise Refused("INVALID_ARGUMENT", f"{file}: {error.strerror}") from None


def _text(file: str, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise Refused("INVALID_ARGUMENT", f"{file} is not UTF-8: {error.reason}") from None


def _language(name: str | None, file: str | None) -> Language:
    if name is None:
        return SUFFIXES.get(Path(file or "").suffix, Language.PYTHON)
    return find_language(name)


def find_language(name: str) -> Language:
    """The language of this name."""
    try:
        return Language(name)
    except ValueError:
        known = ", ".join(Language)
        raise Refused("INVALID_ARGUMENT", f"no language {name!r}", hint=f"one of {known}") from None


def _input(text: str) -> tuple[str, Any]:
    name, value = _pair(text, "--input ", "NAME=JSON")
    data = _bytes(value[1:]) if value.startswith("@") else value.encode()
    try:
        return name, msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise Refused(
            "INVALID_ARGUMENT",
            f"--input {name}: this is not JSON: {error}",
            hint=f"text is quoted: --input '{name}=\"text\"'",
        ) from None


def _put(text: str) -> tuple[str, FileInput]:
    path, file = _pair(text, "--put ", "PATH=FILE")
    return path, FileInput(data=_bytes(file))


def parse_limits(texts: Sequence[str], option: str = "") -> dict[str, int]:
    """The limits in arguments of the form NAME=NUMBER."""
    known, limits = SessionLimits.__struct_fields__, dict[str, int]()
    for text in texts:
        name, value = _pair(text, option, "NAME=NUMBER")
        if name not in known:
            raise Refused(
                "INVALID_ARGUMENT", f"no limit {name!r}", hint=f"there are {', '.join(known)}"
            )
        try:
            limits[name] = int(value)
        except ValueError:
            message = f"{option}{name}: {value!r} is no number"
            raise Refused("INVALID_ARGUMENT", message, hint=limit_hint(name)) from None
    return limits


def _pair(text: str, option: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise Refused("INVALID_ARGUMENT", f"{option}{text!r} is not {form}")
    return name, value
