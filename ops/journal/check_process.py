"""The check of facts in a process of its own, for long journals.

Frames go to the process's standard input: a length of four bytes, and MessagePack. The first has
the settings, each other one messages, and an empty one ends the check. The process then writes its
report to its standard output. It ends with its input, so also if this process is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Final

import msgspec

from rookery.bus.ports import StoredMessage
from rookery.ops.journal.facts_check import CheckSettings, FactsCheck, FactsReport
from rookery.ops.memory_tuning import collecting_rarely
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import CodedError, Failed

__all__ = ["CheckProcess", "check_facts"]

_COMMAND: Final = [sys.executable, "-P", "-m", "rookery.ops.journal"]
_VARIABLES: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "PYTHONPATH")
"""What the process gets of the environment, which may hold secrets."""
_LENGTH_BYTES: Final = 4
_FRAME_BYTES: Final = 256 << 10
_PIPE_BYTES: Final = 1 << 20
"""What Linux allows without a privilege. The reader of the journal may be so far ahead; a pipe of
the default size makes the two processes wait for each other."""


class _Passed(msgspec.Struct, array_like=True, gc=False):
    """A message, with what is wrong with its chain."""

    sequence: int
    family: str
    key: str
    chain: str
    body: bytes
    code: str = ""
    text: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Passed]).decode


class CheckProcess:
    """Passes messages to the process; ``finish`` waits for its report."""

    def __init__(self, settings: CheckSettings) -> None:
        self._process = subprocess.Popen(
            _COMMAND,
            env={name: os.environ[name] for name in _VARIABLES if name in os.environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pipesize=_PIPE_BYTES,
            start_new_session=True,  # A Ctrl-C reaches this process, whose end ends that one.
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._passed: list[_Passed] = []
        self._bytes = 0
        self._write(_encode(settings))

    def add(self, stored: StoredMessage, error: CodedError | None) -> None:
        """Check the next message; ``error``: that of its chain."""
        code, text = ("", "") if error is None else (error.code, error.message)
        family, key = stored.entity
        passed = _Passed(stored.sequence, family, key, stored.chain, stored.body, code, text)
        self._passed.append(passed)
        self._bytes += len(stored.body)
        if self._bytes >= _FRAME_BYTES:
            self._flush()

    def finish(self) -> FactsReport:
        """End the check, after the last message."""
        self._flush()
        self._write(b"")
        try:
            return msgspec.msgpack.decode(self._output.read(), type=FactsReport)
        except msgspec.DecodeError:
            raise self._failure() from None
        finally:
            self.close()

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        with suppress(BrokenPipeError):
            self._input.close()
        self._output.close()
        self._process.wait()

    def _flush(self) -> None:
        passed, self._passed, self._bytes = self._passed, [], 0
        if passed:
            self._write(_encode(passed))

    def _write(self, frame: bytes) -> None:
        try:
            self._input.write(len(frame).to_bytes(_LENGTH_BYTES, "big") + frame)
            self._input.flush()
        except BrokenPipeError:
            raise self._failure() from None

    def _failure(self) -> Failed:
        code = self._process.wait()
        return Failed("NODE_FAILED", f"the process that checks facts has ended with {code}")


def check_facts() -> None:
    """What the process does."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    frames = _frames(sys.stdin.buffer)
    check = FactsCheck(msgspec.msgpack.decode(next(frames), type=CheckSettings))
    with collecting_rarely():
        for frame in frames:
            if not frame:
                sys.stdout.buffer.write(_encode(check.finish()))
                return
            for one in _decode(frame):
                entity = EntityId(one.family, one.key)
                stored = StoredMessage(one.sequence, entity, "", one.chain, one.body, 0)
                check.add(stored, Failed(one.code, one.text) if one.code else None)


def _frames(file: IO[bytes]) -> Iterator[bytes]:
    while len(head := file.read(_LENGTH_BYTES)) == _LENGTH_BYTES:
        size = int.from_bytes(head, "big")
        frame = file.read(size)
        if len(frame) < size:
            return
        yield frame
