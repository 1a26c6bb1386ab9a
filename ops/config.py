"""The configuration: every option, its value and its origin. Unknown keys are refused.

One tree of frozen structs. A value comes from the defaults, then a TOML file, then the environment,
then flags; the later one wins, and ``rookery config show --origin`` prints its origin.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from rookery.bus.mesh_links import LinkFiles
from rookery.bus.server_access import ACCESS_VARIABLES, split_urls
from rookery.schemas.agents import BudgetsConfig, ConfiguredModel
from rookery.schemas.envelope import DEFAULT_CLASSES, FactClasses
from rookery.schemas.errors import Refused
from rookery.schemas.hooks import HookSettings
from rookery.schemas.protection.bindings import BindingName, BindingSettings
from rookery.schemas.protection.policy import PolicySettings
from rookery.schemas.seed.refs import PrivacyClass

__all__ = [
    "ApprovalsConfig",
    "BudgetsConfig",
    "Config",
    "DispatcherName",
    "Driver",
    "Format",
    "Level",
    "LimitsConfig",
    "LoadedConfig",
    "LogConfig",
    "MetricsConfig",
    "ModelName",
    "ModelsConfig",
    "NodeConfig",
    "QuotasConfig",
    "ResourcesConfig",
    "SandboxConfig",
    "ServerConfig",
    "Setting",
    "StaticResource",
    "address_of",
    "find_file",
    "hide_secret",
    "load",
]

Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0)]
Port = Annotated[int, Meta(ge=0, le=65_535)]
Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "text", "json"]
Driver = Literal["sandbox", "outside"]
DispatcherName = Literal["inbox", "service", "webhook"]


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to reach the NATS server, and what its acks must guarantee."""

    token: str = ""
    """For a server elsewhere, like all of these down to ``inbox_prefix``; the embedded server's
    credentials are in its store."""
    user: str = ""
    """Without a password it is a token."""
    password: str = ""
    credentials_file: str = ""
    """A user's JWT and its seed (``.creds``), or a credential of Rookery (``.json``)."""
    nkey_file: str = ""
    """A user's seed, for a server that knows its public key."""
    ca_file: str = ""
    """Certificates that vouch for the servers; empty: the system's. It demands TLS, as the next."""
    certificate_file: str = ""
    """The client's own certificate, and those between it and its CA."""
    key_file: str = ""
    """Its private key; empty: it is in the same file."""
    inbox_prefix: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\Z")] = "_INBOX"
    """Replies come to subjects below it."""
    sync: Literal["always", "default"] = "always"
    """The embedded server's: ``default`` acks before data is on disk, for benches only."""
    replicas: Annotated[int, Meta(ge=0, le=5)] = 0
    """Copies of new streams, on different servers; 0: three where the cluster has as many servers,
    else one. ``rookery realm upgrade`` brings existing streams there."""
    accept_unknown_durability: bool = False
    """Serve through a server that does not say whether it syncs before it acks."""


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{0,64}\Z")] = ""
    """Empty: made from the host name and the process id."""
    processes: Annotated[int, Meta(ge=1, le=16)] = 1
    """Processes of this node, each with partitions of its own. Limits of tools, memory and quotas
    are the node's: tools share them, memory and the quota of runs in flight are divided. Per
    process: mailboxes, threads, blocked programs, and the lists of runs in memory."""
    drain_timeout_s: Seconds = 20.0
    """How long a stopping node waits for its unfinished work."""
    claim_s: Annotated[int, Meta(ge=0, le=60)] = 0
    """How long another node waits before it takes over from this one, if this node is cut off,
    paused, or dead on another machine. The node renews its claims three times as often, or more. 0:
    6 s, and 12 s where the server is a cluster, so that claims live while it elects a leader."""
    passivate_after_s: Seconds = 600.0
    """An entity without a command for so long leaves memory; its facts stay in the journal."""
    driver: Driver = "sandbox"
    """What takes the steps of runs: programs in this node's sandbox, or a client outside that sends
    them to the session's machines as commands."""
    fibers: bool = True
    """A program that waits for a synchronous call is suspended on a fiber. False, or where fibers
    cannot be (``rookery doctor``): it blocks a thread, with the same results."""
    tools: str = ""
    """``module:object`` of the functions that programs may call."""
    mounts: tuple[str, ...] = ()
    """Folders of this machine for ``read_text``, ``list_dir`` and ``write_text``: ``NAME=DIR``, or
    ``NAME=DIR:rw`` to let programs write. Programs call it ``/NAME``."""
    allow_http: tuple[str, ...] = ()
    """Servers for ``fetch_text``, ``fetch_json``, ``http_get`` and ``http_send``:
    ``[METHOD[+METHOD]=]URL[ NETWORK...]``, such as ``GET+POST=https://api.example.com/v1``. Without
    a method, GET. The server's address is public or in one of the networks. A rule that ends with
    ``binding=NAME``, and maybe ``header=X-Key`` or ``query=key``, is for tools ``NAME_http_get``
    and so on, whose requests have the credential of ``[bindings.NAME]``."""
    workers: tuple[str, ...] = ()
    """Surfaces whose tools workers serve: ``rookery tools serve``."""
    sealing_key: str = ""
    """The key of the realm's secrets, the same for every node: a file, ``env:NAME``,
    ``command:WORDS`` or ``credential:NAME`` (systemd's). Empty: the file ``<realm>.sealing-key`` in
    the store, made at the first start."""
    record_reads: Literal["after", "before"] = "after"
    """When the journal gets calls of tools declared ``record="after"``: after they are made,
    together with their outcome, or before, as those of all other tools."""


class QuotasConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    queue_length_max: Count = 1_000
    """Inputs waiting in one session."""
    runs_in_flight_max: Count = 10_000
    """Runs of the realm that are accepted and not ended."""


class SandboxConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    packages: tuple[str, ...] = ()
    """Python packages that programs can import, as ``sympy`` or ``jinja2>=3``: pure Python only.
    They are part of the guest, which is built with them once: ``rookery guest build``."""


class LimitsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    payload_bytes_max: Annotated[int, Meta(ge=1_024, le=1 << 20)] = 1 << 20
    """Body of one command. The server's own limit counts headers too."""
    memory_mb_max: Count = 512
    """The maximum for a run, whatever it requests; so are the others below."""
    cpu_ms_max: Count = 60_000
    wall_ms_max: Count = 600_000
    stdout_bytes_max: Count = 1 << 20
    external_calls_max: Count = 10_000
    stack_depth_max: Count = 1_000


class StaticResource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of this machine as ``memory://NAME``, as it is when the node starts."""

    name: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")]
    file: Annotated[str, Meta(min_length=1)]
    mime: str = ""
    """Empty: by the file's name."""
    privacy: PrivacyClass = PrivacyClass.CONTENT_REFS_ONLY
    """Programs and clients read ``public`` and ``content_refs_only``; of others they get refs."""


class ResourcesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``rookery resources`` and the tools for resources read."""

    tools: bool = False
    """Offer ``resource_resolve`` and ``resource_read`` to programs, also where are neither
    static resources nor ``@resource`` functions. They read the mounts and servers of ``node``."""
    max_bytes: Annotated[int, Meta(ge=1, le=64 << 20)] = 16 << 20
    """The most that one request may capture."""
    static: tuple[StaticResource, ...] = ()
    """Tables ``[[resources.static]]`` of the file."""


class PeersConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tools: bool = False
    """Offer ``send_request``, ``receive`` and the other tools of peers to programs."""
    networks: tuple[str, ...] = ()
    """Of A2A agents, also without TLS, as ``10.1.0.0/16``. Others are at public addresses."""
    published: tuple[Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")], ...] = ()
    """Sessions that clients of the Synadia agent protocol discover and prompt."""


class ApprovalsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    dispatchers: tuple[DispatcherName, ...] = ("inbox",)
    """Which dispatchers carry requests. With none, a call that needs an approval is denied."""
    timeout_ms: Count = 86_400_000
    """How long a request waits for an answer."""
    grant_ttl_ms: Count = 86_400_000
    """How long a grant may wait for its call; after that, the call needs a new approval."""
    session_grant_ttl_ms: Count = 86_400_000
    """How long an approval for the session is valid."""
    require_keys: bool = False
    """Only answers signed with an approver's key are valid: ``rookery approvers add``."""
    root_key: str = ""
    """Public Ed25519 key, in hex or PEM, that may name approvers, including the first one."""
    service_subject: str = ""
    """The subject to which the dispatcher ``service`` sends requests: below ``service.<realm>``,
    where nodes may publish and approvers listen, unless the server has other permissions."""
    webhook_url: str = ""
    """The URL to which the dispatcher ``webhook`` posts requests."""
    webhook_secret: str = ""
    """``whsec_`` and base64 of 24 to 64 bytes; signs the requests and their answers."""
    callback_host: str = "127.0.0.1"
    callback_port: Port | None = None
    """Port for the webhook's answers; unset serves none, 0 takes a free port."""
    escalate_after_ms: Count | None = None
    """Without an answer for so long, ``escalate_to`` gets the request too."""
    escalate_to: DispatcherName | None = None


class MetricsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    host: str = "127.0.0.1"
    port: Port | None = None
    """Port of ``/metrics``, ``/livez`` and ``/readyz``; unset serves none, 0 takes a free port."""


class LogConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    level: Level = "info"
    format: Format = "auto"
    """``auto``: text on a terminal, JSON lines elsewhere."""


ModelName = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]


class ModelsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which models runs with a prompt may have: a table ``[models.NAME]`` each."""

    default: str | tuple[str, ...] = ""
    """The NAME of the model of requests that name none, or a route of several."""
    known: dict[ModelName, ConfiguredModel] = {}


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    realm: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,32}\Z")] = "default"
    url: str = ""
    """URL of a NATS server; empty: the embedded one of ``store``."""
    store: str = ""
    """Directory of the embedded server; empty: the default one."""
    server: ServerConfig = ServerConfig()
    node: NodeConfig = NodeConfig()
    quotas: QuotasConfig = QuotasConfig()
    sandbox: SandboxConfig = SandboxConfig()
    limits: LimitsConfig = LimitsConfig()
    resources: ResourcesConfig = ResourcesConfig()
    peers: PeersConfig = PeersConfig()
    mesh: LinkFiles = LinkFiles()
    approvals: ApprovalsConfig = ApprovalsConfig()
    policy: PolicySettings = PolicySettings()
    metrics: MetricsConfig = MetricsConfig()
    log: LogConfig = LogConfig()
    models: ModelsConfig = ModelsConfig()
    budgets: BudgetsConfig = BudgetsConfig()
    hooks: HookSettings = HookSettings()
    facts: FactClasses = DEFAULT_CLASSES
    bindings: dict[BindingName, BindingSettings] = {}
    """Tables ``[bindings.NAME]`` of the file: the credentials that tools may use, by their names.
    ``provider`` says how each is got: ``static``, ``client_credentials``, ``authorization_code`` or
    ``device_code``."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One value and its origin."""

    key: str
    value: Any
    origin: str


class LoadedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration and the origin of each of its values."""

    config: Config
    settings: tuple[Setting, ...]


Layer = dict[str, tuple[Any, str]]
"""Dotted key to value and origin."""

DEFAULT = "default"
_BINDINGS, _MODELS = "bindings.", "models."
"""Before the name of each binding and model; its table is one value."""
_TABLES = (_BINDINGS, _MODELS)
_WHOLE = frozenset({"policy.approvals", "policy.execution", "policy.network"})
"""Tables that are one value, whose names are paths of tools."""
_READ_ELSEWHERE = frozenset({"ROOKERY_FAILPOINT"})


def load(
    *,
    environ: Mapping[str, str],
    directory: Path,
    file: Path | None = None,
    flags: Mapping[str, object] | None = None,
) -> LoadedConfig:
    """The configuration from these sources; a flag of value ``None`` is not set."""
    known = dict(_keys(Config))
    layers = (
        {key: (default, DEFAULT) for key, (_, default) in known.items()},
        _from_file(file or find_file(environ, directory)),
        _from_environment(environ, known),
        {key: (value, "flag") for key, value in (flags or {}).items() if value is not None},
    )
    merged: Layer = {}
    for layer in layers:
        for key, (value, origin) in layer.items():
            if key not in known and not key.startswith(_TABLES):
                raise _unknown(key, origin, known)
            merged[key] = (value, origin)
    tables = {key: merged.pop(key) for key in merged.keys() - known.keys()}
    checked = {key: _check(key, *merged[key], known[key][0]) for key in known}
    checked_tables = {key: _check_table(key, *tables[key]) for key in sorted(tables)}
    settings = [
        Setting(key=key, value=value, origin=(merged | tables)[key][1])
        for key, value in (checked | checked_tables).items()
    ]
    return LoadedConfig(config=_build(checked, checked_tables), settings=tuple(settings))


_SECRETS = frozenset({"server.token", "server.user", "server.password", "approvals.webhook_secret"})
"""A user without a password is a token."""


def hide_secret(key: str, value: Any) -> Any:
    """``value`` without secrets: no token, no password, no user and no query of a URL."""
    if key in _SECRETS:
        return "***" if value else ""
    is_url = key == "url" or key.endswith("_url")
    return _public_url(value) if is_url and isinstance(value, str) else value


def _public_url(text: str) -> str:
    """A URL, or several with commas between them, with ``***`` in the place of users, passwords and
    queries."""
    return ",".join(_public(one, "***@", "?***") for one in split_urls(text))


def address_of(text: str) -> str:
    """The same with nothing in their place, as a client may use it with credentials of its own."""
    return ",".join(_public(one, "", "") for one in split_urls(text))


def _public(url: str, user: str, query: str) -> str:
    """Everything before the last ``@`` counts as the user: it may contain any character."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        scheme, rest = "", url
    _, at, rest = rest.rpartition("@")
    shown, cut, _ = re.sub("[#?]", "?", rest, count=1).partition("?")
    return f"{scheme}{mark}{user if at else ''}{shown}{query if cut else ''}"


