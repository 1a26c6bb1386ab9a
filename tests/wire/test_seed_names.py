"""Every public name of seeds 000 to 004 exists here.

``seed_names.json`` holds the names and shapes of the seeds, and where ours are. A name is a type, a
field, a case, a constant, a function or a method. What is compared: fields and their shapes, cases
and their words, defaults, constants and parameters; ``renamed`` says where a name of ours differs.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from functools import reduce
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
import pytest

from rookery.schemas.ids import TypedText

LIST = json.loads(Path(__file__).with_name("seed_names.json").read_text(encoding="utf-8"))
ENTRIES: dict[str, dict[str, Any]] = {
    f"{seed}.{name}": entry
    for seed, names in LIST["seeds"].items()
    for name, entry in names.items()
}
NAMES = 683

SCALARS = {"int": int, "bool": bool, "text": str}


def members(name: str) -> Iterator[str]:
    """The names a seed has under ``name``, itself first."""
    entry = ENTRIES[name]
    yield name
    for kind in ("fields", "methods"):
        yield from (f"{name}.{member}" for member in entry.get(kind, ()))
    for case, about in entry.get("cases", {}).items():
        yield f"{name}.{case}"
        yield from (f"{name}.{case}.{field}" for field in about.get("fields", ()))


def ours(path: str) -> Any:
    """What ``module:attribute.attribute`` names."""
    module, _, attributes = path.partition(":")
    return reduce(_part, attributes.split("."), importlib.import_module(module))


def _part(owner: Any, name: str) -> Any:
    return owner[name] if isinstance(owner, dict) else getattr(owner, name)


# --- how a name of ours is compared ---------------------------------------------------------------


def known_parts(owner: Any) -> set[str]:
    """Names of fields, parameters and attributes of a class."""
    fields = set(getattr(owner, "__struct_fields__", ()))
    return fields | set(inspect.signature(owner).parameters) | set(dir(owner))


def field_of(owner: Any, name: str) -> msgspec.structs.FieldInfo:
    return next(field for field in msgspec.structs.fields(owner) if field.name == name)


def check_fields(owner: Any, about: dict[str, Any], seed: str) -> None:
    renamed = about.get("renamed", {})
    names = [renamed.get(name, name) for name in about["fields"]]
    if not isinstance(owner, type) or not issubclass(owner, msgspec.Struct):
        assert set(names) <= set(inspect.signature(owner).parameters)
        return
    found = [name for name in owner.__struct_fields__ if name in names]
    assert found == names
    for name, shape in zip(names, about["fields"].values(), strict=True):
        check_shape(field_of(owner, name).type, shape, seed)


def check_shape(annotation: Any, shape: str, seed: str) -> None:
    """A shape is a scalar or a name, with ``[]`` for many of it and ``?`` for perhaps none. A type
    that derives from the seed's has fields of ours beside its own."""
    options = [*options_of(annotation)]
    if shape in ("json", "json?"):
        assert annotation is Any or get_origin(annotation) is dict
        return
    assert shape.endswith("?") == (type(None) in options), (annotation, shape)
    options = [option for option in options if option is not type(None)]
    shape = shape.removesuffix("?")
    if shape.endswith("[]"):
        assert all(get_origin(option) in (tuple, list, set, frozenset) for option in options)
        check_shape(get_args(options[0])[0], shape.removesuffix("[]"), seed)
    elif shape in SCALARS:
        assert options == [SCALARS[shape]], (annotation, shape)
    elif f"{seed}.{shape}" in ENTRIES and not callable_only(f"{seed}.{shape}"):
        seeds = [*options_of(ours(ENTRIES[f"{seed}.{shape}"]["ours"]))]
        assert options == seeds or [option.__base__ for option in options] == seeds
    else:
        (option,) = options
        assert option is str or option.__name__ == shape, (annotation, shape)


def callable_only(name: str) -> bool:
    """A newtype of the seeds that is a plain string here, checked by a function."""
    return inspect.isfunction(ours(ENTRIES[name]["ours"]))


def options_of(annotation: Any) -> Iterator[Any]:
    match get_origin(annotation):
        case origin if origin in (Union, UnionType):
            for option in get_args(annotation):
                yield from options_of(option)
        case origin if origin is Annotated:
            yield from options_of(get_args(annotation)[0])
        case _:
            yield annotation


def check_member(kind: type[Enum], case: str, word: str | None) -> None:
    """A case without fields: its word if it has one on the wire, else its name."""
    if word is None:
        assert case in [variant(member) for member in kind]
        return
    assert variant(kind(word)) == case.replace("TypeScript", "Typescript")


def variant(member: Enum) -> str:
    return "".join(part.capitalize() for part in member.name.split("_"))


def check_case(kind: Any, case_of_ours: Any, case: str, about: dict[str, Any], seed: str) -> None:
    if word := about.get("word"):
        assert word in words_of(kind, case_of_ours)
    elif isinstance(case_of_ours, Enum):
        assert variant(case_of_ours) == case
    if about.get("fields"):
        owner = kind if isinstance(case_of_ours, Enum) else case_of_ours
        check_fields(owner, about, seed)


