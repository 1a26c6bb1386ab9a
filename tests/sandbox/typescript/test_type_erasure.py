"""Types become blanks, and nothing else changes: lines, positions and the meaning of the program.

The corpus consists of programs. ``blanked`` ones need only blanks; ``transformed`` ones have their
value in the first line, ``refused`` ones their code and line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import tree_sitter
import tree_sitter_typescript

from rookery.actors.sandbox import Sandbox
from rookery.actors.sandbox.typescript.guest import JavaScriptGuest
from rookery.actors.sandbox.typescript.syntax import Node, align, apply_edits, parse
from rookery.actors.sandbox.typescript.translation import EDITIONS, SourceRefused, translate
from rookery.actors.sandbox.typescript.type_erasure import erase_types
from rookery.schemas.digest import digest_json
from rookery.schemas.run import Language
from tests.sandbox.session_fixture import Stage

CORPUS = Path(__file__).with_name("typescript_corpus")
FILES = {f"{path.parent.name}/{path.stem}": path for path in sorted(CORPUS.glob("*/*.ts"))}
EXCEPTIONS = {"jsx_text": "of the grammar for TSX, which no guest uses"}
PINNED = {
    1: "d8388dcf3e656f50d87c373f89fdb2f06f8f759610a13846245312e9488dde0c",
    2: "dd047bc9bede7c86ad51f8103269748803b3183bc1181f51a43c5c4d6fea2c66",
    3: "dd047bc9bede7c86ad51f8103269748803b3183bc1181f51a43c5c4d6fea2c66",
}
"""Digests of the translated corpus in each edition."""
LANGUAGE = tree_sitter.Language(tree_sitter_typescript.language_typescript())
BLANKED = [name for name in FILES if name.startswith("blanked/")]
UNKNOWN_TO_THE_TRANSFORMER = {"blanked/script_comments": "a comment of scripts, not of modules"}


def unwatched() -> None:
    pass


def read(name: str) -> str:
    return FILES[name].read_text()


def blank(source: str) -> str:
    data = source.encode()
    root = parse(data, unwatched)
    assert not root.has_error
    blanking = erase_types(root, data)
    assert blanking.rest is None, blanking.rest.type
    return apply_edits(data, blanking.edits).text


def kinds(node: Node) -> Iterator[str]:
    yield node.type
    for child in node.named_children:
        yield from kinds(child)


def value(sandbox: Sandbox, name: str, source: str) -> object:
    stage = Stage(sandbox, name.replace("/", "-"), language=Language.TYPESCRIPT)
    found = stage.value(source)
    stage.end()
    return found


def test_every_named_node_of_the_grammar_occurs_in_the_corpus():
    grammar = {
        LANGUAGE.node_kind_for_id(number)
        for number in range(LANGUAGE.node_kind_count)
        if LANGUAGE.node_kind_is_named(number) and LANGUAGE.node_kind_is_visible(number)
    }
    found = {kind for name in FILES for kind in kinds(parse(read(name).encode(), unwatched))}
    assert len(grammar) > 150
    assert grammar - found == EXCEPTIONS.keys()


@pytest.mark.parametrize("name", BLANKED)
def test_a_blanked_program_has_the_shape_of_its_source(name: str):
    source = read(name)
    text = blank(source)
    assert len(text) == len(source)
    assert [len(line) for line in text.split("\n")] == [len(line) for line in source.split("\n")]
    for was, now in zip(source, text, strict=True):
        assert now == was or now in " ;)"


@pytest.mark.parametrize("name", BLANKED)
def test_a_blanked_program_has_no_types_left(name: str):
    text = blank(read(name))
    assert blank(text) == text


@pytest.mark.parametrize("name", BLANKED)
def test_a_blanked_program_does_what_the_transformed_one_does(
    ts_sandbox: Sandbox, javascript_guest: JavaScriptGuest, name: str
):
    source = read(name)
    if name in UNKNOWN_TO_THE_TRANSFORMER:
        source = source.partition("\n")[2]
    ours = value(ts_sandbox, name, source)
    assert ours
    assert ours == value(ts_sandbox, name, blank(source))
    assert ours == value(ts_sandbox, name, javascript_guest.transform(source.encode(), unwatched))


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("transformed/")])
def test_what_is_more_than_a_type_is_transformed(ts_sandbox: Sandbox, name: str):
    source = read(name)
    expected = json.loads(source.partition("\n")[0].removeprefix("// = "))
    assert value(ts_sandbox, name, source) == expected


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("refused/")])
def test_what_cannot_run_is_refused_with_its_code_and_line(ts: Stage, name: str):
    source = read(name)
    code, line = source.partition("\n")[0].removeprefix("// ! ").split()
    error = ts.run(source).error
    assert error is not None
    assert error.span is not None
    assert (error.code, error.span.line) == (code, int(line)), error


@pytest.mark.parametrize(
    ("source", "blanked"),
    [
        ("let x: number = 1", "let x         = 1"),
        ("x as any\ny", "x ;     \ny"),
        ("x as any;", "x       ;"),
        ("x as any\n(y)", "x ;     \n(y)"),
        ("f(x as A, y!)", "f(x     , y )"),
        ("a\ninterface B {}\n[c]", "a\n;             \n[c]"),
        ("a\ntype B = 1\n(c)", "a\n;         \n(c)"),
        ("(a: A): {\n b: 1 } => a", "(a       \n      ) => a"),
        ("class A { x = 1\n private [y] = 2 }", "class A { x = 1\n ;       [y] = 2 }"),
        ("class A { get: B\n x() {} }", "class A { get;  \n x() {} }"),
        ("class A { declare x: 1; y }", "class A { ;           ; y }"),
        ("function f(this: A, b?: C) {}", "function f(         b    ) {}"),
        ("let é: 'é𠀀', x = 1", "let é      , x = 1"),
        ("let x: A<\n B\r\n> = 1", "let x    \n  \r\n  = 1"),
        ("class A extends B<C> implements D {}", "class A extends B                 {}"),
        ("f<A>(x); new G<B>()", "f   (x); new G   ()"),
        ("#!node\n1", "      \n1"),
    ],
)
def test_blanks_keep_their_neighbours_apart(source: str, blanked: str):
    assert blank(source) == blanked


@pytest.mark.parametrize(
    "source",
    [
        "function f() { return <\nA>x }",
        "throw <\nA>x",
        "const f = async <\nA>(x) => x",
        "enum A {}",
        "namespace A { }",
        "import a = b.c",
        "class A { constructor(readonly x) {} }",
        "class A { constructor(private x?: number) {} }",
        "f<A>`x`",
        "<A>x",
        "f<A>",
        "new F<A>",
        "f<A.B<C>>(x) + 1",
        "f<A | B>`t`",
        "f<typeof import('x')>(y)",
        "f<<T>(x: T) => A>(y)",
        "a ? (b): c => d : e",
        "abstract\nclass A {}",
        "x as any\n[y]",
    ],
)
def test_what_blanks_would_change_is_left_to_the_transformer(source: str):
    data = source.encode()
    assert erase_types(parse(data, unwatched), data).rest is not None


def test_types_of_what_only_exists_elsewhere_are_types():
    declared = "declare enum A { B }\ndeclare namespace C { enum D {} }\n1"
    text = blank(declared)
    assert [line.strip(" ") for line in text.split("\n")] == [";", ";", "1"]


def test_places_are_found_again_by_what_is_the_same():
    source = "interface Long { a: 1, b: 2 }\nenum E { A }\nconst é: Long = f('x', `y`) // z\ng(é)"
    printed = 'var E = function(E) {\n\treturn E;\n}(E || {});\nconst é = f("x", `y`);\ng(é);\n'
    found = align(printed, source)
    for word in ("é", "f(", "`y`", "g(", "é)"):
        assert found.origin(printed.rindex(word)) == source.rindex(word)


@pytest.mark.parametrize("edition", EDITIONS)
def test_what_sources_become_stays_the_same_in_each_edition(
    javascript_guest: JavaScriptGuest, edition: int
):
    """If this fails, a source translates to another program. Sessions began with this edition:
    add a new edition and pin it."""
    made = {}
    for name in FILES:
        try:
            transform = javascript_guest.transform
            script = translate(read(name), (), transform, unwatched, edition=edition)
        except SourceRefused as refused:
            made[name] = [refused.error.code]
        else:
            made[name] = [script.text, *script.assigned, *script.renewed]
    assert digest_json(made) == PINNED[edition]
