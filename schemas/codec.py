"""Bytes to structs and back, with a coded refusal for everything that does not fit.

Facts: a journal message is a JSON array of the facts of one decision of one entity. Commands: JSON
or MessagePack, unknown fields refused. Which facts exist is the caller's to say (a union type).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import UnionType
from typing import Any, Generic, TypeVar, get_args

import msgspec

from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.upcast import NO_UPCASTS, Upcasts

__all__ = ["FactCodec", "decode_command", "encode_facts", "encode_json", "wire_names"]

JSON = "application/json"
MSGPACK = "application/msgpack"

F = TypeVar("F", bound=Fact)
S = TypeVar("S")

encode_json = msgspec.json.Encoder().encode
_raw_facts = msgspec.json.Decoder(list[dict[str, Any]]).decode


def encode_facts(facts: Sequence[Fact]) -> bytes:
    """The body of a journal message."""
    return encode_json(facts)


def wire_names(union: Any) -> dict[str, type[Fact]]:
    """Wire name to struct, of a union of facts or of a single one."""
    members = get_args(union) if isinstance(union, UnionType) or get_args(union) else (union,)
    return {str(member.__struct_config__.tag): member for member in members}


class FactCodec(Generic[F]):
    """Decodes the facts of one family; old versions are upcast, newer ones refused by code."""

    def __init__(self, union: Any, upcasts: Upcasts = NO_UPCASTS) -> None:
        self.names = wire_names(union)
        self._upcasts = upcasts
        self._decode = msgspec.json.Decoder(list[union]).decode

    def decode(self, body: bytes) -> list[F]:
        """The facts of a message. The fast path knows every tag; the other one explains."""
        try:
            return self._decode(body)  # type: ignore[no-any-return]
        except msgspec.ValidationError:
            return self._decode_slowly(body)
        except msgspec.DecodeError as error:
            raise Failed("FACT_INVALID", f"a journal message is not JSON: {error}") from None

    def _decode_slowly(self, body: bytes) -> list[F]:
        if body.lstrip().startswith(b'{"sealed"'):
            raise Failed(
                "SEALED_UNSUPPORTED",
                "the message is sealed",
                hint="read it with the version that wrote it",
            )
        try:
            raw = [self._upcasts.apply(fact, self.names) for fact in _raw_facts(body)]
            return self._decode(encode_json(raw))  # type: ignore[no-any-return]
        except msgspec.DecodeError as error:
            raise Failed("FACT_INVALID", f"a fact does not fit its type: {error}") from None


def decode_command(
    body: bytes, kind: type[S], *, content_type: str = "", bytes_max: int = 1 << 20
) -> S:
    """A command's body as ``kind`` (a struct that forbids unknown fields), or a coded refusal."""
    if len(body) > bytes_max:
        raise Refused(
            "PAYLOAD_TOO_LARGE",
            f"the body has {len(body)} bytes, the limit is {bytes_max}",
            hint="put large values into the blob store and send their digest",
        )
    try:
        match content_type.partition(";")[0].strip().lower():
            case "" | "application/json" | "text/json" | "text/plain":
                return msgspec.json.decode(body or b"{}", type=kind)
            case "application/msgpack" | "application/x-msgpack" | "application/vnd.msgpack":
                return msgspec.msgpack.decode(body, type=kind)
            case other:
                raise Refused(
                    "UNSUPPORTED_CONTENT_TYPE",
                    f"content type {other!r} is not understood",
                    hint=f"send {JSON} or {MSGPACK}",
                )
    except msgspec.ValidationError as error:
        text = str(error)
        code = "UNKNOWN_FIELD" if "unknown field" in text else "INVALID_ARGUMENT"
        raise Refused(code, text) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused("INVALID_JSON", str(error)) from None
