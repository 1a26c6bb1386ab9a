"""Providers of credentials: a static source, and the grants of OAuth 2.0.

``oauth_providers`` has the grants, ``token_server`` their exchanges with an authorization server,
``static_provider`` the credential that something else renews, and ``secret_reader`` the sources of
secrets that the settings of a binding name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.leases.providers.oauth_providers import (
        callback_code,
        create_providers,
        is_login_provider,
    )
    from rookery.actors.leases.providers.static_provider import SecretReader

__all__ = ["SecretReader", "callback_code", "create_providers", "is_login_provider"]

__getattr__ = lazy_names(
    __name__,
    {
        "oauth_providers": ("callback_code", "create_providers", "is_login_provider"),
        "static_provider": ("SecretReader",),
    },
)
