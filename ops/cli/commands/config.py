"""``rookery config``: every configuration value and its origin. ``rookery guest``: the guest that
it asks for. ``rookery models``: list its models, add one, and ask one a question."""

from __future__ import annotations

import os
import re
from hashlib import sha3_256
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from cyclopts import App, Parameter

from rookery.actors.sandbox.python import GuestCache, cache_folder
from rookery.bus.client import Client
from rookery.ops.cli.access.realm_access import with_realm_client
from rookery.ops.cli.options import NO_OPTIONS, NO_TOOLS, Options
from rookery.ops.cli.output import atomic_file, print_json, print_line, print_table
from rookery.ops.cli.rendering.run_output import show_result, usage_words
from rookery.ops.config import ModelName, ModelsConfig, find_file, hide_secret, load
from rookery.schemas.agents import ConfiguredModel, ModelSettings
from rookery.schemas.errors import Refused
from rookery.schemas.run import RunLimits, RunRequest

__all__ = ["app", "guest", "models"]

app = App(name="config", help_format="plaintext")
guest = App(name="guest", help_format="plaintext")
models = App(name="models", help_format="plaintext")


@app.command
def show(
    *,
    origin: Annotated[bool, Parameter(help="Print the origin of each value.", negative="")] = False,
    options: Options = NO_OPTIONS,
) -> int:
    """Print the configuration; tokens are hidden."""
    rows = [
        (s.key, msgspec.to_builtins(hide_secret(s.key, s.value)), s.origin)
        for s in options.load().settings
    ]
    if options.json:
        print_json(
            {key: {"value": value, "origin": by} if origin else value for key, value, by in rows}
        )
        return 0
    columns = ["KEY", "VALUE", "ORIGIN"] if origin else ["KEY", "VALUE"]
    print_table(columns, [row[: len(columns)] for row in rows], empty="nothing is set")
    return 0


