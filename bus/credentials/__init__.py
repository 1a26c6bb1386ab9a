"""Credentials: a name and a role in a realm, with a password for the server and a key of its own.

``credential`` is one credential and the proof of its name in a header, ``store`` the files of all
credentials of a server and the server's configuration for them.
"""

from __future__ import annotations

from rookery.bus.credentials.credential import Credential, identity_header, is_certified
from rookery.bus.credentials.store import CredentialStore, ServerFormat

__all__ = ["Credential", "CredentialStore", "ServerFormat", "identity_header", "is_certified"]
