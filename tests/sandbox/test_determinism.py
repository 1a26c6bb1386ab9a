"""The same program, results and seed produce the same fuel and the same bytes: in every process,
with any hash seed, in every mode of the guests, and with any change of the session's instance in
between.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from rookery.schemas.run import Language
from tests.sandbox.modes import MODES
from tests.sandbox.program_runner import WAYS, Fate

CHECKOUT = Path(__file__).parents[2]


def fates_in(*ways: str) -> list[dict[str, Fate]]:
    """Each way in its own process and in another mode, all at the same time."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.sandbox.program_runner", way],
            cwd=CHECKOUT,
            env={**os.environ, "PYTHONHASHSEED": str(number), "ROOKERY_TEST_GUESTS": mode},
            stdout=subprocess.PIPE,
        )
        for number, (way, mode) in enumerate(zip(ways, MODES, strict=True), 1)
    ]
    outputs = [process.communicate(timeout=100)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(ways)
    return [msgspec.json.decode(text, type=dict[str, Fate]) for text in outputs]


def test_a_program_produces_the_same_bytes_everywhere():
    """One test of all programs, so that the processes are started once."""
    first, *others = fates_in(*WAYS)
    for language in Language:
        assert sum(name.startswith(language) for name in first) >= 50
    assert len(others) == 2
    for name, fate in first.items():
        assert fate.result.metrics.instructions > 100_000
        for other in others:
            assert other[name] == fate, name
    failed = [name for name, fate in first.items() if fate.result.error is not None]
    assert failed == [f"{language}: an uncaught error" for language in Language]
    waited = [name for name, fate in first.items() if len(fate.snapshots) > 1]
    assert waited == [name for name in first if "wait" in name.replace("awaited", "")]