def _keys(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Every dotted key below ``struct`` with its type and default."""
    types = get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        if isinstance(field.default, msgspec.Struct):
            yield from _keys(type(field.default), f"{prefix}{field.name}.")
        elif f"{prefix}{field.name}" not in ("bindings", "models.known"):
            made = field.default_factory
            default = field.default if made is msgspec.NODEFAULT else made()
            yield f"{prefix}{field.name}", (types[field.name], default)


def find_file(environ: Mapping[str, str], directory: Path) -> Path | None:
    home = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME", "/")) / ".config")
    candidates = (directory / "rookery.toml", Path(home) / "rookery" / "config.toml")
    return next((path for path in candidates if path.is_file()), None)


def _from_file(path: Path | None) -> Layer:
    if path is None:
        return {}
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Refused("CONFIG_INVALID", f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Refused("CONFIG_INVALID", f"{path}: {error}") from None
    return {key: (value, str(path)) for key, value in _flatten(tree)}


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        is_table = isinstance(value, dict) and f"{prefix}{name}" not in _WHOLE
        if is_table and value and prefix not in _TABLES:
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _from_environment(environ: Mapping[str, str], known: Mapping[str, object]) -> Layer:
    """``ROOKERY_SECTION_KEY``, and the variables of the ``nats`` command line, such as
    ``NATS_URL`` for ``url``. The items of a list are separated by commas."""
    access = {name: f"server.{field}" for name, field in ACCESS_VARIABLES.items()}
    names = {"NATS_URL": "url"} | access | {_variable(key): key for key in known}
    layer: Layer = {}
    for name in sorted(environ, key=lambda name: name.startswith("ROOKERY_")):
        key = names.get(name)
        if key is not None:
            if environ[name]:  # `NATS_URL=` in a compose file means: not set.
                layer[key] = (environ[name], f"environment {name}")
        elif name.startswith("ROOKERY_") and name not in _READ_ELSEWHERE:
            raise _unknown(name, "environment", names)
    return layer


def _variable(key: str) -> str:
    return "ROOKERY_" + key.replace(".", "_").upper()


def _unknown(key: str, origin: str, known: Mapping[str, object]) -> Refused:
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
    return Refused(
        "CONFIG_UNKNOWN_KEY",
        f"there is no key {key!r} ({origin})",
        hint=f"the nearest key is {nearest!r}; `rookery config show` lists all",
    )


def _check(key: str, value: Any, origin: str, kind: Any) -> Any:
    """``value`` as ``kind``; text from the environment may mean a number, a boolean or a list."""
    textual = origin.startswith("environment")
    if textual and get_origin(kind) is tuple:
        value = [item.strip() for item in value.split(",") if item.strip()]
    try:
        return msgspec.convert(value, kind, strict=not textual)
    except msgspec.ValidationError as error:
        expected = f"one of {', '.join(get_args(kind))}" if get_origin(kind) is Literal else error
        raise Refused(
            "CONFIG_INVALID",
            f"{key} = {hide_secret(key, value)!r}: {expected}",
            hint=f"it was set by: {origin}",
        ) from None


def _check_table(key: str, value: Any, origin: str) -> dict[str, Any]:
    return (_check_model if key.startswith(_MODELS) else _check_binding)(key, value, origin)


def _check_model(key: str, value: Any, origin: str) -> dict[str, Any]:
    """The table of a model with its defaults."""
    name = key.removeprefix(_MODELS)
    try:
        found = msgspec.convert({name: value}, dict[ModelName, ConfiguredModel])
    except msgspec.ValidationError as error:
        wrong = str(error).partition(" - at `")[0]
        text, hint = f"[{key[:100]}]: {wrong}", f"it was set by: {origin}"
        raise Refused("CONFIG_INVALID", text, hint=hint) from None
    settings: dict[str, Any] = msgspec.to_builtins(found[name])
    return settings


def _check_binding(key: str, value: Any, origin: str) -> dict[str, Any]:
    """The table of a binding with its defaults; no error shows a value, which may be a secret."""
    name = key.removeprefix(_BINDINGS)
    try:
        found = msgspec.convert({name: value}, dict[BindingName, BindingSettings])
    except msgspec.ValidationError as error:
        wrong, _, place = str(error).partition(" - at `")
        field = f"{place.removeprefix('$[...].').rstrip('`')}: " if "[...]." in place else ""
        raise Refused(
            "CONFIG_INVALID",
            f"[{key[:100]}]: {field}{wrong}",
            hint=f"it was set by: {origin}; ops/docs/security.md has an example of each provider",
        ) from None
    settings: dict[str, Any] = msgspec.to_builtins(found[name])
    return settings


def _build(values: Mapping[str, Any], tables: Mapping[str, Any]) -> Config:
    def named(prefix: str) -> dict[str, Any]:
        return {k.removeprefix(prefix): v for k, v in tables.items() if k.startswith(prefix)}

    tree: dict[str, Any] = {"bindings": named(_BINDINGS), "models": {"known": named(_MODELS)}}
    for key, value in values.items():
        section, dot, name = key.rpartition(".")
        (tree.setdefault(section, {}) if dot else tree)[name] = value
    return msgspec.convert(tree, Config)
