"""Bindings: how a node gets the credential that its tools use by a name. No setting is a secret.

A setting that needs a secret names its source: ``env:NAME``, ``file:PATH``, ``command:WORDS`` or
``secret:NAME``, which is what ``rookery secrets set NAME`` stored.
"""

from __future__ import annotations

import re
import shlex
from enum import StrEnum
from typing import Annotated, Final, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

__all__ = [
    "AuthorizationCodeSettings",
    "BindingName",
    "BindingSettings",
    "ClientCredentialsSettings",
    "DeviceCodeSettings",
    "OAuthSettings",
    "SecretKind",
    "SecretSource",
    "StaticSettings",
]

BindingName: TypeAlias = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.-]{1,64}\Z")]
Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=4_096)]
TimeoutS: TypeAlias = Annotated[float, Meta(gt=0, le=300)]

_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_SECRET_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SOURCE: Final = re.compile(r"(env|file|command|secret):(.*)", re.DOTALL)
RESERVED: Final = frozenset(
    [
        "client_id",
        "client_secret",
        "code",
        "code_challenge",
        "code_challenge_method",
        "code_verifier",
        "device_code",
        "grant_type",
        "redirect_uri",
        "refresh_token",
        "response_type",
        "scope",
        "state",
    ]
)
"""Parameters of requests that the provider itself sets."""


class SecretKind(StrEnum):
    """Where a secret is."""

    ENV = "env"
    FILE = "file"
    COMMAND = "command"
    SECRET = "secret"  # noqa: S105 - the word before a name.
    """In the vault of the realm."""


class SecretSource(msgspec.Struct, frozen=True):
    """Where a secret is, and what it is called there."""

    kind: SecretKind
    name: str

    @classmethod
    def parse(cls, text: str) -> SecretSource:
        """The source that ``text`` names. ``ValueError``, which does not show the text: it may be
        the secret itself."""
        matched = _SOURCE.fullmatch(text)
        if matched is None or not matched[2].strip():
            raise ValueError(
                "a secret is named by env:NAME, file:PATH, command:WORDS or secret:NAME"
            )
        source = cls(SecretKind(matched[1]), matched[2])
        if source.kind is SecretKind.COMMAND:
            shlex.split(source.name)
        if source.kind is SecretKind.SECRET and not _SECRET_NAME.fullmatch(source.name):
            raise ValueError("the name of a secret has 1 to 64 letters, digits, '-', '_' or '.'")
        return source

    @property
    def words(self) -> str:
        """The source in words without secrets; a command's arguments may have one."""
        match self.kind:
            case SecretKind.ENV:
                return f"the environment variable {self.name}"
            case SecretKind.FILE:
                return f"the file {self.name}"
            case SecretKind.COMMAND:
                return f"the output of {shlex.split(self.name)[0]}"
            case _:
                return f"the secret {self.name}"


class _Settings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="provider"
):
    surfaces: tuple[str, ...] = ("local",)
    """Whose tools may have the credential: those of the node itself, and workers by their surface,
    whose catalogue says what they want."""


class StaticSettings(_Settings, frozen=True, kw_only=True, tag="static"):
    """A credential that something else renews."""

    value: str
    """Its source."""
    scheme: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]*\Z")] = "Bearer"
    """The word before it in an ``Authorization`` header; empty: none."""
    lasts_s: Annotated[int, Meta(ge=120)] | None = None
    """How long it counts until the source is read again; unset: until the node starts again, or a
    server rejects it."""
    timeout_s: TimeoutS = 10.0

    def __post_init__(self) -> None:
        SecretSource.parse(self.value)


class OAuthSettings(_Settings, frozen=True, kw_only=True):
    """What every grant of OAuth 2.0 needs."""

    token_url: str
    client_id: Text
    client_secret: str = ""
    """Its source; empty for a public client."""
    client_auth: Literal["basic", "post"] = "basic"
    """Whether the client's secret is in the ``Authorization`` header or in the body."""
    scopes: tuple[Text, ...] = ()
    parameters: dict[Text, str] = {}
    """Further parameters of token requests, such as ``audience`` or ``resource``."""
    timeout_s: TimeoutS = 30.0
    """For one exchange with the server."""

    def __post_init__(self) -> None:
        if self.client_secret:
            SecretSource.parse(self.client_secret)
        for name in self.__struct_fields__:
            if name.endswith("_url"):
                _check_url(name, getattr(self, name))
            elif name.endswith("parameters") and (fixed := RESERVED & getattr(self, name).keys()):
                raise ValueError(f"{name}: {min(fixed)} is set by the provider")


class ClientCredentialsSettings(OAuthSettings, frozen=True, kw_only=True, tag="client_credentials"):
    """The client itself is the user."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.client_secret:
            raise ValueError("client_secret is missing: this grant needs one")


class _LoginSettings(OAuthSettings, frozen=True, kw_only=True):
    rotates: bool = True
    """Whether the server may replace a refresh token when it is used. Then a refresh whose answer
    is lost needs a new login; with ``false`` it is repeated."""


class AuthorizationCodeSettings(
    _LoginSettings, frozen=True, kw_only=True, tag="authorization_code"
):
    """People log in by a browser, with PKCE."""

    authorize_url: str
    authorize_parameters: dict[Text, str] = {}
    """Further parameters of the page where people log in, such as ``prompt``."""
    redirect_port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    """Port of the loopback callback, if the server knows the client by one; 0 takes a free one."""


class DeviceCodeSettings(_LoginSettings, frozen=True, kw_only=True, tag="device_code"):
    """People log in by a code on another device."""

    device_url: str


BindingSettings: TypeAlias = (
    StaticSettings | ClientCredentialsSettings | AuthorizationCodeSettings | DeviceCodeSettings
)


def _check_url(name: str, text: str) -> None:
    try:
        url = urlsplit(text)
        host, has_user = url.hostname, url.username is not None or url.password is not None
    except ValueError:
        raise ValueError(f"{name} is no URL") from None
    if url.scheme not in ("http", "https") or not host or has_user or url.fragment:
        raise ValueError(f"{name} is no URL https://host/path, without user and fragment")
    if url.scheme == "http" and host not in _LOOPBACK:
        raise ValueError(f"{name} is not encrypted: use https, or a server on loopback")
