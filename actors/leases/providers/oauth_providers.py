"""The grants of OAuth 2.0: client credentials, authorization code with PKCE, device code.

``oauthlib`` writes the requests and judges callbacks; it opens no connection and reads no clock.
Logins by people end in a refresh token, which their provider uses from then on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeGuard, TypeVar

import msgspec
from oauthlib.common import add_params_to_uri
from oauthlib.oauth2 import (
    BackendApplicationClient,
    Client,
    DeviceClient,
    MismatchingStateError,
    OAuth2Error,
    WebApplicationClient,
)

from rookery.actors.leases.provider import (
    Binding,
    LeaseCredential,
    Login,
    LoginNeeded,
    LoginPrompt,
    LoginProvider,
    LoginSecret,
    Outcome,
    Provider,
    RetryLater,
)
from rookery.actors.leases.providers.static_provider import (
    SecretReader,
    SecretUnavailable,
    StaticProvider,
    unavailable_outcome,
)
from rookery.actors.leases.providers.token_server import ServerReply, TokenServer, reply_outcome
from rookery.schemas.digest import encode_base64url
from rookery.schemas.protection.bindings import (
    AuthorizationCodeSettings,
    ClientCredentialsSettings,
    DeviceCodeSettings,
    OAuthSettings,
)

__all__ = ["callback_code", "create_providers", "is_login_provider"]

S = TypeVar("S", bound=OAuthSettings)

LOGIN_S: Final = 600
"""How long a browser may take; authorization servers usually allow ten minutes."""
NONCE_BYTES: Final = 32
INTERVAL_S: Final = 5.0
"""Between two polls of a device login, if the server names no other."""
INTERVAL_S_MAX: Final = 300.0
LOG_IN: Final = "log in first: rookery leases login"
_HTTPS: Final = "https://"


def create_providers(
    secrets: SecretReader,
    entropy: Callable[[int], bytes],
    token_server: TokenServer | None = None,
) -> Mapping[str, Provider]:
    """All providers by name. ``entropy`` makes the nonces of logins."""
    grants = _Grants(secrets, token_server or TokenServer())
    return {
        "static": StaticProvider(secrets),
        "client_credentials": _ClientCredentialsProvider(grants),
        "authorization_code": _AuthorizationCodeProvider(grants, entropy),
        "device_code": _DeviceCodeProvider(grants),
    }


def is_login_provider(provider: Provider) -> TypeGuard[LoginProvider]:
    """Whether people log in to it."""
    return isinstance(provider, _LoginGrant)


class _Grants:
    """Requests for tokens, with the client's secret from its source."""

    def __init__(self, secrets: SecretReader, server: TokenServer) -> None:
        self._secrets, self._server = secrets, server

    async def post(self, url: str, form: str, settings: OAuthSettings) -> ServerReply:
        """Raises ``SecretUnavailable``."""
        source, secret = settings.client_secret, ""
        if source:
            secret = await self._secrets.read(source, settings.timeout_s)
        return await self._server.post(url, form, settings, secret)

    async def request(
        self,
        client: Client,
        form: str,
        settings: OAuthSettings,
        *,
        now: float,
        former: LeaseCredential | None = None,
        repeatable: bool,
    ) -> Outcome:
        """The outcome of a request for a token."""
        try:
            reply = await self.post(settings.token_url, form, settings)
        except SecretUnavailable as unavailable:
            return unavailable_outcome(unavailable)
        return reply_outcome(client, reply, former, now=now, repeatable=repeatable)


class _ClientCredentialsProvider:
    """Provider ``client_credentials``."""

    def __init__(self, grants: _Grants) -> None:
        self._grants = grants

    def is_repeatable(self, binding: Binding, credential: LeaseCredential | None) -> bool:
        """Each request gets a token of its own, and ends no other."""
        del binding, credential
        return True

    async def refresh(
        self, binding: Binding, credential: LeaseCredential | None, *, now: float
    ) -> Outcome:
        del credential
        settings = _settings(binding, ClientCredentialsSettings)
        client = BackendApplicationClient(settings.client_id)
        form = client.prepare_request_body(
            scope=_scope(settings), include_client_id=_is_in_body(settings)
        )
        return await self._grants.request(client, form, settings, now=now, repeatable=True)


class _LoginGrant:
    """A grant that begins with a login and goes on with refresh tokens."""

    settings: type[AuthorizationCodeSettings | DeviceCodeSettings]

    def __init__(self, grants: _Grants) -> None:
        self._grants = grants

    def is_repeatable(self, binding: Binding, credential: LeaseCredential | None) -> bool:
        """A refresh without a refresh token sends nothing."""
        settings = msgspec.convert(binding.settings, self.settings)
        return credential is None or not credential.refresh_token or not settings.rotates

    async def refresh(
        self, binding: Binding, credential: LeaseCredential | None, *, now: float
    ) -> Outcome:
        if credential is None:
            return LoginNeeded(LOG_IN)
        if not credential.refresh_token:
            return LoginNeeded(f"the server gave no refresh token; {LOG_IN}")
        settings = msgspec.convert(binding.settings, self.settings)
        client = Client(settings.client_id)
        client_id = {"client_id": settings.client_id} if _is_in_body(settings) else {}
        form = client.prepare_refresh_body(
            refresh_token=credential.refresh_token, scope=_scope(settings), **client_id
        )
        return await self._grants.request(
            client,
            form,
            settings,
            now=now,
            former=credential,
            repeatable=self.is_repeatable(binding, credential),
        )


