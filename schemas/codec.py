"""Codecs between bytes and structs: the upcast of old facts, and errors with a code and a hint."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from functools import cache, reduce
from operator import or_
from types import UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

import msgspec

from rookery.schemas.digest import canonical_json
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.ids import decode_typed_text, encode_typed_text

__all__ = [
    "JSON",
    "MSGPACK",
    "NESTING_MAX",
    "NO_UPCASTS",
    "FactCodec",
    "Range",
    "Upcasts",
    "decode_command",
    "encode_facts",
    "encode_json",
    "fact_name",
    "fact_tag",
    "hint_for",
    "nested_too_deeply",
    "range_of",
    "restarts_history",
    "strict",
    "wire_names",
]

# --- upcast ---------------------------------------------------------------------------------------

# Upcasting of old facts. Wire names are never renamed, versions only grow.
#
# Functions on plain dictionaries lift a fact ``family.kind.vN`` by one version each. A newer
# version than this node's is refused by code, because a guess would rebuild a wrong state.


Raw = dict[str, Any]
_NAME = re.compile(r"(?P<kind>[a-z_]+\.[a-z0-9_]+)\.v(?P<version>[0-9]{1,9})\Z")


class Upcasts:
    """Functions by the wire name they lift from; each returns the next version's dictionary."""

    def __init__(self, lifts: Mapping[str, Callable[[Raw], Raw]]) -> None:
        for name in lifts:
            if not _NAME.match(name):
                raise ValueError(f"a lift starts from a wire name, not from {name!r}")
        self._lifts = dict(lifts)

    def apply(self, raw: Raw, known: Collection[str]) -> Raw:
        """``raw`` lifted to a name in ``known``, or an error with the missing step."""
        name = str(raw.get("type", ""))
        while name not in known:
            lift = self._lifts.get(name)
            if lift is None:
                raise _unknown(name, known)
            try:
                raw = lift(dict(raw))
            except (LookupError, TypeError, ValueError) as error:
                raise Failed("FACT_INVALID", f"{name} cannot be lifted: {error!r}") from error
            name = _next(name)
            raw["type"] = name
        return raw


def _next(name: str) -> str:
    kind, _, version = name.rpartition(".v")
    return f"{kind}.v{int(version) + 1}"


def _unknown(name: str, known: Collection[str]) -> Failed:
    found = _NAME.match(name)
    ours = [
        int(k.rpartition(".v")[2]) for k in known if found and k.startswith(found["kind"] + ".v")
    ]
    if found and ours and int(found["version"]) > max(ours):
        return Failed(
            "FACT_VERSION_UNSUPPORTED",
            f"{name} is newer than v{max(ours)}, the newest version this node reads",
            hint="upgrade this node before it serves this realm",
        )
    return Failed("FACT_UNKNOWN", f"this node has no fact {name[:80]!r}")


NO_UPCASTS = Upcasts({})


# --- validation hints -----------------------------------------------------------------------------

# Hints for a body that does not match its type.
#
# The types provide them: a field's range, an enumeration's words, a struct's fields. Otherwise the
# hint is where to read the whole schema.


_PLACE: Final = re.compile(r"at `\$((?:\.\w+)*)")
_SCHEMA: Final = "nats req '$SRV.INFO.rookery' '' prints the schema of every command"


class Range(NamedTuple):
    """Range of a whole number."""

    least: int
    most: int

    def hint(self, name: str) -> str:
        return f"{name} is a whole number from {self.least} to {self.most}"


def range_of(annotation: Any) -> Range | None:
    """The range in an annotation or in a member of it."""
    for part in get_args(annotation):
        extra = part.extra_json_schema if isinstance(part, msgspec.Meta) else None
        if extra and "minimum" in extra:
            return Range(extra["minimum"], extra["maximum"])
        if (found := range_of(part)) is not None:
            return found
    return None


def hint_for(kind: Any, message: str) -> str:
    """A hint that completes msgspec's ``message`` about a struct ``kind``."""
    found = _PLACE.search(message)
    names = found[1].split(".")[1:] if found else []
    annotation = kind
    for name in names:
        owner = _struct_in(annotation)
        if owner is None:
            return _SCHEMA
        types = {field.encode_name: field.type for field in msgspec.structs.fields(owner)}
        annotation = types.get(name)
    return _hint_at(names[-1] if names else "", annotation, message)


