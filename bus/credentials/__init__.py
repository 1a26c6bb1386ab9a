"""Credentials: a name and a role in a realm, with a password for the server and a key of its own.

``credential`` is one credential, ``identity`` the proof of its name in a header, ``store`` the
files of all credentials of a server, ``server_config`` the configuration of the server for them,
``value_seal`` the file of keys for sensitive values.
"""

from rookery.bus.credentials.credential import Credential, read_credential
from rookery.bus.credentials.identity import IDENTITY, IdentityVerifier, identity_header
from rookery.bus.credentials.server_config import ServerFormat
from rookery.bus.credentials.store import USERS_FILE, CredentialStore
from rookery.bus.credentials.value_seal import FileSeal

__all__ = [
    "IDENTITY",
    "USERS_FILE",
    "Credential",
    "CredentialStore",
    "FileSeal",
    "IdentityVerifier",
    "ServerFormat",
    "identity_header",
    "read_credential",
]