class _AuthorizationCodeProvider(_LoginGrant):
    """Provider ``authorization_code``."""

    settings = AuthorizationCodeSettings

    def __init__(self, grants: _Grants, entropy: Callable[[int], bytes]) -> None:
        super().__init__(grants)
        self._entropy = entropy

    async def begin_login(
        self, binding: Binding, redirect_uri: str, *, now: float
    ) -> Login | RetryLater | LoginNeeded:
        """The address for the browser; it asks no server."""
        settings = _settings(binding, AuthorizationCodeSettings)
        client = WebApplicationClient(settings.client_id)
        state, verifier = self._nonce(), self._nonce()
        scheme, _, rest = settings.authorize_url.partition("://")
        # The library knows no server on loopback, and refuses plain http for all others, too.
        url = client.prepare_request_uri(
            f"{_HTTPS}{rest}",
            redirect_uri=redirect_uri,
            scope=_scope(settings),
            state=state,
            code_challenge=client.create_code_challenge(verifier, "S256"),
            code_challenge_method="S256",
        )
        url = add_params_to_uri(url, list(settings.authorize_parameters.items()))
        expires_at = int(now) + LOGIN_S
        return Login(
            LoginPrompt(url=f"{scheme}://{url.removeprefix(_HTTPS)}", expires_at=expires_at),
            LoginSecret(
                redirect_uri=redirect_uri, state=state, verifier=verifier, expires_at=expires_at
            ),
        )

    async def complete_login(
        self, binding: Binding, secret: LoginSecret, code: str, *, now: float
    ) -> Outcome:
        """Exchange the code, which the server accepts once."""
        if now > secret.expires_at:
            return LoginNeeded("the login took too long")
        settings = _settings(binding, AuthorizationCodeSettings)
        client = WebApplicationClient(settings.client_id)
        form = client.prepare_request_body(
            code=code,
            redirect_uri=secret.redirect_uri,
            code_verifier=secret.verifier,
            include_client_id=_is_in_body(settings),
        )
        return await self._grants.request(client, form, settings, now=now, repeatable=False)

    def _nonce(self) -> str:
        return encode_base64url(self._entropy(NONCE_BYTES))


class _DeviceReply(msgspec.Struct):
    """RFC 8628, 3.2."""

    device_code: str
    user_code: str
    verification_uri: str
    expires_in: int
    verification_uri_complete: str = ""
    interval: float = INTERVAL_S


class _DeviceCodeProvider(_LoginGrant):
    """Provider ``device_code``."""

    settings = DeviceCodeSettings

    async def begin_login(
        self, binding: Binding, redirect_uri: str, *, now: float
    ) -> Login | RetryLater | LoginNeeded:
        """Ask the server for a code; ``redirect_uri`` is empty."""
        del redirect_uri
        settings = _settings(binding, DeviceCodeSettings)
        client = DeviceClient(settings.client_id)
        blank = client.prepare_request_uri(_HTTPS, scope=_scope(settings))
        try:
            form = blank.partition("?")[2]
            reply = await self._grants.post(settings.device_url, form, settings)
        except SecretUnavailable as unavailable:
            return unavailable_outcome(unavailable)
        if reply.response is None or reply.response.status != 200:
            outcome = reply_outcome(client, reply, None, now=now, repeatable=True)
            return outcome if isinstance(outcome, RetryLater | LoginNeeded) else LoginNeeded("")
        try:
            answer = msgspec.json.decode(reply.response.body, type=_DeviceReply, strict=False)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return RetryLater(0.0, f"{reply.reason}, but not with a device code")
        return _device_login(answer, reply.reason, now)

    async def complete_login(
        self, binding: Binding, secret: LoginSecret, code: str, *, now: float
    ) -> Outcome:
        """Poll once."""
        del code
        if now > secret.expires_at:
            return LoginNeeded("the code on the other device has expired")
        settings = _settings(binding, DeviceCodeSettings)
        client = DeviceClient(settings.client_id)
        form = client.prepare_request_body(
            secret.device_code, include_client_id=_is_in_body(settings)
        )
        return await self._grants.request(client, form, settings, now=now, repeatable=True)


def _device_login(answer: _DeviceReply, reason: str, now: float) -> Login | LoginNeeded:
    url = answer.verification_uri_complete or answer.verification_uri
    if not re.fullmatch(r"https?://[!-~]{1,2000}", url) or answer.expires_in <= 0:
        return LoginNeeded(f"{reason}, but its device code cannot be used")
    expires_at = int(now) + min(answer.expires_in, 86_400)
    return Login(
        LoginPrompt(
            url=url,
            user_code=answer.user_code[:80],
            expires_at=expires_at,
            interval_s=min(max(answer.interval, 1.0), INTERVAL_S_MAX),
        ),
        LoginSecret(device_code=answer.device_code, expires_at=expires_at),
    )


def callback_code(query: str, secret: LoginSecret) -> str | LoginNeeded | None:
    """The code in the query of a browser's callback, or why it has none. ``None``: the callback is
    none of this login."""
    client = WebApplicationClient("")
    try:
        found = client.parse_request_uri_response(f"{_HTTPS}loopback/?{query}", secret.state)
    except MismatchingStateError:
        return None
    except OAuth2Error as error:
        known = error.error if re.fullmatch(r"[a-z_]{1,40}", error.error or "") else "an error"
        return LoginNeeded(f"the browser came back without a code: {known}")
    code: str = found["code"]
    return code


def _settings(binding: Binding, kind: type[S]) -> S:
    settings: S = msgspec.convert(binding.settings, kind)
    return settings


def _scope(settings: OAuthSettings) -> str | None:
    return " ".join(settings.scopes) or None


def _is_in_body(settings: OAuthSettings) -> bool:
    """Whether the client's id is in the form, and not in the header beside its secret."""
    return not settings.client_secret or settings.client_auth == "post"
