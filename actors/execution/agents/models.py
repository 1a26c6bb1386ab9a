"""``Models``: the models of a node by their aliases, and what a run with a prompt gets of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.execution.agents.extraction import check_output_schema, schema_instructions
from rookery.actors.execution.agents.model_port import (
    Model,
    ModelAnswer,
    ModelQuestion,
    OnDelta,
    ignore_delta,
)
from rookery.actors.execution.agents.scripted_model import ModelScript, ScriptedModel, read_script
from rookery.actors.kernel.executors import NotExecutableHere
from rookery.actors.tools import ToolCredential
from rookery.schemas.agents import (
    ConfiguredModel,
    ModelEnvironment,
    ModelLimits,
    ModelSettings,
    ToolMode,
)
from rookery.schemas.errors import Refused
from rookery.schemas.run import RunRequest

__all__ = ["NO_MODELS", "KnownModel", "ModelBudgets", "Models", "open_models"]

PROMPT_BYTES_MAX: Final = 1 << 20
ROUTE_MAX: Final = 8
SCRIPTED: Final = "scripted"
PROVIDERS: Final = ("anthropic", "openai")
"""Each is the name of its SDK, too."""
EXTRA_LINE: Final = "pip install 'rookery[agents]'"
_NOT_WITH_A_PROMPT: Final = ("code", "inputs", "files", "inputs_blob", "return_snapshot")
_ONLY_WITH_A_PROMPT: Final = (
    "model",
    "instructions",
    "settings",
    "output_schema",
    "tools",
    "tool_mode",
)


class ModelBudgets(NamedTuple):
    """What the runs of one session may use of models together, by the node's configuration."""

    session_tokens: int | UnsetType = UNSET
    session_cost_micro_usd: int | UnsetType = UNSET


NO_BUDGETS: Final = ModelBudgets()


class KnownModel(NamedTuple):
    """A configured model."""

    configured: ConfiguredModel
    model: Model | None
    """``None`` if the package is missing that knows the provider."""


def _route(aliases: str | tuple[str, ...]) -> tuple[str, ...]:
    if isinstance(aliases, str):
        return (aliases,) if aliases else ()
    return aliases


