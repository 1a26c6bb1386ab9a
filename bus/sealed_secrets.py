"""The secrets of a realm, sealed: the keys, the store, and sensitive values of facts."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from Crypto.Cipher import AES

from rookery.bus.ports import Secrets
from rookery.bus.ports.storage import SecretEntry
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.protection.sealed_values import SealedValue

__all__ = [
    "ALGORITHM",
    "KEY_BYTES",
    "NONCE_BYTES",
    "KeyRing",
    "RingSeal",
    "SealedBytes",
    "SealedSecret",
    "SealedSecrets",
    "SealingKeys",
    "SecretKey",
]

# --- key ring -------------------------------------------------------------------------------------

# Keys for AES-256-GCM: the newest one seals, all of them open.
#
# As text a ring has one key a line, in hex, the newest last.


ALGORITHM: Final = "AES-256-GCM"
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
KEY_ID_DIGITS: Final = 16


class SealedBytes(NamedTuple):
    """Bytes under a key of a ring."""

    key_id: str
    nonce: bytes
    ciphertext: bytes
    """With the tag, which covers the place, too: the bytes are of no use in another place."""


class KeyRing:
    """At least one key; it never changes."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        last_first = {digest_bytes(key)[:KEY_ID_DIGITS]: key for key in reversed(keys)}
        self._keys = dict(reversed(last_first.items()))
        """A key that is repeated counts where it is last: the last line of a file seals."""

    @classmethod
    def parse(cls, text: str) -> KeyRing:
        """The ring of a text; ``ValueError`` if that is none."""
        keys = [bytes.fromhex(line) for line in text.split()]
        if not keys or any(len(key) != KEY_BYTES for key in keys):
            raise ValueError(f"its lines are not keys of {KEY_BYTES} bytes in hex")
        return cls(keys)

    @property
    def text(self) -> str:
        return "".join(f"{key.hex()}\n" for key in self._keys.values())

    @property
    def ids(self) -> tuple[str, ...]:
        """Each begins the SHA3-256 of its key; the newest is last."""
        return tuple(self._keys)

    @property
    def newest(self) -> str:
        return next(reversed(self._keys))

    def with_key(self, key: bytes) -> KeyRing:
        return KeyRing([*self._keys.values(), key])

    def newest_alone(self) -> KeyRing:
        return KeyRing([self._keys[self.newest]])

    def seal(self, value: bytes, nonce: bytes, *place: str) -> SealedBytes:
        cipher = _cipher(self._keys[self.newest], nonce, place)
        encrypted, tag = cipher.encrypt_and_digest(value)
        return SealedBytes(self.newest, nonce, encrypted + tag)

    def open(self, sealed: SealedBytes, *place: str) -> bytes:
        """``KeyError`` if the ring lacks the key, ``ValueError`` if the bytes were changed or
        belong to another place."""
        cipher = _cipher(self._keys[sealed.key_id], sealed.nonce, place)
        data = sealed.ciphertext
        opened: bytes = cipher.decrypt_and_verify(data[:-TAG_BYTES], data[-TAG_BYTES:])
        return opened


def _cipher(key: bytes, nonce: bytes, place: Sequence[str]) -> Any:
    cipher = AES.new(key, AES.MODE_GCM, nonce=nonce)
    cipher.update("\n".join(place).encode())
    return cipher


# --- value seal -----------------------------------------------------------------------------------

# Sealing of sensitive values, with keys that the realm's secrets hold.
#
# Facts never change, so these keys stay as long as the realm: what a rotation replaces is the key
# that seals them.


_VALUE_CONTEXT = "rookery.value.v1"


