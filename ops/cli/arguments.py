"""Arguments of commands: programs and their inputs, rights, and key files."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number
from msgspec import UNSET, UnsetType

from rookery.actors.keys.approver_signatures import Signer
from rookery.actors.keys.approver_signatures import read_signer as signer_of
from rookery.actors.keys.ed25519 import KEY_BYTES, read_public_key
from rookery.actors.keys.json_signatures import key_of_file
from rookery.bus.clock import SystemClock, entropy
from rookery.ops.cli.options import parse_duration_ms
from rookery.ops.cli.output import clock_time
from rookery.ops.cli.usage_errors import STDIN
from rookery.schemas.agents import ToolMode
from rookery.schemas.envelope import DEFAULT_CLASSES, FactClasses
from rookery.schemas.errors import Refused
from rookery.schemas.ids import check_session_id
from rookery.schemas.protection.rights import Rights, ToolRight
from rookery.schemas.run import (
    FileInput,
    Language,
    RunLimits,
    RunRequest,
    SessionLimits,
    SideEffect,
    limit_hint,
)
from rookery.schemas.seed.refs import PrivacyClass, RetentionClass

__all__ = [
    "NO_CLASS_OPTIONS",
    "NO_PROGRAM_OPTIONS",
    "NO_PROMPT_OPTIONS",
    "NO_RIGHTS_OPTIONS",
    "ClassOptions",
    "File",
    "ProgramOptions",
    "PromptOptions",
    "RightsOptions",
    "find_language",
    "make_key",
    "parse_allowance",
    "parse_limits",
    "read_json_key_file",
    "read_public_key_file",
    "read_signer",
    "right_words",
    "run_request",
]

# --- key files ------------------------------------------------------------------------------------

# Key files of approvers. A private key that other users can read is refused.


_FILE_BYTES_MAX = 64 << 10
_GROUP_OR_OTHER_BITS = stat.S_IRWXG | stat.S_IRWXO


def make_key(path: Path) -> Signer:
    """A new private key in a new file that only its owner may read."""
    signer = Signer(entropy(KEY_BYTES))
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise Refused(
            "INVALID_ARGUMENT",
            f"{path} exists, and a key file is never overwritten",
            hint=f"use the existing key: --key {path}",
        ) from None
    except OSError as error:
        raise _unusable(path, error) from None
    with os.fdopen(file, "w", encoding="ascii") as key:
        key.write(signer.private_pem.rstrip() + "\n")
    return signer


def read_signer(path: Path) -> Signer:
    """The private key in a file."""
    text, mode = _read(path)
    if mode & _GROUP_OR_OTHER_BITS:
        raise Refused(
            "INVALID_ARGUMENT",
            f"{path} can be read by other users (mode {stat.S_IMODE(mode):04o})",
            hint=f"chmod 600 {path}",
        )
    return signer_of(text)


def read_public_key_file(path: Path) -> str:
    """The public key in a file, or that of the private key in it, in hex."""
    return read_public_key(_read(path)[0])


def read_json_key_file(path: Path) -> str:
    """The public key in a file, of Ed25519 or P-256, as a JSON Web Key."""
    return key_of_file(_read(path)[0])


def _read(path: Path) -> tuple[str, int]:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            return file.read(_FILE_BYTES_MAX).decode("ascii", "replace"), mode
    except OSError as error:
        raise _unusable(path, error) from None


def _unusable(path: Path, error: OSError) -> Refused:
    return Refused("INVALID_ARGUMENT", f"the key file {path}: {error.strerror}")


# --- program args ---------------------------------------------------------------------------------

# The program arguments of the command line, and the run request made of them.
#
# Wrong usage is refused here; the node checks the request itself.


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


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PromptOptions:
    """A prompt instead of a program, and its model."""

    prompt: Annotated[
        str | None,
        Parameter(help="Ask a model, which uses the tools.", allow_leading_hyphen=True),
    ] = None
    model: Annotated[
        str | None, Parameter(help="Model, as NAME of [models.NAME]; default: models.default.")
    ] = None
    instructions: Annotated[
        str | None, Parameter(help="What the model is to heed.", allow_leading_hyphen=True)
    ] = None

    schema: Annotated[str | None, Parameter(help="A FILE with the JSON Schema of the result.")] = (
        None
    )
    tool_mode: Annotated[
        ToolMode | None, Parameter(help="The model acts by calls of tools, by programs, or both.")
    ] = None
    agent: Annotated[
        str | None, Parameter(help="Agent of the node; --input NAME=JSON gives its arguments.")
    ] = None

    @property
    def has_prompt(self) -> bool:
        """Whether a model drives the run."""
        return self.prompt is not None or self.agent is not None

    def fields(self) -> dict[str, Any]:
        """The fields of the request that are given."""
        given = {
            "prompt": self.prompt,
            "model": self.model,
            "instructions": self.instructions,
            "output_schema": None if self.schema is None else _json_of(self.schema),
            "tool_mode": self.tool_mode,
            "agent": self.agent,
        }
        return {name: value for name, value in given.items() if value is not None}


NO_PROMPT_OPTIONS = PromptOptions()


def run_request(
    file: str | None,
    words: ProgramOptions,
    prompt: PromptOptions = NO_PROMPT_OPTIONS,
    **more: Any,
) -> RunRequest:
    """The run request of a command line."""
    return RunRequest(
        session_id=check_session_id(words.session),
        language=_language(words.language, file),
        code=_source(file, words.code, prompt=prompt.has_prompt),
        inputs=dict(_input(text) for text in words.input or ()),
        files=dict(_put(text) for text in words.put) if words.put else UNSET,
        timeout_ms=words.timeout_ms,
        limits=RunLimits(**parse_limits(words.limit, "--limit ", RunLimits))
        if words.limit
        else None,
        **prompt.fields(),
        **more,
    )


def _source(file: str | None, code: str | None, *, prompt: bool) -> str:
    """The program; none beside a prompt."""
    if (file is not None) + (code is not None) + prompt != 1:
        is_empty = file is None and code is None
        text = "nothing to run" if is_empty else "more than one of a file, -e and --prompt"
        hint = "give a FILE, -, -e CODE, --prompt TEXT or --agent NAME"
        raise Refused("INVALID_ARGUMENT", text, hint=hint)
    if prompt:
        return ""
    if code is not None:
        return code
    return _text(str(file), sys.stdin.buffer.read() if file == STDIN else _bytes(str(file)))


def _json_of(file: str) -> Any:
    try:
        return msgspec.json.decode(_bytes(file))
    except msgspec.DecodeError as error:
        raise Refused("INVALID_ARGUMENT", f"{file} is not JSON: {error}") from None


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


def parse_limits(
    texts: Sequence[str], option: str = "", kind: type[SessionLimits] = SessionLimits
) -> dict[str, int]:
    """The limits in arguments of the form NAME=NUMBER."""
    known, limits = kind.__struct_fields__, dict[str, int]()
    for text in texts:
        name, value = _micro_dollars(*_pair(text, option, "NAME=NUMBER"))
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


def _micro_dollars(name: str, value: str) -> tuple[str, str]:
    """``cost=0.50``, in dollars, as the limit that requests have."""
    if name != "cost":
        return name, value
    try:
        return "cost_micro_usd", str(round(float(value) * 1_000_000))
    except (ValueError, OverflowError):
        return "cost_micro_usd", value


def _pair(text: str, option: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise Refused("INVALID_ARGUMENT", f"{option}{text!r} is not {form}")
    return name, value


# --- rights args ----------------------------------------------------------------------------------

# The options of the command line that name rights, and the rights made of them.


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ClassOptions:
    """What the facts of a session claim at least."""

    privacy: Annotated[
        PrivacyClass | None,
        Parameter(help="Its facts are sensitive or secret; nothing lowers that again."),
    ] = None
    retention: Annotated[
        RetentionClass | None, Parameter(help="How long its facts may be stored.")
    ] = None

    def classes(self) -> FactClasses | UnsetType:
        """The classes of these options; unset if there is none."""
        if self.privacy is None and self.retention is None:
            return UNSET
        default = DEFAULT_CLASSES
        return FactClasses(self.privacy or default.privacy, self.retention or default.retention)


NO_CLASS_OPTIONS: Final = ClassOptions()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RightsOptions:
    """What programs may call. Without these options nothing is restricted."""

    tool: Annotated[
        list[str] | None, Parameter(help="A tool it may call; no others.", negative="")
    ] = None
    surface: Annotated[
        list[str] | None,
        Parameter(help="A surface whose tools it may call; local: the node's own.", negative=""),
    ] = None
    allow: Annotated[
        list[str] | None,
        Parameter(
            help="A tool it may call under a condition: 'pay: args.amount <= 50'.", negative=""
        ),
    ] = None
    side_effects: Annotated[
        str | None,
        Parameter(help=f"The worst side effect of a tool it may call: {', '.join(SideEffect)}."),
    ] = None
    calls: Annotated[
        int | None, Parameter(help="Largest number of calls of a run.", validator=Number(gte=0))
    ] = None
    session_calls: Annotated[
        int | None,
        Parameter(help="Largest number of calls of all runs together.", validator=Number(gte=0)),
    ] = None
    expires_in: Annotated[
        str | None, Parameter(help="No calls after this time: 30s, 10m, 2h or 1d.")
    ] = None

    def rights(self) -> Rights | UnsetType:
        """The rights of these options; unset if there is none."""
        named = [self.tool, self.surface, self.allow]
        tools = (
            *(ToolRight(tool=name) for name in self.tool or ()),
            *(ToolRight(surface=name) for name in self.surface or ()),
            *(parse_allowance(text) for text in self.allow or ()),
        )
        until_ms: int | UnsetType = UNSET
        if self.expires_in is not None:
            until_ms = SystemClock().now_ms() + parse_duration_ms(self.expires_in)
        rights = Rights(
            tools=UNSET if named == [None, None, None] else tools,
            side_effect=UNSET if self.side_effects is None else find_side_effect(self.side_effects),
            calls=UNSET if self.calls is None else self.calls,
            session_calls=UNSET if self.session_calls is None else self.session_calls,
            until_ms=until_ms,
        )
        return UNSET if rights == Rights() else rights


NO_RIGHTS_OPTIONS = RightsOptions()


def find_side_effect(name: str) -> SideEffect:
    """The side effect of this name, as tools and lists spell it."""
    try:
        return SideEffect(name.strip())
    except ValueError:
        text, hint = (
            f"--side-effects: no side effect {name[:80]!r}",
            f"one of {', '.join(SideEffect)}",
        )
        raise Refused("INVALID_ARGUMENT", text, hint=hint) from None


def parse_allowance(text: str) -> ToolRight:
    """``pay: args.amount <= 50``."""
    tool, colon, condition = text.partition(":")
    if not colon or not tool.strip() or not condition.strip():
        raise Refused(
            "INVALID_ARGUMENT",
            f"{text[:80]!r} is not TOOL: CONDITION",
            hint="as in --allow 'pay: args.amount <= 50'",
        )
    return ToolRight(tool=tool.strip(), when=condition.strip())


def right_words(rights: Rights) -> str:
    """One member of a set of rights, in words."""
    parts: list[str] = []
    if rights.tools is not UNSET:
        parts.append(f"only {_tool_words(rights.tools)}" if rights.tools else "no tools")
    if rights.without:
        parts.append(f"without {_tool_words(rights.without)}")
    if rights.side_effect is not UNSET:
        parts.append(f"side effects up to {rights.side_effect}")
    if rights.calls is not UNSET:
        parts.append(f"{rights.calls} calls a run")
    if rights.session_calls is not UNSET:
        parts.append(f"{rights.session_calls} calls of the session")
    if rights.until_ms is not UNSET:
        parts.append(f"until {clock_time(rights.until_ms)}")
    return "; ".join(parts) or "everything"


def _tool_words(tools: Sequence[ToolRight]) -> str:
    return ", ".join(map(_one_tool, tools))


def _one_tool(right: ToolRight) -> str:
    name = right.tool or "any tool"
    if right.surface:
        name = f"{name} of {right.surface}"
    return f"{name} if {right.when}" if right.when else name