def _hint_at(name: str, annotation: Any, message: str) -> str:
    if "unknown field" in message and (owner := _struct_in(annotation)) is not None:
        return f"known: {', '.join(field.encode_name for field in msgspec.structs.fields(owner))}"
    if (allowed := range_of(annotation)) is not None:
        return allowed.hint(name)
    for member in _members(annotation):
        if isinstance(member, type) and issubclass(member, Enum):
            return f"{name} is one of {', '.join(str(word.value) for word in member)}"
    return _SCHEMA


def _struct_in(annotation: Any) -> type[msgspec.Struct] | None:
    for member in _members(annotation):
        if isinstance(member, type) and issubclass(member, msgspec.Struct):
            return member
    return None


def _members(annotation: Any) -> tuple[Any, ...]:
    """Members of a union, or the annotation itself."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    return get_args(annotation) or (annotation,)


# --- codec ----------------------------------------------------------------------------------------

# Codecs between bytes and structs; a mismatch is an error with a code.
#
# A journal message is a JSON array of the facts of one decision of one entity; decoding ignores
# unknown fields. Commands are JSON or MessagePack; unknown fields are refused at every depth. The
# caller names the known facts by a union type.


JSON = "application/json"
MSGPACK = "application/msgpack"
_JSON_TYPES = ("", JSON, "text/json", "text/plain")
_MSGPACK_TYPES = (MSGPACK, "application/x-msgpack", "application/vnd.msgpack")

NESTING_MAX = 128
"""Far below Python's recursion limit, so that an accepted body can be journaled and read back at
any depth of the call stack."""

F = TypeVar("F", bound=Fact)
S = TypeVar("S")

encode_json = msgspec.json.Encoder(enc_hook=encode_typed_text).encode
_raw_facts = msgspec.json.Decoder(list[dict[str, Any]]).decode
_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_RESTARTS = b".history_restarted.v1"
_string = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_AS_SQUARE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))


def encode_facts(facts: Sequence[Fact]) -> bytes:
    """The body of a journal message."""
    return encode_json(facts)


def fact_tag(kind: type[Fact]) -> str:
    """The wire name of a fact, such as ``tool.completed.v1``."""
    return str(kind.__struct_config__.tag)


@cache
def fact_name(kind: type[Fact]) -> str:
    """The wire name of a fact without its version, such as ``tool.completed``."""
    return fact_tag(kind).rpartition(".")[0]


def wire_names(union: Any) -> dict[str, type[Fact]]:
    """Wire name to struct, of a union of facts or of one fact."""
    members = get_args(union) if isinstance(union, UnionType) or get_args(union) else (union,)
    return {fact_tag(member): member for member in members}


class FactCodec(Generic[F]):
    """Decodes the facts of one family: upcasts old versions and refuses newer ones by code."""

    def __init__(self, union: Any, upcasts: Upcasts = NO_UPCASTS) -> None:
        self.names = wire_names(union)
        self._upcasts = upcasts
        self._decode = msgspec.json.Decoder(list[union], dec_hook=decode_typed_text).decode

    def decode(self, body: bytes) -> list[F]:
        """The facts of a message. The slow path finds the error, or upcasts."""
        try:
            return self._decode(body)
        except msgspec.ValidationError:
            return self._decode_slowly(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Failed("FACT_INVALID", f"a journal message is not JSON: {error}") from None

    def skim(self, body: bytes) -> list[tuple[str, type[Fact] | None]]:
        """The id and the class of each fact, in a tenth of the time of ``decode``. There is no
        class if only ``decode`` knows whether the fact can be read, and nothing if the message is
        no JSON."""
        try:
            return [(head.id, self.names.get(head.type)) for head in _fact_names(body)]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return []

    def _decode_slowly(self, body: bytes) -> list[F]:
        if _is_sealed(body):
            raise Failed(
                "SEALED_UNSUPPORTED",
                "the message is sealed",
                hint="read it with the version that wrote it",
            )
        try:
            raw = [self._upcasts.apply(fact, self.names) for fact in _raw_facts(body)]
            return self._decode(encode_json(raw))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Failed("FACT_INVALID", f"a fact does not fit its type: {error}") from None


class _FactName(msgspec.Struct, gc=False):
    """What tells of a fact without its contents."""

    type: str = ""
    id: str = ""


_fact_names = msgspec.json.Decoder(list[_FactName]).decode


def restarts_history(body: bytes) -> bool:
    """Whether a journal message restarts its entity's history."""
    if _RESTARTS not in body:
        return False
    try:
        return bool(heads := _fact_names(body)) and heads[0].type.encode().endswith(_RESTARTS)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def decode_command(
    body: bytes, kind: type[S], *, content_type: str = "", bytes_max: int = 1 << 20
) -> S:
    """A command's body as ``kind``, or a coded refusal; an empty JSON body is ``{}``."""
    if len(body) > bytes_max:
        raise Refused(
            "PAYLOAD_TOO_LARGE",
            f"the body has {len(body)} bytes, the limit is {bytes_max}",
            hint="put large values into the blob store and send their digest",
        )
    text = _json_text(body, content_type.partition(";")[0].strip().lower())
    if nested_too_deeply(text):
        raise Refused("INVALID_JSON", f"the body is nested deeper than {NESTING_MAX} levels")
    try:
        checked = msgspec.json.decode(text, type=strict(kind), dec_hook=decode_typed_text)
        if type(checked) is kind:
            return checked
        return msgspec.json.decode(text, type=kind, dec_hook=decode_typed_text)
    except msgspec.ValidationError as error:
        message = str(error)
        code = "UNKNOWN_FIELD" if "unknown field" in message else "INVALID_ARGUMENT"
        raise Refused(code, message, hint=hint_for(kind, message)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if alone := _unpaired_surrogate(text):
            problem = f"text with the unpaired surrogate {alone} is no Unicode text"
            raise Refused("INVALID_ARGUMENT", problem) from None
        raise Refused("INVALID_JSON", str(error)) from None


_ESCAPES = re.compile(
    rb"\\(?:u[dD][89aAbB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?P<alone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""An escape in a JSON text; a pair of surrogates is one."""


def _unpaired_surrogate(text: bytes) -> str:
    """The first escape of half a character; msgspec reports it as truncated data."""
    found = (escape["alone"] for escape in _ESCAPES.finditer(text))
    return next((f"\\{alone.decode()}" for alone in found if alone), "")


def strict(kind: type[S]) -> type[S]:
    """``kind`` with unknown fields refused, in it and in the structs inside it.

    A class that has to be made for this is called ``...Input``, so that a schema can hold both.
    """
    return cast("type[S]", _strict_twin(kind))  # type: ignore[arg-type] # Every type is hashable.


@cache
def _strict_twin(kind: Any) -> Any:
    if not issubclass(kind, msgspec.Struct):
        return kind
    changed = []
    for field in msgspec.structs.fields(kind):
        inner = _strict_annotation(field.type)
        if inner is not field.type:
            changed.append((field.name, inner, _field_default(field)))
    if kind.__struct_config__.forbid_unknown_fields and not changed:
        return kind
    return msgspec.defstruct(
        f"{kind.__name__}Input",
        changed,
        bases=(kind,),
        namespace={"__doc__": kind.__doc__},
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )


def _strict_annotation(annotation: Any) -> Any:
    members, origin = get_args(annotation), get_origin(annotation)
    if not members:
        return strict(annotation) if isinstance(annotation, type) else annotation
    twins = tuple(map(_strict_annotation, members))
    if twins == members:
        return annotation
    return reduce(or_, twins) if origin in (Union, UnionType) else origin[twins]


def _field_default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return msgspec.field(default_factory=field.default_factory)
    return msgspec.field() if field.required else msgspec.field(default=field.default)


def _json_text(body: bytes, content_type: str) -> bytes:
    """The body as JSON. MessagePack is translated, because a value without a JSON text cannot be
    journaled, and a value that reads back differently would change a replay's decisions."""
    if content_type in _JSON_TYPES:
        return body or b"{}"
    if content_type not in _MSGPACK_TYPES:
        raise Refused(
            "UNSUPPORTED_CONTENT_TYPE",
            f"content type {content_type[:80]!r} is not understood",
            hint=f"send {JSON} or {MSGPACK}",
        )
    try:
        value = msgspec.msgpack.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError) as error:
        raise Refused("INVALID_JSON", f"the body is not MessagePack: {error}") from None
    try:
        return canonical_json(value)
    except Refused as error:
        raise Refused("INVALID_ARGUMENT", error.message) from None


def _is_sealed(body: bytes) -> bool:
    try:
        return "sealed" in _object(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def nested_too_deeply(text: bytes, levels_max: int = NESTING_MAX) -> bool:
    """Of JSON. How deep a decoder goes by itself depends on the interpreter."""
    if text.count(b"[") + text.count(b"{") <= levels_max:
        return False
    levels = _string.sub(b"", text).translate(_AS_SQUARE, _NO_BRACKET)
    for level in range(levels_max):  # Each step removes the innermost level of every branch.
        without = levels.replace(b"[]", b"")
        if len(without) == len(levels):  # What is left is never closed.
            return level + levels.count(b"[") > levels_max
        levels = without
    return b"[" in levels
