"""Sessions of an earlier edition of TypeScript continue with it: the same prelude, the same
translation, the same values and instructions. The version with that edition wrote the files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from rookery.actors.sandbox import Sandbox, SuspendedRun, ToolResult
from rookery.actors.sandbox.python.build import GuestCache, cache_folder
from rookery.actors.sandbox.runtime.wasm import make_engine
from rookery.actors.sandbox.typescript.build import JavaScriptBuild
from rookery.actors.sandbox.typescript.frame_counter import count_frames
from rookery.actors.sandbox.typescript.guest import JavaScriptGuest
from rookery.schemas.run import Language
from tests.builds import own_build
from tests.sandbox.program_runner import answer
from tests.sandbox.runtime.test_guest_registry import Published, opened
from tests.sandbox.session_fixture import NOW_MS, TOOLS, Stage

FOLDER = Path(__file__).with_name("earlier_typescript")
RECORD: dict[str, Any] = json.loads((FOLDER / "edition_1.json").read_text())


@cache
def earlier() -> JavaScriptBuild:
    """The build, whose native code is in this user's cache then: its engine is not today's."""
    own = JavaScriptBuild.installed()
    build = JavaScriptBuild(
        edition=1,
        engine=count_frames(files("quickjs_rs").joinpath("_guest.wasm").read_bytes()),
        transformer=own.transformer,
        prelude=(FOLDER / "edition_1.js").read_text(),
    )
    found = GuestCache(cache_folder(os.environ))
    assert JavaScriptGuest(make_engine(has_fibers=True), found, lambda: build).pristine
    return build


@pytest.fixture(scope="module")
def sandbox_of_today(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    folder = tmp_path_factory.mktemp("earlier")
    with opened(folder, own_build(), Published(earlier().piece)) as sandbox:
        yield sandbox


def test_the_build_of_an_earlier_edition_is_the_one_it_was():
    assert earlier().digest == RECORD["build"] != JavaScriptBuild.installed().digest
    assert JavaScriptBuild.read(earlier().piece) == earlier()


@pytest.mark.parametrize("name", RECORD["programs"])
def test_a_program_of_an_earlier_edition_runs_as_it_did(sandbox_of_today: Sandbox, name: str):
    code, *expected = RECORD["programs"][name]
    sandbox_of_today.rebuild(
        "earlier",
        seed=b"seed",
        created_ms=NOW_MS,
        language=Language.TYPESCRIPT,
        tools=TOOLS,
        build=RECORD["build"],
    )
    stage = Stage(sandbox_of_today, "earlier", create=False, language=Language.TYPESCRIPT)
    stage.value(RECORD["first"], answer=answer)
    outcome = stage.try_run(code, answer=answer)
    while isinstance(outcome, SuspendedRun):
        yes = {call.id: ToolResult("yes", duration_ms=1) for call in outcome.calls}
        outcome = stage.resume(answers=yes, answer=answer)
    stage.end()
    error = outcome.error and outcome.error.code
    found = [outcome.status, outcome.result, outcome.stdout, outcome.stderr, error]
    assert [*found, outcome.metrics.instructions] == expected