class RingSeal:
    """The port ``ValueSeal`` with the keys of a ring; used on any thread."""

    def __init__(self, ring: KeyRing, realm: str, entropy: Callable[[int], bytes]) -> None:
        self._ring, self._realm, self._entropy = ring, realm, entropy

    def seal(self, value: bytes, entity: str, field: str) -> SealedValue:
        """Seal canonical JSON for one field of one entity."""
        nonce = self._entropy(NONCE_BYTES)
        sealed = self._ring.seal(value, nonce, _VALUE_CONTEXT, self._realm, entity, field)
        return SealedValue(
            algorithm=ALGORITHM,
            key_id=sealed.key_id,
            nonce=nonce.hex(),
            ciphertext=b64encode(sealed.ciphertext).decode(),
            digest=digest_bytes(value),
        )

    def open(self, sealed: SealedValue, entity: str, field: str) -> bytes:
        """The JSON of a value that was sealed for this place."""
        if sealed.key_id not in self._ring.ids or sealed.algorithm != ALGORITHM:
            raise Refused(
                "SEALING_KEY_MISSING",
                f"the realm lacks key {sealed.key_id[:40]} of a hidden value",
                hint="it was sealed in another realm, or before the realm's secrets were lost",
            )
        try:
            data = SealedBytes(
                sealed.key_id, bytes.fromhex(sealed.nonce), b64decode(sealed.ciphertext)
            )
            return self._ring.open(data, _VALUE_CONTEXT, self._realm, entity, field)
        except ValueError:
            raise Failed(
                "SEALED_VALUE_CORRUPT", f"the hidden value {field} of {entity} was changed"
            ) from None


# --- sealed secrets -------------------------------------------------------------------------------

# The secrets of a realm, sealed: what the store has of them is of no use without the realm's key.
#
# An entry is one generation of one secret. Its seal covers realm, name and generation, so that an
# entry which was changed, moved or swapped is refused.


FIRST: Final = 1
_IN_CLEAR: Final = 0
"""The generation of an entry of an older version."""
_CONTEXT: Final = "rookery.secret.v1"


class SealingKeys(Protocol):
    """The realm's keys, from where the configuration says."""

    @property
    def ring(self) -> KeyRing:
        """The keys as read last."""

    @property
    def origin(self) -> str:
        """Where they come from."""

    async def refresh(self) -> KeyRing:
        """Read them again if they can have changed."""


class SealedSecret(msgspec.Struct, frozen=True, kw_only=True):
    """One generation of a secret, as the store has it."""

    algorithm: str
    key_id: str
    nonce: bytes
    ciphertext: bytes


class SecretKey(msgspec.Struct, frozen=True, kw_only=True):
    """One generation of a secret, and the key that seals it."""

    name: str
    generation: int
    key_id: str
    """Empty: an older version stored it in clear."""


