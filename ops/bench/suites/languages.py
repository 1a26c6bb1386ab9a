"""Programs in the sandbox against the same text in native CPython and in node, by processor time.

Every process is warm: a program runs once before it is measured. The processor time is that of the
whole process, so node's includes the threads that compile and collect garbage.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from time import process_time

from rookery.actors.sandbox import Sandbox
from rookery.ops.bench.harness.harness import Harness
from rookery.ops.bench.harness.result_rows import Figure, Round, Sync
from rookery.ops.bench.loads.language_programs import PROGRAMS, LanguageProgram
from rookery.ops.bench.loads.sandbox_load import BenchSession, open_guests
from rookery.ops.bench.loads.sandbox_peers import PeerProcess, bare_node, bare_python, has_node
from rookery.schemas.errors import Failed
from rookery.schemas.run import Language

__all__ = ["lines", "measure"]

_NATIVE = {Language.PYTHON: "python -I", Language.TYPESCRIPT: "node"}
_AT_MOST = {Language.PYTHON: 2.5, Language.TYPESCRIPT: 8.0}
_SIZE = 200
"""For 8 to 25 ms of native CPython, and 3 to 35 ms of node."""
_REPEATS = 3


def lines(sync: Sync) -> tuple[Figure, ...]:
    del sync
    return tuple(
        figure
        for language in _NATIVE
        for program in PROGRAMS
        for figure in _lines(language, program)
    )


def _lines(language: Language, program: LanguageProgram) -> tuple[Figure, ...]:
    ours, native = _names(language, program)
    if not _has_native(language):
        return (Figure(ours, "ms"),)
    return Figure(ours, "ms", native, at_most=_AT_MOST[language]), Figure(native, "ms")


def _names(language: Language, program: LanguageProgram) -> tuple[str, str]:
    return f"{program.name}, {language}", f"{program.name}, {_NATIVE[language]}"


def _has_native(language: Language) -> bool:
    return language is Language.PYTHON or has_node()


def measure(harness: Harness) -> Round:
    measured: dict[str, float] = {}
    with Sandbox(*open_guests(), b"bench", ready=1) as sandbox:
        for language in _NATIVE:
            session = BenchSession(sandbox, language, language)
            with _native_process(language) as native:
                for program in PROGRAMS:
                    code = program.code(language, harness.count(_SIZE))
                    times = _times_ms(session, native, code)
                    measured |= zip(_names(language, program), times, strict=False)
    return measured


def _native_process(language: Language) -> AbstractContextManager[PeerProcess | None]:
    if language is Language.PYTHON:
        return bare_python()
    if has_node():
        return bare_node()
    print("languages: no ratios of TypeScript, as node is not installed", file=sys.stderr)
    return nullcontext()


def _times_ms(session: BenchSession, native: PeerProcess | None, code: str) -> list[float]:
    """The medians of the sandbox and, if there is one, of the native process."""
    times = [_times_of_one_run_ms(session, native, code) for _ in range(1 + _REPEATS)]
    return [median(column) for column in zip(*times[1:], strict=True)]


def _times_of_one_run_ms(
    session: BenchSession, native: PeerProcess | None, code: str
) -> tuple[float, ...]:
    start_s = process_time()
    value = session.run(code)
    ours_ms = (process_time() - start_s) * 1e3
    if native is None:
        return (ours_ms,)
    if (expected := native.run(code)) != value:
        raise Failed("NODE_FAILED", f"a program gave {value}, natively {expected}: {code}")
    return ours_ms, native.cpu_s * 1e3
