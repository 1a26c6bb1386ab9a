"""The guests of a sandbox: its own builds, and other builds while sessions use them.

A new session begins with an own build. A session of another build continues with that build: the
registry loads it at first use and releases it when it was unused for a while, or when too many
other builds are loaded. The sessions of a released build are suspended.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from rookery.actors.sandbox.contract import Guest, Instance, InstanceSource
from rookery.actors.sandbox.runtime.image_guest import InstancePool
from rookery.schemas.errors import Refused
from rookery.schemas.run import Language

__all__ = ["OTHERS_MAX", "UNUSED_S", "GuestRegistry", "LoadGuest", "no_other_builds"]

OTHERS_MAX: Final = 2
"""Other builds in memory at once; each takes some 50 MB, and 0.2 s to load as native code."""
UNUSED_S: Final = 60.0
_READY_COUNT: Final = 1
"""Instances of another build that are made in advance."""

Submit = Callable[[Callable[[], None]], None]
LoadGuest = Callable[[Language, str], Guest]
"""Loads the guest of a build; raises ``SNAPSHOT_FOREIGN_BUILD`` if the build is missing."""


def no_other_builds(language: Language, build: str) -> Guest:
    """The ``LoadGuest`` of a sandbox without other builds."""
    raise Refused(
        "SNAPSHOT_FOREIGN_BUILD",
        f"the session began with the {language} guest {build[:16]}, which was not found",
        hint=f"bring a node back to this realm that has the guest build {build}",
    )


class GuestRegistry:
    """Owns the instance pools of all builds. Thread-safe; loads one other build at a time."""

    def __init__(
        self,
        guests: Sequence[Guest],
        ready: int,
        submit: Submit,
        load: LoadGuest,
        *,
        rest: Callable[[str], None],
        unused_s: float,
    ) -> None:
        """``rest`` suspends all sessions of a build."""
        self._own = {guest.language: InstancePool(guest, ready, submit) for guest in guests}
        self._submit, self._load, self._suspend_build, self._unused_s = submit, load, rest, unused_s
        self._others: OrderedDict[str, InstancePool] = OrderedDict()
        """In the order of use."""
        self._recently_used: set[str] = set()
        """Builds that were used since the timer fired last."""
        self._lock, self._loading = threading.Lock(), threading.Lock()
        self._timer: threading.Timer | None = None
        self._closed = False
        self._own[guests[0].language].fill()

    @property
    def own(self) -> dict[Language, str]:
        """The builds that new sessions begin with."""
        return {language: pool.guest.build for language, pool in self._own.items()}

    def pool(self, language: Language, build: str = "") -> InstancePool:
        """The instance pool of a build, by default of the own one. Counts as a use of the build."""
        own = self._own.get(language)
        if own is not None and build in ("", own.guest.build):
            return own
        if not build:
            raise Refused("UNSUPPORTED_FEATURE", f"there is no {language} guest here")
        if (found := self._find_used(build)) is not None:
            return found
        with self._loading:
            if (found := self._find_used(build)) is not None:
                return found
            return self._add_pool(
                InstancePool(self._load(language, build), _READY_COUNT, self._submit)
            )

    def start(self, language: Language, build: str) -> int:
        """The checksum of a new instance's memory, which images of the build are relative to."""
        return self.pool(language, build).guest.start

    def require(self, language: Language, build: str, start: int) -> None:
        """Raise ``Refused`` unless the build can be loaded and its new instances have the checksum
        ``start``."""
        if start and self.start(language, build) != start:
            raise Refused(
                "SNAPSHOT_FOREIGN_BUILD",
                f"instances of the {language} guest {build[:16]} begin with other memory here",
                hint="restore it on a node of the version that took the snapshot",
            )
        self.pool(language, build)

    def source(self, language: Language, build: str) -> InstanceSource:
        """The instances of a session of this build."""
        return InstanceSource(
            lambda: self.pool(language, build).acquire(),
            lambda: self.pool(language, build).is_ready,
            lambda instance: self._release_instance(language, build, instance),
        )

    def mark_used(self, language: Language, build: str) -> None:
        """Refill the pool after a run, which may have taken an instance."""
        own = self._own.get(language)
        pool = own if own is not None and own.guest.build == build else self._find_used(build)
        if pool is not None:
            pool.fill()
        else:  # The build was released during the run.
            self._suspend_build(build)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            pools = [*self._own.values(), *self._others.values()]
            self._others.clear()
            if self._timer is not None:
                self._timer.cancel()
        for pool in pools:
            pool.close()

    def _release_instance(self, language: Language, build: str, instance: Instance) -> None:
        own, other = self._own.get(language), self._others.get(build)
        pool = own if own is not None and own.guest.build == build else other
        if pool is None:  # The build was released.
            instance.close()
        else:
            pool.release(instance)

    def _find_used(self, build: str) -> InstancePool | None:
        with self._lock:
            if (found := self._others.get(build)) is not None:
                self._others.move_to_end(build)
                self._recently_used.add(build)
            return found

    def _add_pool(self, pool: InstancePool) -> InstancePool:
        with self._lock:
            self._others[pool.guest.build] = pool
            self._recently_used.add(pool.guest.build)
            crowded = list(self._others)[:-OTHERS_MAX]
            self._start_timer()
        for build in crowded:
            self._release(build)
        return pool

    def _start_timer(self) -> None:
        """Start the timer if other builds are loaded."""
        if self._timer is None and self._others and not self._closed:
            self._timer = threading.Timer(self._unused_s, self._release_unused)
            self._timer.daemon = True
            self._timer.start()

    def _release_unused(self) -> None:
        with self._lock:
            unused = [build for build in self._others if build not in self._recently_used]
            self._recently_used.clear()
        for build in unused:
            self._release(build)
        with self._lock:
            self._timer = None
            self._start_timer()

    def _release(self, build: str) -> None:
        with self._lock:
            found = self._others.pop(build, None)
        if found is not None:
            found.close()
            self._suspend_build(build)
