"""A component whose constant globals are replaced computes what it computed before."""

from __future__ import annotations

import pytest
import wasmtime
from wasmtime.component import Component, Linker

from rookery.actors.sandbox.python.component_layout import read_layout, read_module
from rookery.actors.sandbox.python.constant_globals import replace_constant_globals
from rookery.schemas.errors import Failed

MEMORY = """
    (core module $memory
      (memory (export "memory") 1) (table (export "table") 4 funcref)
      (data (i32.const 1040) "\\07\\00\\00\\00")
      (global (export "base") i32 (i32.const 1024))
      (global (export "first") i32 (i32.const 1))
      (global (export "stack") (mut i32) (i32.const 512))
      (global (export "number") (mut i32) (i32.const -3))
      (global (export "unused") (mut i32) (i32.const 9)))
    (core instance $of_memory (instantiate $memory))
    (alias core export $of_memory "memory" (core memory $m))
    (alias core export $of_memory "table" (core table $t))
    (alias core export $of_memory "base" (core global $base))
    (alias core export $of_memory "first" (core global $first))
    (alias core export $of_memory "stack" (core global $stack))
    (alias core export $of_memory "number" (core global $number))
    (core instance $env (export "memory" (memory $m)) (export "table" (table $t))
      (export "base" (global $base)) (export "first" (global $first))
      (export "stack" (global $stack)) (export "number" (global $number)))
    (core instance $addresses (export "number" (global $number)))
"""
LIBRARY = """
    (core module $library
      (import "env" "base" (global $base i32))
      (import "env" "memory" (memory 1))
      (import "env" "first" (global $first i32))
      (import "env" "stack" (global $stack (mut i32)))
      (import "GOT.mem" "number" (global $number (mut i32)))
      (import "env" "table" (table 4 funcref))
      IMPORT
      (global $own (export "own") i32 (i32.add (global.get $base) (i32.const 16)))
      (elem (global.get $first) func $double)
      (func $double (param i32) (result i32) (i32.mul (local.get 0) (i32.const 2)))
      (func (export "run") (param $n i32) (result i32)
        (global.set $stack (i32.sub (global.get $stack) (i32.const 16)))
        (i32.store (i32.add (global.get $base) (i32.const 4)) (local.get $n))
        (local.set $n (i32.add (global.get $stack)
          (i32.add (i32.load (global.get $own)) (i32.add (global.get $number)
            (call_indirect (param i32) (result i32)
              (i32.load (i32.const 1028)) (global.get $first))))))
        SET
        (global.set $stack (i32.add (global.get $stack) (i32.const 16)))
        (local.get $n)))
    (core instance $of_library (instantiate $library
      (with "env" (instance $env)) (with "GOT.mem" (instance $addresses))))
    (core module $start
      (import "GOT.mem" "number" (global $number (mut i32)))
      (import "library" "own" (global i32))
      (import "library" "run" (func $run (param i32) (result i32)))
      (import "env" "table" (table 4 funcref))
      (elem (i32.const 2) func $run)
      (func (global.set $number (i32.const 5))))
    (core instance (instantiate $start (with "library" (instance $of_library))
      (with "env" (instance $env)) (with "GOT.mem" (instance $addresses))))
    (func (export "run") (param "n" s32) (result s32)
      (canon lift (core func $of_library "run")))
"""


def component(set_by_library: str = "", imported: str = "") -> bytes:
    library = LIBRARY.replace("SET", set_by_library).replace("IMPORT", imported)
    return bytes(wasmtime.wat2wasm(f"(component {MEMORY} {library})"))


def results(source: bytes) -> list[int]:
    engine = wasmtime.Engine()
    store = wasmtime.Store(engine)
    instance = Linker(engine).instantiate(store, Component(engine, source))
    run = instance.get_func(store, "run")
    assert run is not None
    found = []
    for number in (0, 1, -4, 2**30):
        found.append(run(store, number))
        run.post_return(store)
    return found


def test_a_component_computes_the_same():
    plain = component()
    changed = replace_constant_globals(plain)
    assert results(changed) == results(plain) == [500, 502, 492, 500 - 2**31]


def test_no_constant_is_imported_or_can_change():
    memory, library, start = read_layout(replace_constant_globals(component())).modules
    assert {name for _, name in read_module(library).imports} == {"memory", "stack", "table"}
    assert {name for _, name in read_module(start).imports} == {"run", "table"}
    assert read_module(memory).mutable_globals == ("stack", "unused")


@pytest.mark.parametrize(
    ("set_by_library", "imported", "problem"),
    [
        ("(global.set $number (i32.const 1))", "", "sets"),
        (
            "(global.set $again (i32.const 1))",
            '(import "env" "number" (global $again (mut i32)))',
            "imports",
        ),
    ],
)
def test_a_library_that_could_set_an_address_is_refused(
    set_by_library: str, imported: str, problem: str
):
    with pytest.raises(Failed, match=f"it {problem} a global that was taken for a constant"):
        replace_constant_globals(component(set_by_library, imported))
