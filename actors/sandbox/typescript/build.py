"""A build of the TypeScript guest as one piece of bytes, named by its digest.

It holds the engine, the transformer, the prelude with its parts, and the edition of the translation
from TypeScript: histories are stored as sources, and the same source must translate to the same
program. The translation is code of the host, so a node can only run builds of the editions that it
has. All other code of the host may change.
"""

from __future__ import annotations

from functools import cached_property

import msgspec

from rookery.actors.sandbox.python import GuestCache
from rookery.actors.sandbox.typescript.engine import engine_bytes, parts, prelude
from rookery.actors.sandbox.typescript.transformer import transformer_bytes
from rookery.actors.sandbox.typescript.translation import EDITION, EDITIONS
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import Failed

__all__ = ["JavaScriptBuild"]


class JavaScriptBuild(msgspec.Struct, frozen=True, kw_only=True, dict=True, omit_defaults=True):
    """All that decides how a program executes."""

    edition: int
    engine: bytes
    transformer: bytes
    prelude: str
    parts: dict[str, str] = {}
    """Parts of the prelude, evaluated when needed; edition 1 had none."""

    @staticmethod
    def installed(cache: GuestCache | None = None) -> JavaScriptBuild:
        """The build of the installed files."""
        return JavaScriptBuild(
            edition=EDITION,
            engine=engine_bytes(cache),
            transformer=transformer_bytes(),
            prelude=prelude(),
            parts=parts(),
        )

    @staticmethod
    def read(piece: bytes) -> JavaScriptBuild:
        """Decode a build; raises ``GUEST_BUILD_FAILED`` if this host cannot run it."""
        try:
            build = msgspec.msgpack.decode(piece, type=JavaScriptBuild)
        except msgspec.MsgspecError as error:
            raise Failed("GUEST_BUILD_FAILED", f"not a TypeScript build: {error}") from None
        if build.edition not in EDITIONS:
            raise Failed(
                "GUEST_BUILD_FAILED",
                f"the build needs edition {build.edition} of the translation; this host has "
                f"{sorted(EDITIONS)} only",
            )
        return build

    @cached_property
    def piece(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @cached_property
    def digest(self) -> str:
        return digest_bytes(self.piece)