class Models:
    """One per node. Its aliases are fixed when the node starts."""

    def __init__(
        self,
        known: Mapping[str, KnownModel],
        default: str | tuple[str, ...] = (),
        close: Callable[[], None] = lambda: None,
        budgets: ModelBudgets = NO_BUDGETS,
    ) -> None:
        """``close`` ends what asks providers."""
        self._budgets = budgets
        self._known, self._default, self.close = dict(known), _route(default), close

    def check(self, request: RunRequest) -> None:
        """Raise ``Refused`` if this node could ask no model for such a request."""
        if request.immediate is not UNSET:
            raise Refused("INVALID_ARGUMENT", "immediate is of the verbs append and context")
        if not request.has_prompt:
            _refuse_fields(request, _ONLY_WITH_A_PROMPT, "needs a prompt")
            return
        _refuse_fields(request, _NOT_WITH_A_PROMPT, "is of programs, and the request has a prompt")
        size = sum(len(part.text.encode("utf-8", "replace")) for part in request.prompt_parts)
        if size > PROMPT_BYTES_MAX:
            text = f"the prompt has {size} bytes, the limit is {PROMPT_BYTES_MAX}"
            raise Refused("PAYLOAD_TOO_LARGE", text)
        _check_text(request)
        if request.output_schema is not UNSET:
            check_output_schema(request.output_schema)
        self._require_all(request)

    def environment(self, request: RunRequest) -> ModelEnvironment:
        """What a run with this prompt begins with."""
        first, *others = self._require_all(request)
        return ModelEnvironment(
            model=first,
            next_models=tuple(others),
            follows_baseline=request.model is UNSET,
            limits=msgspec.structs.replace(
                _limits(request),
                session_tokens=self._budgets.session_tokens,
                session_cost_micro_usd=self._budgets.session_cost_micro_usd,
            ),
            instructions=_instructions(request),
            output_schema=request.output_schema,
            settings=ModelSettings() if request.settings is UNSET else request.settings,
            tools=request.tools,
            tool_mode=request.tool_mode or ToolMode.TOOLS,
        )

    def require_here(self, environment: ModelEnvironment) -> None:
        """Raise ``NotExecutableHere`` if another node has to continue a run with this model."""
        try:
            for alias in (environment.model, *environment.next_models):
                self._require(alias)
        except Refused as refusal:
            raise NotExecutableHere(refusal.message) from None

    def knows(self, alias: str) -> bool:
        """Whether this node can ask a model of this name."""
        found = self._known.get(alias)
        return found is not None and found.model is not None

    def get(self, alias: str) -> ConfiguredModel:
        return self._known[alias].configured

    def model(self, alias: str) -> Model:
        """The model of a run that ``require_here`` admits."""
        found = self._known[alias].model
        assert found is not None
        return found

    def _require_all(self, request: RunRequest) -> tuple[str, ...]:
        """The route of a request, of models that this node can ask."""
        aliases = self._default if request.model is UNSET else _route(request.model)
        if len(aliases) > ROUTE_MAX:
            text = f"a route has at most {ROUTE_MAX} models, this one has {len(aliases)}"
            raise Refused("INVALID_ARGUMENT", text)
        for alias in aliases or ("",):
            self._require(alias)
        if request.limits is not None and request.limits.cost_micro_usd is not UNSET:
            self._require_prices(aliases)
        return aliases

    def _require_prices(self, aliases: tuple[str, ...]) -> None:
        for alias in aliases:
            if self._known[alias].configured.price is None:
                text = f"the model {alias} has no price, so no limit of cost holds for it"
                hint = f"[models.{alias}.price] input = DOLLARS, output = DOLLARS, of 1M tokens"
                raise Refused("INVALID_ARGUMENT", text, hint=hint)

    def _require(self, alias: str) -> None:
        found = self._known.get(alias)
        if found is None:
            names = ", ".join(self._known) or "none"
            text = f"no model is called {alias[:80]!r}" if alias else "the request names no model"
            hint = f"models of this node: {names}; configure one: [models.NAME], models.default"
            raise Refused("MODEL_UNKNOWN", text, hint=hint)
        if found.model is None:
            text = (
                f"the model {alias} needs the package of its provider, {found.configured.provider}"
            )
            raise Refused("EXTRA_MISSING", text, hint=EXTRA_LINE)


NO_MODELS: Final = Models({})


class ProviderModels:
    """The models of providers, if the library is installed that knows them. It is loaded for the
    first question: that takes a second, and some 80 MB."""

    def __init__(self) -> None:
        self._library: Any = None
        self._loop: Any = None
        self.loading = asyncio.Lock()

    def model(self, alias: str, configured: ConfiguredModel) -> Model | None:
        """The model; ``None`` without the library."""
        if configured.provider not in PROVIDERS:
            text = f"[models.{alias}]: no provider is called {configured.provider[:80]!r}"
            known = ", ".join((SCRIPTED, *PROVIDERS))
            raise Refused("CONFIG_INVALID", text, hint=f"one of {known}")
        if not configured.model:
            raise Refused("CONFIG_INVALID", f"[models.{alias}] does not say which model")
        is_installed = all(find_spec(name) for name in ("pydantic_ai", configured.provider))
        return _ProvidedModel(self, configured) if is_installed else None

    def load(self, configured: ConfiguredModel) -> Model:
        """Load the library, and make the model. Called on one thread at a time."""
        if self._library is None:
            self._library = import_module("rookery.actors.execution.agents.provider_model")
            self._loop = self._library.ProviderLoop()
        found: Model = self._library.ProviderModel(configured, self._loop)
        return found

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()


