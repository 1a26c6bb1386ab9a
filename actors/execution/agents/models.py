"""``Models``: the models of a node by their aliases, and what a run with a prompt gets of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
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
from rookery.actors.tools.agents import RegisteredAgent
from rookery.schemas.agent_tools import AgentView
from rookery.schemas.agents import (
    AgentLimits,
    ConfiguredModel,
    ModelEnvironment,
    ModelLimits,
    ModelSettings,
    ModelUsage,
)
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Refused
from rookery.schemas.run import RunRequest

__all__ = ["NO_MODELS", "KnownModel", "ModelBudgets", "Models", "open_models"]

PROMPT_BYTES_MAX: Final = 1 << 20
ROUTE_MAX: Final = 8
SCRIPTED: Final = "scripted"
RECORDED: Final = "recorded"
"""By a script of what a past run was answered."""
PROVIDERS: Final = ("anthropic", "openai")
"""Each is the name of its SDK, too."""
EXTRA_LINE: Final = "pip install 'rookery[agents]'"
INPUTS_BYTES_MAX: Final = 64 << 10
"""Of the arguments of an agent."""
NO_AGENT: Final = AgentView(name="")
_NOT_WITH_A_PROMPT: Final = ("code", "inputs", "files", "inputs_blob", "return_snapshot")
_NOT_WITH_COMPACT: Final = ("prompt", "output_schema", "tools", "tool_mode", "agent")
COMPACT_AT: Final = 0.75
"""Of the tokens that a question may have."""
_ONLY_WITH_A_PROMPT: Final = (
    "model",
    "instructions",
    "settings",
    "output_schema",
    "tools",
    "tool_mode",
)


class ModelBudgets(NamedTuple):
    """What the runs of one session, and those of the realm in a day, may use of models together,
    by the node's configuration."""

    session_tokens: int | UnsetType = UNSET
    session_cost_micro_usd: int | UnsetType = UNSET
    realm_tokens: int | UnsetType = UNSET
    realm_cost_micro_usd: int | UnsetType = UNSET


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
        self.budgets = budgets
        self.realm_usage: Callable[[], Awaitable[ModelUsage]] = _nothing_used
        """What the realm has used today; for budgets of the realm."""
        self._known, self._default, self.close = dict(known), _route(default), close

    def check(self, request: RunRequest, agent: RegisteredAgent | None = None) -> None:
        """Raise ``Refused`` if this node could ask no model for such a request. ``agent``: that of
        the request."""
        if request.immediate is not UNSET:
            raise Refused("INVALID_ARGUMENT", "immediate is of the verbs append and context")
        if request.parent is not UNSET:
            raise Refused("INVALID_ARGUMENT", "parent is of the runs that other runs begin")
        if not request.has_prompt:
            _refuse_fields(request, _ONLY_WITH_A_PROMPT, "needs a prompt or an agent")
            return
        alien = [name for name in _NOT_WITH_A_PROMPT if agent is None or name != "inputs"]
        _refuse_fields(request, alien, "is of programs, and the request has a prompt")
        if request.compact is not UNSET:
            _refuse_fields(request, _NOT_WITH_COMPACT, "is of a prompt, and the request compacts")
        size = sum(len(part.text.encode("utf-8", "replace")) for part in request.prompt_parts)
        if size > PROMPT_BYTES_MAX:
            text = f"the prompt has {size} bytes, the limit is {PROMPT_BYTES_MAX}"
            raise Refused("PAYLOAD_TOO_LARGE", text)
        _check_text(request)
        if request.output_schema is not UNSET:
            check_output_schema(request.output_schema)
        if agent is not None:
            _check_agent(request, agent)
        self._require_all(request, NO_AGENT if agent is None else agent.view)

    def environment(
        self, request: RunRequest, agent: RegisteredAgent | None = None
    ) -> ModelEnvironment:
        """What a run with this prompt begins with. What ``agent`` says can only be narrowed."""
        view = NO_AGENT if agent is None else agent.view
        written = "" if agent is None else agent.instructions(request.inputs)
        first, *others = self._require_all(request, view)
        schema = request.output_schema if view.output_schema is UNSET else view.output_schema
        return ModelEnvironment(
            model=first,
            next_models=tuple(others),
            follows_baseline=request.model is UNSET,
            limits=msgspec.structs.replace(
                _limits(request, view.limits),
                session_tokens=self.budgets.session_tokens,
                session_cost_micro_usd=self.budgets.session_cost_micro_usd,
            ),
            instructions=_instructions(written, request, schema),
            output_schema=schema,
            settings=_settings(request, view),
            tools=_tools(request, view),
            tool_mode=request.tool_mode or view.tool_mode,
            agent=view.name or UNSET,
            compact_at_tokens=self._compact_at(first),
        )

    def _compact_at(self, alias: str) -> int | UnsetType:
        most = self._known[alias].configured.context_tokens
        return UNSET if most is None else int(COMPACT_AT * most)

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

    def _require_all(self, request: RunRequest, agent: AgentView) -> tuple[str, ...]:
        """The route of a request, of models that this node can ask."""
        aliases = agent.model or self._default
        aliases = aliases if request.model is UNSET else _route(request.model)
        if len(aliases) > ROUTE_MAX:
            text = f"a route has at most {ROUTE_MAX} models, this one has {len(aliases)}"
            raise Refused("INVALID_ARGUMENT", text)
        for alias in aliases or ("",):
            self._require(alias)
        if _limits(request, agent.limits).cost_micro_usd is not UNSET:
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


