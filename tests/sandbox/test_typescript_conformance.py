"""What is made of TypeScript here is what the TypeScript compiler makes of it. The long form, with
the compiler's own cases, is ``python -m tests.sandbox.typescript_conformance``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rookery.actors.sandbox.javascript_guest import JavaScriptGuest
from tests.sandbox.test_typescript_blanking import FILES, read
from tests.sandbox.typescript_conformance import Unavailable, Verdict, compiler, judged
from tests.sandbox.typescript_variations import variations

ONE_IN = 9
NOT_TYPES = {
    "blanked/script_comments": "comments of scripts, which the compiler does not know",
    "blanked/statements": "using, which the compiler prints otherwise",
}


@pytest.fixture(scope="module")
def folder() -> Path:
    try:
        return compiler()
    except Unavailable as reason:
        pytest.skip(str(reason))


def test_types_of_every_form_leave_the_program_the_compiler_leaves(
    folder: Path, javascript_guest: JavaScriptGuest
):
    verdicts = judged(variations(one_in=ONE_IN), folder, javascript_guest.transform)
    assert bad(verdicts) == {}
    assert len(verdicts) > 500


def test_the_corpus_is_made_into_what_the_compiler_makes_of_it(
    folder: Path, javascript_guest: JavaScriptGuest
):
    names = [name for name in FILES if not name.startswith("refused/")]
    sources = {name: read(name) for name in names}
    verdicts = judged(sources, folder, javascript_guest.transform)
    assert bad(verdicts).keys() <= NOT_TYPES.keys()


def test_a_difference_is_seen(folder: Path, javascript_guest: JavaScriptGuest):
    def careless(source: bytes, watch: object) -> str:
        return source.decode().replace("<any>", "")

    source = {"a block instead of an object": "const f = ((x) => <any>{ a: x })(1)"}
    assert bad(judged(source, folder, javascript_guest.transform)) == {}
    assert bad(judged(source, folder, careless)).keys() == source.keys()


def bad(verdicts: dict[str, Verdict]) -> dict[str, Verdict]:
    return {name: verdict for name, verdict in verdicts.items() if not verdict.is_good}
