"""Links the core modules of the Python guest, so that the host can access its memory.

A component gives no access to linear memory, which images of sessions need. This module plans the
order of instantiation and the source of each import.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import wasmtime

from rookery.actors.sandbox.python.component_layout import (
    CoreExport,
    Lowered,
    ModuleFacts,
    ModuleInstance,
    read_layout,
    read_module,
)
from rookery.actors.sandbox.runtime.suspension import SuspendableFunction
from rookery.actors.sandbox.runtime.wasm import (
    Export,
    Extern,
    Externs,
    Linker,
    PreparedFunction,
    WasmStore,
)
from rookery.schemas.errors import Failed

__all__ = ["HOST", "HostFunction", "LinkPlan", "LinkedGuest"]

HOST = "host"
"""The module name for imports of the guest's world; a stubbed WASI interface has its number."""


class HostFunction(NamedTuple):
    """A function that the host must define."""

    module: str
    name: str


class ImportSource(NamedTuple):
    """The source of an import: an instance, else a module of the host."""

    instance: int | None
    module: bytes
    name: bytes


class InstantiationStep(NamedTuple):
    instance: int
    module: int
    imports: int
    """How many the module has."""
    from_host: tuple[tuple[int, bytes, bytes], ...]
    """Place among the imports, module and name."""
    from_instances: dict[int, list[Export]]


class LinkedGuest(NamedTuple):
    """One instantiated guest."""

    instances: dict[int, Any]
    serve: SuspendableFunction
    after_serve: SuspendableFunction
    allocate: PreparedFunction


class LinkPlan:
    """The plan of one component; it instantiates the component in any number of stores."""

    def __init__(self, component: bytes) -> None:
        self._layout = read_layout(component)
        self.modules = self._layout.pieces
        self._facts = [read_module(module) for module in self.modules]
        self.used = sorted(i for i, facts in enumerate(self._facts) if not _is_stub(facts))
        if any(self._facts[i].hidden_mutable_globals for i in self.used):
            raise Failed("GUEST_BUILD_FAILED", "a module has state that snapshots cannot include")

    def bind(self, modules: dict[int, wasmtime.Module]) -> None:
        """Complete the plan with the compiled modules, which have the types of all imports."""
        self._modules = modules
        self.host_functions: dict[HostFunction, Any] = {}
        self._steps = list(self._plan())
        lift = self._layout.lifts[-1]
        self._serve = self._found("func", lift.function)
        self._after = self._found("func", lift.options["post_return"])
        self._allocate = self._found("func", lift.options["realloc"])
        self._memory = self._found("memory", lift.options["memory"])
        self.modules.clear()  # Their native code replaces them.

    def instantiate(self, store: WasmStore, linker: Linker) -> LinkedGuest:
        instances: dict[int, Any] = {}
        for step in self._steps:
            imports = Externs(step.imports)
            for place, host_module, name in step.from_host:
                linker.fetch(store, host_module, name, imports, place)
            for instance, exports in step.from_instances.items():
                store.fetch_all(instances[instance], exports, imports)
            instances[step.instance] = store.instantiate(self._modules[step.module], imports)

        def export(source: CoreExport) -> Extern:
            found = Externs(1)
            store.fetch(instances[source.instance], source.name.encode(), found, 0)
            return found.first

        stack_pointer = CoreExport(self._memory.instance, "__stack_pointer")
        store.use(export(self._memory), export(stack_pointer))
        return LinkedGuest(
            instances,
            SuspendableFunction(store, export(self._serve), 2, 1),
            SuspendableFunction(store, export(self._after), 1, 0),
            PreparedFunction(store, export(self._allocate), 4, 1),
        )

    def mutable_externs(self, store: WasmStore, linked: LinkedGuest) -> tuple[Externs, Externs]:
        """All state outside the memory: mutable globals and tables. Snapshots require that it never
        changes, except for the stack pointer within a step."""
        facts = [
            (linked.instances[step.instance], self._facts[step.module]) for step in self._steps
        ]
        return (
            store.fetch_named((on, name) for on, one in facts for name in one.mutable_globals),
            store.fetch_named((on, name) for on, one in facts for name in one.tables),
        )

    def _plan(self) -> Iterator[InstantiationStep]:
        for number, entry in enumerate(self._layout.instances):
            if isinstance(entry, ModuleInstance) and entry.module in self._modules:
                kinds = [item.type for item in self._modules[entry.module].imports]
                sources = [
                    self._source(self._layout.resolve(entry.imports[module], name), kind)
                    for (module, name), kind in zip(
                        self._facts[entry.module].imports, kinds, strict=True
                    )
                ]
                yield _step(number, entry.module, sources)

    def _source(self, item: CoreExport | Lowered, kind: Any) -> ImportSource:
        if isinstance(item, Lowered):
            function = HostFunction(HOST, item.name)
        elif self._is_stubbed(item.instance):
            function = HostFunction(str(item.instance), item.name)
        else:
            return ImportSource(item.instance, b"", item.name.encode())
        self.host_functions[function] = kind
        return ImportSource(None, function.module.encode(), function.name.encode())

    def _is_stubbed(self, instance: int) -> bool:
        entry = self._layout.instances[instance]
        return isinstance(entry, ModuleInstance) and entry.module not in self._modules

    def _found(self, sort: str, index: int) -> CoreExport:
        item = self._layout.resolve_item(sort, index)
        assert isinstance(item, CoreExport)
        return item


def _step(instance: int, module: int, sources: Sequence[ImportSource]) -> InstantiationStep:
    from_instances: dict[int, list[Export]] = {}
    from_host = []
    for place, source in enumerate(sources):
        if source.instance is None:
            from_host.append((place, source.module, source.name))
        else:
            from_instances.setdefault(source.instance, []).append(Export.at(place, source.name))
    return InstantiationStep(instance, module, len(sources), tuple(from_host), from_instances)


def _is_stub(facts: ModuleFacts) -> bool:
    """Whether this is a module of ``--stub-wasi``, which traps; the host replaces it."""
    return not facts.imports and not facts.owns_memory_or_table