async def _nothing_used() -> ModelUsage:
    return ModelUsage()


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
            known = ", ".join((SCRIPTED, RECORDED, *PROVIDERS))
            raise Refused("CONFIG_INVALID", text, hint=f"one of {known}")
        if not configured.model:
            raise Refused("CONFIG_INVALID", f"[models.{alias}] does not say which model")
        if configured.background and configured.provider != "openai":
            text = f"[models.{alias}]: background is of the provider openai alone"
            raise Refused("CONFIG_INVALID", text)
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
    if configured.provider not in (SCRIPTED, RECORDED):
        return providers.model(alias, configured)
    if not configured.script:
        text = f"[models.{alias}] is {configured.provider} and has no script"
        hint = "script = FILE; rookery runs answers RUN FILE writes one from what is on record"
        raise Refused("CONFIG_INVALID", text, hint=hint)
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


def _instructions(written: str, request: RunRequest, output_schema: Any) -> str:
    """``written``: by the function of the agent."""
    given = "" if request.instructions is UNSET else request.instructions
    schema = "" if output_schema is UNSET else schema_instructions(output_schema)
    return "\n\n".join(filter(None, (written, given, schema)))


def _settings(request: RunRequest, agent: AgentView) -> ModelSettings:
    """Those of the request, else of the agent."""
    given = request.settings
    if given is UNSET:
        return agent.settings
    named = {name: getattr(given, name) for name in given.__struct_fields__}
    named = {name: value for name, value in named.items() if value is not UNSET}
    return msgspec.structs.replace(agent.settings, **named)


def _tools(request: RunRequest, agent: AgentView) -> tuple[str, ...] | UnsetType:
    """The tools that both name."""
    if request.tools is UNSET or agent.tools is UNSET:
        return request.tools if agent.tools is UNSET else agent.tools
    return tuple(name for name in agent.tools if name in request.tools)


def _limits(request: RunRequest, agent: AgentLimits) -> ModelLimits:
    """The lower ones of the request and of the agent, else the defaults."""
    given, wall_ms = request.limits, request.timeout_ms
    named = dict[str, int]()
    for name in AgentLimits.__struct_fields__:
        asked = UNSET if given is None else getattr(given, name)
        if name == "agent_wall_ms" and wall_ms is not None:
            asked = wall_ms
        found = [value for value in (asked, getattr(agent, name)) if value is not UNSET]
        if found:
            named["wall_ms" if name == "agent_wall_ms" else name] = min(found)
    return ModelLimits(**named)


def _check_agent(request: RunRequest, agent: RegisteredAgent) -> None:
    """Raise ``Refused`` for what the agent does not take."""
    size = len(encode_json(request.inputs))
    if size > INPUTS_BYTES_MAX:
        text = f"the arguments of {agent.name} have {size} bytes, the limit is {INPUTS_BYTES_MAX}"
        raise Refused("PAYLOAD_TOO_LARGE", text)
    agent.check(request.inputs)
    if request.output_schema is not UNSET and agent.view.output_schema is not UNSET:
        raise Refused("INVALID_ARGUMENT", f"{agent.name} has a schema of its results")


def _refuse_fields(request: RunRequest, names: Sequence[str], why: str) -> None:
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
