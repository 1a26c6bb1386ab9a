"""The realm's catalogue of surfaces: its entries, and how it changes.

A change is decided on what its sender read. Names of tools are checked against that, so a catalogue
that changed meanwhile refuses the change, and the sender begins again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from immutables import Map
from msgspec import UNSET
from msgspec.structs import replace

from rookery.schemas.calls import OfferedSurface
from rookery.schemas.errors import Failed
from rookery.schemas.facts import surface as facts
from rookery.schemas.surfaces import LOCAL, SurfaceSource

__all__ = [
    "Catalogue",
    "CatalogueEntry",
    "ReadCatalogue",
    "RecordCatalogue",
    "change_catalogue",
    "evolve_catalogue",
]


class CatalogueEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One surface of a catalogue."""

    surface: str
    source: SurfaceSource
    tools: str
    """Digest of the JSON list of ``SurfaceTool``."""
    sequence: int = 0
    """Number of the change that added or reloaded it, or listed its tools anew."""
    connection: int = 0
    """Number of the last of these that calls for a new connection."""
    only: str = ""
    """The session that alone sees it; empty: all sessions do."""

    @property
    def offered(self) -> OfferedSurface:
        return OfferedSurface(
            surface=self.surface,
            tools=self.tools,
            sequence=self.sequence,
            only=self.only,
            kind=self.source.kind.value,
        )


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """The surfaces of a realm."""

    entries: Map[str, CatalogueEntry] = Map()
    sequence: int = 0
    """Number of the last change."""
    listing: str = ""
    """Digest of the list of all entries; empty before the first change."""
    local_sequence: int = 0
    """Number of the last change that removed or returned the surface ``local``: the functions in
    the processes of the nodes. A catalogue begins with it; it is no entry, because each node has
    other functions."""
    without_local: bool = False

    def has(self, surface: str) -> bool:
        """Whether the realm has the surface."""
        return not self.without_local if surface == LOCAL else surface in self.entries

    @property
    def offered(self) -> tuple[OfferedSurface, ...]:
        """All entries, by name."""
        return tuple(self.entries[name].offered for name in sorted(self.entries))

    def offered_to(self, session: str) -> tuple[OfferedSurface, ...]:
        """The entries that a session sees."""
        return tuple(entry for entry in self.offered if entry.only in ("", session))


class ReadCatalogue(msgspec.Struct, frozen=True):
    """A query: the catalogue as it is recorded."""


class RecordCatalogue(msgspec.Struct, frozen=True, kw_only=True):
    """Record a change whose tools have been listed and stored."""

    after: int
    """The last change that the sender knew."""
    entries: tuple[CatalogueEntry, ...] = ()
    """Added or reloaded."""
    dropped: tuple[str, ...] = ()
    reloaded: tuple[str, ...] = ()
    """The surfaces of ``entries`` whose reload an operator requested."""
    listing: str
    """Digest of the list of all entries after the change."""
    actor: str = ""


def change_catalogue(
    catalogue: Catalogue, change: RecordCatalogue
) -> Sequence[facts.CatalogueFact]:
    """The facts of a change, which share its number."""
    if catalogue.sequence != change.after:
        raise Failed(
            "CONFLICT",
            f"the catalogue is at change {catalogue.sequence}, this one follows {change.after}",
        )
    return tuple(_changes(catalogue, change))


def _changes(catalogue: Catalogue, change: RecordCatalogue) -> Iterator[facts.CatalogueFact]:
    sequence = change.after + 1
    for name in change.dropped:
        if catalogue.has(name):
            yield facts.Dropped(
                surface_id=name, sequence=sequence, listing=change.listing, actor=change.actor
            )
    for entry in change.entries:
        yield facts.Catalogued(
            surface_id=entry.surface,
            sequence=sequence,
            listing=change.listing,
            actor=change.actor,
            origin=entry.source,
            tools=entry.tools,
            reload=entry.surface in change.reloaded or UNSET,
            only=entry.only or UNSET,
        )


def evolve_catalogue(catalogue: Catalogue, fact: facts.CatalogueFact) -> Catalogue:
    """Fold one fact."""
    name, entries = fact.surface_id, catalogue.entries
    if name == LOCAL:
        catalogue = replace(
            catalogue,
            local_sequence=fact.sequence,
            without_local=isinstance(fact, facts.Dropped),
        )
    elif isinstance(fact, facts.Catalogued):
        known = entries.get(name)
        keeps = known is not None and known.source == fact.origin and fact.reload is UNSET
        entry = CatalogueEntry(
            surface=name,
            source=fact.origin,
            tools=fact.tools,
            sequence=fact.sequence,
            connection=known.connection if known and keeps else fact.sequence,
            only=fact.only or "",
        )
        entries = entries.set(name, entry)
    elif name in entries:
        entries = entries.delete(name)
    return replace(catalogue, entries=entries, sequence=fact.sequence, listing=fact.listing)
