"""The server that a client means: by its arguments, by the environment, or the embedded one."""

from __future__ import annotations

import os

import msgspec

from rookery.bus.credentials import Credential
from rookery.bus.roles import Role
from rookery.bus.server.store import Store
from rookery.bus.server_access import NO_ACCESS, ServerAccess, access_from_environment
from rookery.schemas.errors import Failed

__all__ = ["find_server_and_access"]


def find_server_and_access(
    url: str | None,
    token: str | None,
    access: ServerAccess | None,
    credential: Credential | None,
    realm: str,
) -> tuple[str, ServerAccess, Credential | None]:
    """The URL, or ``NATS_URL``, or that of the server on ``ROOKERY_STORE`` or the default store.

    Without ``access``, ``token`` and ``credential`` the credentials and certificates are those of
    the environment; an embedded server's are the realm's credential of a client.
    """
    named = url or os.environ.get("NATS_URL")
    if named is None:
        store = Store.at(os.environ.get("ROOKERY_STORE"))
        running = store.find_running()
        if running is None:
            raise Failed(
                "SERVER_UNREACHABLE",
                f"no url, no NATS_URL, and no server is running on {store.path}",
                hint="start one: rookery up",
            )
        credential = credential or store.credential(realm, Role.CLIENT)
        return running.address, credential.access(), credential
    if access is None:
        access = NO_ACCESS if token else access_from_environment(os.environ)
    if credential is not None:
        return named, credential.access(access), credential
    return named, msgspec.structs.replace(access, token=token) if token else access, None
