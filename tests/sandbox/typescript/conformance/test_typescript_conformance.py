"""The translation of TypeScript agrees with the TypeScript compiler. The long form, with the
compiler's own cases, is ``python -m
tests.sandbox.typescript.conformance.typescript_conformance``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rookery.actors.sandbox.typescript.guest import JavaScriptGuest
from tests.sandbox.typescript.conformance.typescript_conformance import (
    Compiler,
    Unavailable,
    Verdict,
    judged,
)
from tests.sandbox.typescript.test_type_erasure import FILES, read
from tests.sandbox.typescript.typescript_variations import variations

ONE_IN = 16
NOT_TYPES = {
    "blanked/script_comments": "comments of scripts, which the compiler does not know",
    "blanked/statements": "using, which the compiler prints otherwise",
}


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    try:
        process = Compiler()
    except Unavailable as reason:
        pytest.skip(str(reason))
    with process:
        yield process


def test_types_of_every_form_leave_the_program_the_compiler_leaves(
    compiler: Compiler, javascript_guest: JavaScriptGuest
):
    verdicts = judged(variations(one_in=ONE_IN), compiler, javascript_guest.transform)
    assert bad(verdicts) == {}
    assert len(verdicts) > 300


def test_the_corpus_is_made_into_what_the_compiler_makes_of_it(
    compiler: Compiler, javascript_guest: JavaScriptGuest
):
    names = [name for name in FILES if not name.startswith("refused/")]
    sources = {name: read(name) for name in names}
    verdicts = judged(sources, compiler, javascript_guest.transform)
    assert bad(verdicts).keys() <= NOT_TYPES.keys()


def test_a_difference_is_seen(compiler: Compiler, javascript_guest: JavaScriptGuest):
    def careless(source: bytes, watch: object) -> str:
        return source.decode().replace("<any>", "")

    source = {"a block instead of an object": "const f = ((x) => <any>{ a: x })(1)"}
    assert bad(judged(source, compiler, javascript_guest.transform)) == {}
    assert bad(judged(source, compiler, careless)).keys() == source.keys()


def bad(verdicts: dict[str, Verdict]) -> dict[str, Verdict]:
    return {name: verdict for name, verdict in verdicts.items() if not verdict.is_good}
