"""A build of the TypeScript guest, in one piece that is named by its digest and can be sent.

Bound are the engine, the transformer, the prelude in the engine's memory and its parts, and the
edition of what is made of a source before the engine sees it: histories are kept as sources, and
the same source has to come to the same program. That part of it is the host's and cannot be sent,
so a node goes on with builds of the editions it has. All other code of the host may change.
"""

from __future__ import annotations

from functools import cached_property

import msgspec

from rookery.actors.sandbox.typescript.engine import engine_bytes, parts, prelude
from rookery.actors.sandbox.typescript.transformer import transformer_bytes
from rookery.actors.sandbox.typescript.translation import EDITION, EDITIONS
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import Failed

__all__ = ["JavaScriptBuild"]


class JavaScriptBuild(msgspec.Struct, frozen=True, kw_only=True, dict=True, omit_defaults=True):
    """What decides how a program goes."""

    edition: int
    engine: bytes
    transformer: bytes
    prelude: str
    parts: dict[str, str] = {}
    """Of the prelude, read when they are needed; edition 1 had none."""

    @staticmethod
    def installed() -> JavaScriptBuild:
        """As it was installed."""
        return JavaScriptBuild(
            edition=EDITION,
            engine=engine_bytes(),
            transformer=transformer_bytes(),
            prelude=prelude(),
            parts=parts(),
        )

    @staticmethod
    def read(piece: bytes) -> JavaScriptBuild:
        """``GUEST_BUILD_FAILED`` if this host cannot go on with it."""
        try:
            build = msgspec.msgpack.decode(piece, type=JavaScriptBuild)
        except msgspec.MsgspecError as error:
            raise Failed("GUEST_BUILD_FAILED", f"no build of TypeScript: {error}") from None
        if build.edition not in EDITIONS:
            raise Failed(
                "GUEST_BUILD_FAILED",
                f"its programs were made by edition {build.edition} of the translation; this host "
                f"has {sorted(EDITIONS)} only",
            )
        return build

    @cached_property
    def piece(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @cached_property
    def digest(self) -> str:
        return digest_bytes(self.piece)
