"""Laws about names: what modules, classes and functions are not called."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tests.laws.findings import Finding
from tests.laws.outline import Class, outline
from tests.laws.source import Module
from tests.laws.vocabulary import (
    EVERYDAY_METHODS,
    NOT_IN_TEST_NAMES,
    SYNONYMS,
    SYNONYMS_OF_NOUNS,
    SYNONYMS_OF_PACKAGES,
    TEST_MODULES,
    participle,
    synonyms,
    words,
)

__all__ = [
    "everyday_methods",
    "fact_literals",
    "participle_modules",
    "repeated_classes",
    "synonyms_in_names",
    "synonyms_in_test_names",
    "synonyms_in_tests",
]

FACTS: Final = "schemas/facts/"
_DEFINED_TEST: Final = re.compile(r"^ *(?:async )?def (test_\w+)", re.M)
_DEFINED_CLASS: Final = re.compile(r"^class (\w+)", re.M)
_VERSION: Final = re.compile(r"\.v[0-9]+$")


# --- classes --------------------------------------------------------------------------------------


def repeated_classes(modules: Iterable[Module]) -> Iterator[Finding]:
    """A class name exists once; facts are read as ``turn.Failed``, so families may share one."""
    modules = list(modules)
    travels = _named_by_their_class(modules)
    named = [
        (kind, module)
        for module in modules
        for kind in outline(module).classes
        if not _is_fact(kind, module) and kind.name not in travels
    ]
    times = Counter(kind.name for kind, _ in named)
    for kind, module in named:
        if times[kind.name] > 1:
            do = f"{times[kind.name]} classes are called `{kind.name}`: rename all but one"
            yield Finding(kind.name, f"{module.path}:{kind.line}", do)


def _is_fact(kind: Class, module: Module) -> bool:
    return module.path.startswith(FACTS) and "tag" in kind.keywords


def _named_by_their_class(modules: list[Module]) -> set[str]:
    """Classes whose name travels, as those of rows' effects: ``tag=True`` makes it the tag."""
    kinds = [kind for module in modules for kind in outline(module).classes]
    found = {kind.name for kind in kinds if kind.keywords.get("tag") is True}
    while more := {
        kind.name
        for kind in kinds
        if kind.name not in found and any(base.split(".")[-1] in found for base in kind.bases)
    }:
        found |= more
    return found


# --- modules and functions ------------------------------------------------------------------------


def participle_modules(paths: Iterable[str]) -> Iterator[Finding]:
    """Modules are nouns. Of a test's module only the whole name counts: it may be a sentence."""
    for path in paths:
        name = path.rpartition("/")[2].removesuffix(".py").removeprefix("test_")
        is_sentence = path.startswith("tests/") and len(words(name)) > 1
        say = "" if is_sentence else participle(name)
        if say:
            do = f"a module is a noun, and `{name}` is none: name the thing ({say})"
            yield Finding(path, path, do)


def everyday_methods(modules: Iterable[Module]) -> Iterator[Finding]:
    """Functions are verbs that say what is done."""
    for module in modules:
        for function in outline(module).functions:
            name = function.name.strip("_")
            if name in EVERYDAY_METHODS:
                where = f"{module.path}:{function.line} {function.qualname}"
                do = f"no function is called `{name}`: say what it does ({EVERYDAY_METHODS[name]})"
                yield Finding(function.qualname, where, do)


# --- words of the glossary ------------------------------------------------------------------------


def synonyms_in_names(modules: Iterable[Module]) -> Iterator[Finding]:
    """One thing, one word: names are made of the glossary's, not of others for the same thing."""
    modules = list(modules)
    travels = _named_by_their_class(modules)
    for package in sorted({module.package for module in modules}):
        folder = package.rpartition("/")[2]
        yield from _wrong("folder", folder, package, SYNONYMS, SYNONYMS_OF_PACKAGES)
    for module in modules:
        found = outline(module)
        if not module.is_face:
            yield from _wrong("module", module.name, module.path, SYNONYMS, SYNONYMS_OF_NOUNS)
        for kind in found.classes:
            if not _is_fact(kind, module) and kind.name not in travels:
                where = f"{module.path}:{kind.line}"
                yield from _wrong("class", kind.name, where, SYNONYMS, SYNONYMS_OF_NOUNS)
        for function in found.functions:
            is_judged_already = function.name.strip("_") in EVERYDAY_METHODS
            if not (is_judged_already or function.name.startswith("__")):
                where = f"{module.path}:{function.line}"
                yield from _wrong("def", function.name, where, SYNONYMS)


def _wrong(kind: str, name: str, where: str, *tables: dict[str, str]) -> Iterator[Finding]:
    said = [f"`{say}` for `{wrong}`" for wrong, say in synonyms(name, *tables)]
    if said:
        yield Finding(f"{kind} {name}", where, f"rename {kind} `{name}`: say {'; '.join(said)}")


def synonyms_in_tests(texts: Mapping[str, str]) -> Iterator[Finding]:
    """Modules and classes of tests keep to the glossary, too.

    By path the texts and not the trees: parsing all tests takes longer than all other laws.
    """
    for path, text in texts.items():
        name = path.rpartition("/")[2].removesuffix(".py").removeprefix("test_")
        if name in TEST_MODULES:
            yield Finding(f"module {name}", path, f"rename it: say {TEST_MODULES[name]}")
        else:
            yield from _wrong("module", name, path, SYNONYMS, SYNONYMS_OF_NOUNS)
        for found in _DEFINED_CLASS.finditer(text):
            yield from _wrong("class", found[1], path, SYNONYMS, SYNONYMS_OF_NOUNS)


def synonyms_in_test_names(texts: Mapping[str, str]) -> Iterator[Finding]:
    """The subject of a test's name is a thing of the glossary."""
    for path, text in texts.items():
        for found in _DEFINED_TEST.finditer(text):
            for word in NOT_IN_TEST_NAMES.intersection(words(found[1])):
                do = f"reword {found[1]}: for `{word}` say {SYNONYMS[word]}"
                yield Finding(word, path, do)


# --- facts ----------------------------------------------------------------------------------------


def fact_literals(modules: Iterable[Module], tags: Iterable[str]) -> Iterator[Finding]:
    """Facts are read through their structs: no reader of a string fails when a fact is added."""
    versioned = set(tags)
    names = versioned | {tag.rpartition(".")[0] for tag in versioned}
    for module in modules:
        if not module.path.startswith("schemas/"):
            for line, text in outline(module).strings:
                if text in names:
                    do = f'no "{text}" outside schemas: compare with the struct, or its tag'
                    yield Finding(_VERSION.sub("", text), f"{module.path}:{line}", do)
