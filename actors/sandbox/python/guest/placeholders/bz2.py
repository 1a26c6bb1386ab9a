"""Allows packages to import ``bz2``, which the guest lacks: using it fails."""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = ["BZ2Compressor", "BZ2Decompressor", "BZ2File", "compress", "decompress", "open"]


def _absent(*_arguments: Any, **_options: Any) -> NoReturn:
    raise OSError("bz2 is not available in the sandbox: use gzip, zlib or zipfile")


BZ2Compressor = BZ2Decompressor = BZ2File = compress = decompress = _absent
open = _absent  # noqa: A001 - a name of the module.