class _ProvidedModel:
    """A model whose library may not be loaded yet."""

    def __init__(self, models: ProviderModels, configured: ConfiguredModel) -> None:
        self._models, self._configured = models, configured
        self._model: Model | None = None

    async def ask(
        self,
        question: ModelQuestion,
        on_delta: OnDelta = ignore_delta,
        key: ToolCredential | None = None,
    ) -> ModelAnswer:
        async with self._models.loading:
            if self._model is None:
                self._model = await asyncio.to_thread(self._models.load, self._configured)
        return await self._model.ask(question, on_delta, key)


def open_models(
    configured: Mapping[str, ConfiguredModel],
    default: str | tuple[str, ...],
    folder: Path,
    budgets: ModelBudgets = NO_BUDGETS,
) -> Models:
    """The models of a configuration; ``Refused`` if one cannot be used. Scripts are files relative
    to ``folder``, or ``module:object``."""
    providers = ProviderModels()
    known = {
        alias: KnownModel(one, _model_of(alias, one, folder, providers))
        for alias, one in configured.items()
    }
    for alias in _route(default):
        if alias not in known:
            text = f"models.default = {default!r}: there is no [models.{alias}]"
            raise Refused("CONFIG_INVALID", text)
    return Models(known, default, providers.close, budgets)


def _model_of(
    alias: str, configured: ConfiguredModel, folder: Path, providers: ProviderModels
) -> Model | None:
    if configured.provider != SCRIPTED:
        return providers.model(alias, configured)
    if not configured.script:
        raise Refused("CONFIG_INVALID", f"[models.{alias}] is scripted and has no script")
    module, colon, name = configured.script.partition(":")
    if colon:
        return ScriptedModel(_script_object(alias, module, name))
    path = folder / configured.script
    try:
        return ScriptedModel(read_script(path.read_bytes(), str(path)))
    except OSError as error:
        text = f"[models.{alias}]: {path}: {error.strerror}"
        raise Refused("CONFIG_INVALID", text) from None


def _script_object(alias: str, module: str, name: str) -> ModelScript | Callable[..., Any]:
    try:
        found: Any = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise Refused("CONFIG_INVALID", f"[models.{alias}]: {error}") from None
    if isinstance(found, ModelScript) or callable(found):
        script: ModelScript | Callable[..., Any] = found
        return script
    text = f"[models.{alias}]: {module}:{name} is neither a script nor a function"
    raise Refused("CONFIG_INVALID", text)


def _instructions(request: RunRequest) -> str:
    given = "" if request.instructions is UNSET else request.instructions
    if request.output_schema is UNSET:
        return given
    return "\n\n".join(filter(None, (given, schema_instructions(request.output_schema))))


def _limits(request: RunRequest) -> ModelLimits:
    given, default = request.limits, ModelLimits()
    wall_ms: Any = request.timeout_ms
    if given is None:
        return default if wall_ms is None else ModelLimits(wall_ms=wall_ms)
    if wall_ms is None:
        wall_ms = default.wall_ms if given.agent_wall_ms is UNSET else given.agent_wall_ms
    return ModelLimits(
        turns=default.turns if given.turns is UNSET else given.turns,
        tool_calls=default.tool_calls if given.tool_calls is UNSET else given.tool_calls,
        wall_ms=wall_ms,
        tokens=given.tokens,
        cost_micro_usd=given.cost_micro_usd,
        repeats=default.repeats if given.repeats is UNSET else given.repeats,
    )


def _refuse_fields(request: RunRequest, names: tuple[str, ...], why: str) -> None:
    unused = RunRequest()
    for name in names:
        if getattr(request, name) not in (getattr(unused, name), {}):
            raise Refused("INVALID_ARGUMENT", f"{name} {why}")


def _check_text(request: RunRequest) -> None:
    texts = [part.text for part in request.prompt_parts]
    texts.append("" if request.instructions is UNSET else request.instructions)
    for text in texts:
        if "\0" in text:
            raise Refused("INVALID_ARGUMENT", "a prompt has a NUL character")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Refused("INVALID_ARGUMENT", "a prompt is not Unicode text") from None