def words_of(kind: Any, case_of_ours: Any) -> set[str]:
    """The words a case may have: its own, its tag's, or one beside it."""
    if isinstance(case_of_ours, Enum):
        return {str(case_of_ours.value)}
    if tag := case_of_ours.__struct_config__.tag:
        return {str(tag)}
    beside: set[str] = set()
    for option in options_of(kind):
        for field in msgspec.structs.fields(option) if issubclass(option, msgspec.Struct) else ():
            beside.add(field.encode_name)
            if isinstance(field.type, type) and issubclass(field.type, Enum):
                beside |= {str(member.value) for member in field.type}
    return beside


def check_parameters(found: Any, params: list[str]) -> None:
    """It takes what the seed's takes, by the same names; as a property it takes nothing."""
    if not callable(found):
        assert not params
        return
    takes = [name for name in inspect.signature(found).parameters if name not in ("self", "cls")]
    assert takes == params


def parameters(about: dict[str, Any], key: str) -> list[str]:
    return [about.get("renamed", {}).get(name, name) for name in about[key]]


# --- what the list says of itself -----------------------------------------------------------------


def test_the_list_has_every_name_and_none_twice():
    names = Counter(member for name in ENTRIES for member in members(name))
    assert max(names.values()) <= 2, "a method may have the name of a field, and no more"
    assert names.total() == NAMES


# --- listed names that exist here -----------------------------------------------------------------


@pytest.mark.parametrize("name", ENTRIES)
def test_a_name_of_the_seeds_leads_to_ours(name: str):
    assert ours(ENTRIES[name]["ours"]) is not None


@pytest.mark.parametrize("name", [name for name in ENTRIES if "constant" in ENTRIES[name]])
def test_a_constant_has_the_seeds_value(name: str):
    assert ours(ENTRIES[name]["ours"]) == ENTRIES[name]["constant"]


@pytest.mark.parametrize("name", [name for name in ENTRIES if ENTRIES[name].get("fields")])
def test_a_type_has_the_seeds_fields_in_their_order_and_shape(name: str):
    check_fields(ours(ENTRIES[name]["ours"]), ENTRIES[name], seed=name[:3])


@pytest.mark.parametrize("name", [name for name in ENTRIES if "defaults" in ENTRIES[name]])
def test_a_type_has_the_seeds_defaults(name: str):
    kind = ours(ENTRIES[name]["ours"])
    made = msgspec.to_builtins(kind())
    for field, default in ENTRIES[name]["defaults"].items():
        assert made[field] == default, field


@pytest.mark.parametrize("name", [name for name in ENTRIES if "cases" in ENTRIES[name]])
def test_a_union_has_the_seeds_cases_with_their_words(name: str):
    kind = ours(ENTRIES[name]["ours"])
    for case, about in ENTRIES[name]["cases"].items():
        if "ours" in about:
            check_case(kind, ours(about["ours"]), case, about, seed=name[:3])
        else:
            check_member(kind, case, about.get("word"))


@pytest.mark.parametrize("name", [name for name in ENTRIES if "default" in ENTRIES[name]])
def test_a_field_of_such_a_type_defaults_to_the_seeds_case(name: str):
    """Where it has a default at all: the seeds' types have one each, our fields say it again."""
    kind = ours(ENTRIES[name]["ours"])
    default = ENTRIES[name]["cases"][ENTRIES[name]["default"]]
    for owner, entry in ENTRIES.items():
        for field, shape in entry.get("fields", {}).items():
            if owner[:3] == name[:3] and shape == name.split(".")[1]:
                found = field_of(ours(entry["ours"]), field).default
                expected = default.get("word", found)
                assert found is msgspec.NODEFAULT or found == msgspec.convert(expected, kind)


METHODS = [(name, method) for name in ENTRIES for method in ENTRIES[name].get("methods", ())]


@pytest.mark.parametrize(("name", "method"), METHODS)
def test_a_method_of_the_seeds_is_ours(name: str, method: str):
    owner, about = ours(ENTRIES[name]["ours"]), ENTRIES[name]["methods"][method]
    params = parameters(about, "params")
    match about.get("ours", ""):
        case "":
            check_parameters(getattr(owner, method), params)
        case "()":
            assert set(params) <= set(inspect.signature(owner).parameters) or (
                issubclass(owner, TypedText | Exception) or len(owner.__struct_fields__) == 1
            )
        case "str":
            assert issubclass(owner, str) or owner.__str__ is not object.__str__
        case str(path) if path.startswith("."):
            assert path[1:] in known_parts(owner)
        case path:
            check_parameters(ours(path), params)


@pytest.mark.parametrize("name", [name for name in ENTRIES if "function" in ENTRIES[name]])
def test_a_function_takes_what_the_seeds_takes(name: str):
    check_parameters(ours(ENTRIES[name]["ours"]), parameters(ENTRIES[name], "function"))
