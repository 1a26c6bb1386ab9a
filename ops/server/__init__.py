"""The server that a configuration means: how to reach it, and how to keep it running."""

from rookery.ops.server.realm_server import (
    RealmServer,
    ServerSupervisor,
    client_of,
    embedded_server,
    find_server,
    local_credential,
    no_server_error,
    sealing_key_path,
    server_of,
    store_of,
)

__all__ = [
    "RealmServer",
    "ServerSupervisor",
    "client_of",
    "embedded_server",
    "find_server",
    "local_credential",
    "no_server_error",
    "sealing_key_path",
    "server_of",
    "store_of",
]