class SealedSecrets:
    """The secrets of one realm under its keys."""

    def __init__(
        self, secrets: Secrets, realm: str, keys: SealingKeys, entropy: Callable[[int], bytes]
    ) -> None:
        self._secrets, self._realm = secrets, realm
        self._keys, self._entropy = keys, entropy

    async def get(self, name: str, generation: int = FIRST) -> bytes | None:
        """The value; ``None`` if there is none. ``SEALING_KEY_MISSING``, ``SECRET_CORRUPT``."""
        while (entry := await self._secrets.get(name, generation)) is not None:
            sealed = _decode(name, generation, entry)
            if sealed.key_id in self._keys.ring.ids or await self._has_key(sealed.key_id):
                return self._open(name, generation, sealed)
            again = await self._secrets.get(name, generation)
            if again is not None and again.revision == entry.revision:
                raise self._missing(name, sealed.key_id)
            # A rotation sealed it again, and removed the older key, in between.
        return None

    async def put(self, name: str, generation: int, value: bytes) -> bool:
        """Store a new generation; ``False`` if it exists."""
        _check_generation(generation)
        sealed = self._seal(name, generation, value)
        if not await self._secrets.put(name, generation, msgspec.json.encode(sealed)):
            return False
        # A rotation may have read the entries before this one arrived.
        if (await self._keys.refresh()).newest != sealed.key_id:
            await self._reseal(name, generation, value)
        return True

    async def newest(self, name: str) -> tuple[int, bytes] | None:
        """The newest generation with its value; ``None`` if there is none."""
        while generations := await self._secrets.generations(name):
            value = await self.get(name, generations[-1])
            if value is not None:
                return generations[-1], value
            # It was deleted in between; a newer one may have replaced it.
        return None

    async def replace(self, name: str, value: bytes) -> int:
        """Store ``value`` as the newest generation, and delete the others then; its number."""
        while True:
            former = await self._secrets.generations(name)
            generation = former[-1] + 1 if former else FIRST
            if await self.put(name, generation, value):
                break
        for number in former:
            await self._secrets.delete(name, number)
        return generation

    async def remove(self, name: str) -> bool:
        """Delete every generation; ``False`` if there is none."""
        found = await self._secrets.generations(name)
        for number in found:
            await self._secrets.delete(name, number)
        return bool(found)

    async def get_or_create(self, name: str, proposed: bytes) -> bytes:
        """The secret that the realm's nodes share, in its first generation: the stored one, else
        the one that an older version stored in clear, else ``proposed``. The clear one is deleted
        once the sealed one is durable."""
        while (value := await self.get(name)) is None:
            clear = await self._secrets.get(name, _IN_CLEAR)
            await self.put(name, FIRST, proposed if clear is None else clear.body)
        await self._secrets.delete(name, _IN_CLEAR)
        return value

    async def delete(self, name: str, generation: int) -> None:
        _check_generation(generation)
        await self._secrets.delete(name, generation)

    async def require_keys(self) -> None:
        """``SEALING_KEY_MISSING`` if an entry needs a key that is not at hand."""
        for one in await self.list():
            if one.key_id and one.key_id not in self._keys.ring.ids:
                raise self._missing(one.name, one.key_id)

    async def list(self) -> list[SecretKey]:
        """All entries by name and generation."""
        return [
            SecretKey(name=name, generation=generation, key_id=sealed.key_id if sealed else "")
            async for name, generation, sealed in self._entries()
        ]

    async def reseal(self) -> int:
        """Seal every entry with the newest key; how many were not. Entries that nodes add
        meanwhile are sealed with it, too: see ``put``."""
        resealed = 0
        async for name, generation, sealed in self._entries():
            if sealed is not None and sealed.key_id != self._keys.ring.newest:
                value = await self.get(name, generation)
                if value is not None:
                    await self._reseal(name, generation, value)
                    resealed += 1
        return resealed

    async def _entries(self) -> AsyncIterator[tuple[str, int, SealedSecret | None]]:
        for name, generation in await self._secrets.list():
            entry = await self._secrets.get(name, generation)
            if entry is not None:
                is_clear = generation == _IN_CLEAR
                yield name, generation, None if is_clear else _decode(name, generation, entry)

    async def _reseal(self, name: str, generation: int, value: bytes) -> None:
        """Seal an entry, whose value never changes, with the newest key."""
        while (entry := await self._secrets.get(name, generation)) is not None:
            sealed = self._seal(name, generation, value)
            if _decode(name, generation, entry).key_id == sealed.key_id:
                return
            body = msgspec.json.encode(sealed)
            if await self._secrets.put(name, generation, body, after=entry.revision):
                return

    def _seal(self, name: str, generation: int, value: bytes) -> SealedSecret:
        nonce = self._entropy(NONCE_BYTES)
        sealed = self._keys.ring.seal(value, nonce, *self._bound_to(name, generation))
        return SealedSecret(
            algorithm=ALGORITHM,
            key_id=sealed.key_id,
            nonce=sealed.nonce,
            ciphertext=sealed.ciphertext,
        )

    def _open(self, name: str, generation: int, sealed: SealedSecret) -> bytes:
        data = SealedBytes(sealed.key_id, sealed.nonce, sealed.ciphertext)
        try:
            return self._keys.ring.open(data, *self._bound_to(name, generation))
        except ValueError:
            raise _corrupt(name, generation) from None

    def _bound_to(self, name: str, generation: int) -> tuple[str, ...]:
        return _CONTEXT, self._realm, name, str(generation)

    async def _has_key(self, key_id: str) -> bool:
        return key_id in (await self._keys.refresh()).ids

    def _missing(self, name: str, key_id: str) -> Refused:
        return Refused(
            "SEALING_KEY_MISSING",
            f"the secret {name} is sealed with key {key_id[:40]}, which is not in "
            f"{self._keys.origin}",
            hint="use the key of the realm's other nodes, or its copy: node.sealing_key",
        )


def _decode(name: str, generation: int, entry: SecretEntry) -> SealedSecret:
    try:
        sealed = msgspec.json.decode(entry.body, type=SealedSecret)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise _corrupt(name, generation) from None
    if sealed.algorithm != ALGORITHM:
        raise _corrupt(name, generation)
    return sealed


def _corrupt(name: str, generation: int) -> Failed:
    return Failed(
        "SECRET_CORRUPT",
        f"generation {generation} of the secret {name} was changed, or moved from another place",
        hint="restore the realm's secrets from a backup",
    )


def _check_generation(generation: int) -> None:
    if generation < FIRST:
        raise Refused("INVALID_ARGUMENT", f"a secret has no generation {generation}")