@guest.command
def build(
    *,
    packages: Annotated[
        str | None,
        Parameter(help="Packages, separated by commas; default: `sandbox.packages`."),
    ] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Build the guest and store it in your cache, with pure-Python packages that pip fetches.

    A node whose `sandbox.packages` has the same list uses this build, if its realm has none yet.
    Packages that need compiled code are refused. Programs have no network: only this command and
    the first start of a node with a new list fetch packages."""
    listed = options.load().config.sandbox.packages if packages is None else packages.split(",")
    cache = GuestCache(cache_folder(os.environ), packages=filter(None, listed))
    component = cache.component(stub_wasi=True)
    digest, found = sha3_256(component).hexdigest(), cache.package_list()
    if options.json:
        print_json({"build": digest, "bytes": len(component), "packages": found})
        return 0
    print_line(f"guest {digest[:16]}, {len(component) / 1e6:.1f} MB")
    if found:
        rows = [[one.name, one.version, ", ".join(one.imports)] for one in found]
        print_table(["PACKAGE", "VERSION", "IMPORT"], rows, empty="")
    if packages is not None and cache.packages:
        print_line(f"for a node: packages = {msgspec.json.encode(cache.packages).decode()}")
        print_line("below [sandbox] in rookery.toml")
    return 0


# --- models ---------------------------------------------------------------------------------------

TEST_PROMPT: Final = "Answer with the one word: ready"
TEST_TOKENS: Final = 10
"""Of the answer; some models think first, and are cut there."""
TEST_SESSION: Final = "models-test"

Name = Annotated[str, Parameter(help="NAME of [models.NAME].")]


@models.command(name="list")
def list_models(*, options: Options = NO_OPTIONS) -> int:
    """List the models of the configuration; no node is asked."""
    found = options.load().config.models
    if options.json:
        print_json({name: msgspec.to_builtins(one) for name, one in found.known.items()})
        return 0
    rows = [
        (
            name,
            one.provider,
            one.model or one.script,
            one.base_url or "-",
            one.binding or "-",
            "yes" if name in _route(found) else "-",
        )
        for name, one in found.known.items()
    ]
    empty = "no models: rookery models add NAME --provider openai --model MODEL --base-url URL"
    print_table(["NAME", "PROVIDER", "MODEL", "URL", "BINDING", "DEFAULT"], rows, empty=empty)
    return 0


@models.command
def add(
    name: Name,
    *,
    provider: Annotated[str, Parameter(help="openai, anthropic or scripted.")] = "openai",
    model: Annotated[str, Parameter(help="The provider's name of the model.")] = "",
    base_url: Annotated[str, Parameter(help="URL of a compatible server, up to /v1.")] = "",
    script: Annotated[str, Parameter(help="FILE or module:object of a scripted model.")] = "",
    binding: Annotated[str, Parameter(help="The binding whose lease has the key.")] = "",
    options: Options = NO_OPTIONS,
) -> int:
    """Add a model to the configuration file; the first one is the default. Nodes read it when they
    start."""
    folder = Path.cwd()
    file = options.config or find_file(os.environ, folder) or folder / "rookery.toml"
    given = {
        "provider": provider,
        "model": model,
        "base_url": base_url,
        "script": script,
        "binding": binding,
    }
    fields = {key: value for key, value in given.items() if value}
    _check(name, fields)
    loaded = options.load().config.models
    if name in loaded.known:
        raise Refused("CONFIG_INVALID", f"there is a [models.{name}]", hint=f"change it in {file}")
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    is_first = not loaded.known and not loaded.default
    after = _with_model(before, name, fields, is_default=is_first)
    _check_file(after, file, name)
    with atomic_file(file) as written:
        written.write(after.encode())
    said = f"{file.name} has the model {name}" + (", the default" if is_first else "")
    if options.json:
        print_json({"name": name, "file": str(file), "default": is_first})
    else:
        print_line(f"{said}; ask it: rookery models test {name}")
    return 0


@models.command(name="test")
def ask_model(name: Name, *, options: Options = NO_OPTIONS) -> int:
    """Ask a model a question of a few tokens, as a run of the session models-test."""
    request = RunRequest(
        session_id=TEST_SESSION,
        prompt=TEST_PROMPT,
        model=name,
        tools=(),
        settings=ModelSettings(max_output_tokens=TEST_TOKENS),
        limits=RunLimits(turns=1),
    )

    async def ask(client: Client) -> int:
        answer = await client.run(TEST_SESSION, request)
        took_ms = answer.metrics.duration_ms
        code = show_result(answer, "", json=options.json)
        if not options.json and answer.usage and answer.usage.turns:
            print_line(f"{name} answered in {took_ms:,} ms: {usage_words(answer.usage)}")
        return code

    return with_realm_client(options, NO_TOOLS, ask)


def _route(models: ModelsConfig) -> tuple[str, ...]:
    return (models.default,) if isinstance(models.default, str) else models.default


def _check(name: str, fields: dict[str, Any]) -> None:
    """Raise ``Refused`` for what is no table of a model."""
    try:
        msgspec.convert({name: fields}, dict[ModelName, ConfiguredModel])
    except msgspec.ValidationError as error:
        raise Refused("INVALID_ARGUMENT", str(error)) from None
    if fields["provider"] == "scripted" and "script" not in fields:
        raise Refused("INVALID_ARGUMENT", "a scripted model needs a script", hint="--script FILE")
    if fields["provider"] != "scripted" and "model" not in fields:
        raise Refused("INVALID_ARGUMENT", "which model of the provider?", hint="--model MODEL")


def _with_model(text: str, name: str, fields: dict[str, Any], *, is_default: bool) -> str:
    """The text of a configuration file with one more model; its lines stay as they are."""
    lines = [f"[models.{name}]"]
    lines += [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in fields.items()]
    if is_default:
        default = f"default = {msgspec.json.encode(name).decode()}"
        if re.search(r"(?m)^\[models\][ \t]*(#.*)?$", text):
            text = re.sub(r"(?m)^\[models\].*$", lambda m: f"{m[0]}\n{default}", text, count=1)
        else:
            lines = ["[models]", default, "", *lines]
    space = "\n\n" if text.strip() else ""
    return f"{text.rstrip()}{space}" + "\n".join(lines) + "\n"


def _check_file(text: str, file: Path, name: str) -> None:
    """Raise ``Refused`` unless a node could read this text with the model in it."""
    draft = file.with_name(f".{file.name}.draft")
    draft.write_text(text, encoding="utf-8")
    try:
        known = load(environ={}, directory=file.parent, file=draft, flags={}).config.models.known
    finally:
        draft.unlink()
    if name not in known:
        raise Refused("CONFIG_INVALID", f"{file} takes no further table", hint="add it by hand")
