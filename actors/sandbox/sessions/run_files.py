"""The files that a run is given, and those that it leaves in ``/work/out``."""

from __future__ import annotations

import binascii
from mimetypes import MimeTypes
from typing import Final

from msgspec.structs import replace

from rookery.actors.sandbox.contract import FilesStep
from rookery.schemas.digest import digest_bytes
from rookery.schemas.run import ErrorObject
from rookery.schemas.seed.content import ContentKind, ContentRef, ContentScope

__all__ = ["DATA_CHANNEL", "NAME_CHANNEL", "WrittenFiles", "file_error", "file_steps"]

NAME_CHANNEL: Final = 3
DATA_CHANNEL: Final = 4
FILES_MAX: Final = 32
BYTES_MAX: Final = 16 << 20
_PIECE_BYTES: Final = 256 << 10

_TYPES: Final = MimeTypes(filenames=())  # Those of Python, equal on every machine.
_DEFAULT: Final = "application/octet-stream"
_KINDS: Final = {
    "image": ContentKind.IMAGE,
    "audio": ContentKind.AUDIO,
    "video": ContentKind.VIDEO,
    "text": ContentKind.TEXT,
}
_DOCUMENTS: Final = frozenset({"application/pdf", "application/json"})


def file_steps(path: str, data: bytes | None) -> list[FilesStep]:
    """The steps that write a file, piece by piece, or remove it."""
    if data is None:
        return [FilesStep(op="remove", path=path)]
    starts = range(0, max(1, len(data)), _PIECE_BYTES)
    return [
        FilesStep(op="write", path=path, at=at, data=data[at : at + _PIECE_BYTES]) for at in starts
    ]


def file_error(error: ErrorObject) -> ErrorObject:
    """The error of a step with files; guests of older builds do not know the step."""
    if error.code == "FILE_NOT_FOUND" and error.message.endswith("Is a directory"):
        return replace(error, code="INVALID_ARGUMENT")
    if error.code != "RUNTIME_ERROR":
        return error
    return ErrorObject(
        code="UNSUPPORTED_FEATURE",
        message="the guest that this session began with takes no files",
        hint="use a new session",
    )


class WrittenFiles:
    """Collects the files that a guest sends at the end of a run, up to a limit."""

    def __init__(self) -> None:
        self.cut = False
        """Whether files were left out."""
        self._files: list[tuple[str, bytearray]] = []
        self._size_bytes = 0
        self._is_open = False

    def add(self, channel: int, text: bytes) -> bool:
        """Begin a file, or add base64 to it; returns whether to send more of it."""
        if channel == NAME_CHANNEL:
            self._is_open = len(self._files) < FILES_MAX
            if self._is_open:
                self._files.append((text.decode(errors="replace"), bytearray()))
        elif self._is_open:
            self._is_open = self._extend(text)
        self.cut |= not self._is_open
        return self._is_open

    def _extend(self, text: bytes) -> bool:
        """Add to the last file; a file that does not fit is left out."""
        try:
            data = binascii.a2b_base64(text)
        except binascii.Error:
            data = None
        if data is None or self._size_bytes + len(data) > BYTES_MAX:
            self._size_bytes -= len(self._files.pop()[1])
            return False
        self._size_bytes += len(data)
        self._files[-1][1].extend(data)
        return True

    def __bool__(self) -> bool:
        return bool(self._files) or self.cut

    def refs(self) -> tuple[tuple[ContentRef, bytes], ...]:
        """The refs and the contents, in the order of their paths."""
        contents = [(path, bytes(data)) for path, data in self._files]
        return tuple((_ref(path, data), data) for path, data in contents)


def _ref(path: str, data: bytes) -> ContentRef:
    mime, digest = _TYPES.guess_type(path)[0] or _DEFAULT, digest_bytes(data)
    kind = _KINDS.get(mime.partition("/")[0], ContentKind.FILE)
    return ContentRef(
        content_id=f"blob.{digest}",
        kind=ContentKind.DOCUMENT if mime in _DOCUMENTS else kind,
        artifact_ref=path,
        scope=ContentScope.RUN,
        mime=mime,
        size_bytes=len(data),
        content_hash=digest,
        resolver_ref="blob",
    )
