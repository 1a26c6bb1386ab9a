"""Credentials: a name and a role in a realm, with a password for the server and a key of its own.

``credential`` is one credential, ``identity`` the proof of its name in a header, ``store`` the
files of all credentials of a server, ``server_config`` the configuration of the server for them,
``key_ring`` keys and what they seal, ``sealed_secrets`` a realm's secrets, ``value_seal`` sensitive
values.
"""

from rookery.bus.credentials.credential import Credential, is_certified, read_credential
from rookery.bus.credentials.identity import IDENTITY, IdentityVerifier, identity_header
from rookery.bus.credentials.key_ring import KEY_BYTES, KeyRing
from rookery.bus.credentials.sealed_secrets import SealedSecrets, SealingKeys, SecretKey
from rookery.bus.credentials.server_config import ServerFormat
from rookery.bus.credentials.store import USERS_FILE, CredentialStore
from rookery.bus.credentials.value_seal import RingSeal

__all__ = [
    "IDENTITY",
    "KEY_BYTES",
    "USERS_FILE",
    "Credential",
    "CredentialStore",
    "IdentityVerifier",
    "KeyRing",
    "RingSeal",
    "SealedSecrets",
    "SealingKeys",
    "SecretKey",
    "ServerFormat",
    "identity_header",
    "is_certified",
    "read_credential",
]
