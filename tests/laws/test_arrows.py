"""Imports point one way: ``actors -> bus.ports -> schemas``, ``ops -> all``, never back."""

from __future__ import annotations

import sys

from tests.laws.source import PRODUCT, Module, expect_none, imports, modules, under

MAY_IMPORT = {
    "schemas": ("rookery.schemas", "msgspec"),
    "bus": ("rookery.bus", "rookery.schemas", "msgspec", "nats", "uvloop"),
    "actors": (
        "rookery.actors",
        "rookery.bus.ports",
        "rookery.schemas",
        "msgspec",
        "pykka",
        "immutables",
    ),
}

ALSO = {
    "actors/sandbox/python/guest/": (
        "guest",
        "wit_world",
    ),  # A package of its own, inside the guest.
    "actors/sandbox/sessions/": ("Crypto",),
    "actors/sandbox/": ("wasmtime", "tree_sitter", "tree_sitter_typescript"),
    "actors/execution/agents/provider_": ("anthropic", "openai", "pydantic_ai"),
    "actors/tools/": ("jsonschema", "referencing"),
    "actors/leases/providers/": ("oauthlib",),
    "actors/keys/": ("Crypto",),
    "bus/nkeys.py": ("Crypto",),
    "bus/sealed_secrets.py": ("Crypto",),
    "bus/commands/": ("Crypto",),
    "bus/credentials/": ("Crypto",),
}


def also(module: Module) -> tuple[str, ...]:
    return next((names for path, names in ALSO.items() if module.path.startswith(path)), ())


def strangers(module: Module, *allowed: str) -> list[str]:
    """What the module imports beside the standard library and ``allowed``."""
    return [
        f"{module.path}:{line} imports {name}"
        for line, name in imports(module)
        if name.partition(".")[0] not in sys.stdlib_module_names and not under(name, *allowed)
    ]


def test_every_folder_imports_only_folders_below_it():
    found = [
        stranger
        for folder, allowed in MAY_IMPORT.items()
        for module in modules(folder)
        for stranger in strangers(module, *allowed, *also(module))
    ]
    expect_none(found)


STOCK_CLIENTS = ("ops/demo.py", "ops/bench/", "ops/examples/external_driver/")
"""They stand for programs of other people, or measure ours against them; so do tests."""


def test_only_the_bus_knows_nats():
    found = [
        f"{module.path}:{line}"
        for module in modules("schemas", "actors", "ops")
        for line, name in imports(module)
        if under(name, "nats") and not module.path.startswith(STOCK_CLIENTS)
    ]
    expect_none(found)


ABOVE_CONCERNS = ("actors/projections/", "actors/execution/")


def test_a_concern_knows_the_kernel_and_itself_and_the_kernel_no_concern():
    """Projections fold the facts of every concern, ``execution`` drives programs between them, the
    catalogue names the machines of all; no concern depends on these. Every concern may follow the
    session's host, which only admission writes, read the rules of approvals, which are text, use
    keys, rights, policies and the tools, which have rules for calls but no facts of their own, and
    apply what hooks have said."""
    shared = (
        "rookery.actors.kernel",
        "rookery.actors.messages",
        "rookery.actors.metrics",
        "rookery.actors.admission.admission_machine.evolve_host",
        "rookery.actors.admission.apply_input",
        "rookery.actors.credentials",
        "rookery.actors.daemon_threads",
        "rookery.actors.histories",
        "rookery.actors.hooks.changes",
        "rookery.actors.keys",
        "rookery.actors.policy",
        "rookery.actors.protection",
        "rookery.actors.slot_limits",
        "rookery.actors.tools",
        "rookery.actors.turn_inputs",
    )
    found = []
    for module in modules("actors"):
        if module.package == "actors" or module.path.startswith(ABOVE_CONCERNS):
            continue
        own = f"rookery.actors.{module.path.split('/')[1]}"
        for line, name in imports(module):
            if under(name, "rookery.actors") and not under(name, own, *shared):
                found.append(f"{module.path}:{line} imports {name}")
    expect_none(found)


def test_imports_are_absolute():
    found = [
        f"{module.path}:{line}"
        for module in modules(*PRODUCT)
        for line, name in imports(module)
        if name.startswith(".")
    ]
    expect_none(found)


def test_schemas_do_no_io():
    """But for ``export``, which is a command and writes two files."""
    io = ("asyncio", "io", "logging", "os", "pathlib", "socket", "subprocess", "tempfile")
    found = [
        f"{module.path}:{line} imports {name}"
        for module in modules("schemas")
        for line, name in imports(module)
        if under(name, *io, "threading") and module.path != "schemas/export.py"
    ]
    expect_none(found)
