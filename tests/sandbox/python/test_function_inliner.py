"""A module whose small functions are inlined computes what it computed before."""

from __future__ import annotations

from importlib.resources import files

import pytest
import wasmtime

from rookery.actors.sandbox.python import GuestCache
from rookery.actors.sandbox.python.function_inliner import inline_functions
from rookery.actors.sandbox.typescript.engine import engine_bytes
from rookery.schemas.errors import Failed

PROGRAM = """
(module
  (import "host" "seen" (func $seen (param i32)))
  (memory (export "memory") 1)
  (table 2 funcref) (elem (i32.const 0) $leaves $more)
  (global $calls (mut i32) (i32.const 0))
  (func $leaves (param $n i32) (result i32) (local $sum i32) (local $wide i64)
    (global.set $calls (i32.add (global.get $calls) (i32.const 1)))
    (block $out
      (br_if $out (i32.lt_s (local.get $n) (i32.const 3)))
      (if (i32.eq (local.get $n) (i32.const 5)) (then (return (i32.const -5))))
      (block $a (block $b (block $c
        (br_table $a $b $c 3 (i32.rem_u (local.get $n) (i32.const 4))))
        (return (i32.const 100)))
        (local.set $sum (i32.const 7)))
      (local.set $wide (i64.add (local.get $wide) (i64.extend_i32_s (local.get $n)))))
    (local.set $sum (i32.add (local.get $sum) (i32.const 1)))
    (i32.add (local.get $sum) (i32.wrap_i64 (local.get $wide))))
  (func $more (param $n i32) (result i32) (local $x f64) (local $y f32)
    (local.set $x (f64.add (local.get $x) (f64.convert_i32_s (local.get $n))))
    (local.set $y (f32.add (local.get $y) (f32.const 0.5)))
    (call $seen (local.get $n))
    (i32.add (i32.trunc_sat_f64_s (local.get $x))
      (i32.add (call $leaves (local.get $n)) (i32.trunc_sat_f32_s (f32.mul (local.get $y)
        (f32.const 2))))))
  (func $nothing (param $n i32)
    (if (i32.eqz (local.get $n)) (then (return)))
    (i32.store (i32.const 8) (local.get $n)))
  (func $swap (param $a i32) (param $b i32) (result i32)
    (i32.sub (local.get $a) (local.get $b)))
  (func $again (param $n i32) (result i32)
    (if (result i32) (i32.eqz (local.get $n)) (then (i32.const 1))
      (else (i32.mul (local.get $n) (call $again (i32.sub (local.get $n) (i32.const 1)))))))
  (func (export "run") (param $n i32) (result i32) (local $i i32) (local $sum i32)
    (loop $next
      (call $nothing (local.get $i))
      (local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 31))
        (i32.add (call $leaves (local.get $i)) (call $more (local.get $i)))))
      (local.set $sum (i32.add (local.get $sum)
        (call $swap (call $swap (local.get $i) (i32.const 2)) (call $again (local.get $i)))))
      (local.set $sum (i32.add (local.get $sum)
        (call_indirect (param i32) (result i32) (local.get $i)
          (i32.rem_u (local.get $i) (i32.const 2)))))
      (br_if $next (i32.lt_s (local.tee $i (i32.add (local.get $i) (i32.const 1)))
        (local.get $n))))
    (i32.add (i32.add (local.get $sum) (i32.load (i32.const 8))) (global.get $calls))))
"""


def results(module: bytes) -> tuple[list[int], list[int]]:
    """What the program returns for some arguments, and what the host saw."""
    engine = wasmtime.Engine()
    store, seen = wasmtime.Store(engine), []
    host = wasmtime.Func(store, wasmtime.FuncType([wasmtime.ValType.i32()], []), seen.append)
    instance = wasmtime.Instance(store, wasmtime.Module(engine, module), [host])
    run = instance.exports(store)["run"]
    assert isinstance(run, wasmtime.Func)
    return [run(store, count) for count in (0, 1, 4, 9, 40)], seen


def test_a_program_computes_the_same():
    plain = bytes(wasmtime.wat2wasm(PROGRAM))
    inlined = inline_functions(plain)
    assert len(inlined) > len(plain)
    assert results(inlined) == results(plain)


def test_an_instruction_that_is_not_known_is_refused():
    code = "(func (drop (v128.const i32x4 1 2 3 4)))"
    module = wasmtime.wat2wasm(f'(module (import "a" "b" (func)) {code})')
    with pytest.raises(Failed, match="not the one expected: it has the instruction 0xfd"):
        inline_functions(bytes(module))


def test_the_engine_is_changed_once_for_all_processes(cache: GuestCache):
    wheel = files("quickjs_rs").joinpath("_guest.wasm").read_bytes()
    made = engine_bytes(cache)
    assert made == engine_bytes(cache) == engine_bytes()
    assert len(wheel) < len(made) < 2 * len(wheel)
