"""The guests of a sandbox: its own builds, and others as long as sessions are on them.

New sessions are given an own build. What was made with another one goes on with that: it is loaded
when it is first wanted, and let go when no run was on it for a while, or when too many others are
wanted at once. Whoever stands on it rests then, as an image. Where a build comes from, and whether
it works here, is ``opening``'s to say.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from rookery.actors.sandbox.contract import Guest, Instance
from rookery.actors.sandbox.runtime.instance_pool import InstancePool
from rookery.schemas.errors import Refused
from rookery.schemas.run import Language

__all__ = ["OTHERS_MAX", "UNUSED_S", "GuestRegistry", "LoadGuest", "no_other_builds"]

OTHERS_MAX: Final = 2
"""In memory at once; each takes some 50 MB and 0.2 s to load once it is native code."""
UNUSED_S: Final = 60.0
_READY_COUNT: Final = 1
"""Instances that wait for a run, of a build no new session is given."""

Submit = Callable[[Callable[[], None]], None]
LoadGuest = Callable[[Language, str], Guest]
"""The guest of a build; ``SNAPSHOT_FOREIGN_BUILD`` if it is nowhere to be had."""


def no_other_builds(language: Language, build: str) -> Guest:
    """Load builds where nobody has any."""
    raise Refused(
        "SNAPSHOT_FOREIGN_BUILD",
        f"the session began with the {language} guest {build[:16]}, which is nowhere to be had",
        hint=f"bring a node back to this realm that has the guest build {build}",
    )


class GuestRegistry:
    """Called on any thread. Loading may take long, and others are loaded one after the other."""

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
        """``rest``: whatever session stands on this build is to give its instance away."""
        self._own = {guest.language: InstancePool(guest, ready, submit) for guest in guests}
        self._submit, self._load, self._suspend_build, self._unused_s = submit, load, rest, unused_s
        self._others: OrderedDict[str, InstancePool] = OrderedDict()
        """The one used last at the end."""
        self._recently_used: set[str] = set()
        """Those used since the timer went off last."""
        self._lock, self._loading = threading.Lock(), threading.Lock()
        self._timer: threading.Timer | None = None
        self._closed = False
        self._own[guests[0].language].fill()

    @property
    def own(self) -> dict[Language, str]:
        """What new sessions are given."""
        return {language: shelf.guest.build for language, shelf in self._own.items()}

    def pool(self, language: Language, build: str = "") -> InstancePool:
        """Instances of a build, or of the own one, and somebody is about to use them."""
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
        """What images of the build are told from."""
        return self.pool(language, build).guest.start

    def require(self, language: Language, build: str, start: int) -> None:
        """``Refused`` unless the build is to be had, and its instances begin as they did where
        ``start`` was noted."""
        if start and self.start(language, build) != start:
            raise Refused(
                "SNAPSHOT_FOREIGN_BUILD",
                f"instances of the {language} guest {build[:16]} begin otherwise here",
                hint="go on with it on a node of the version that took the snapshot",
            )
        self.pool(language, build)

    def instance(self, language: Language, build: str) -> Instance:
        """An instance for a session that is on this build."""
        return self.pool(language, build).acquire()

    def mark_used(self, language: Language, build: str) -> None:
        """A run was on this build: make up for the instance that it may have taken."""
        own = self._own.get(language)
        shelf = own if own is not None and own.guest.build == build else self._find_used(build)
        if shelf is not None:
            shelf.fill()
        else:  # It was let go while the run was under way.
            self._suspend_build(build)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            shelves = [*self._own.values(), *self._others.values()]
            self._others.clear()
            if self._timer is not None:
                self._timer.cancel()
        for shelf in shelves:
            shelf.close()

    def _find_used(self, build: str) -> InstancePool | None:
        with self._lock:
            if (found := self._others.get(build)) is not None:
                self._others.move_to_end(build)
                self._recently_used.add(build)
            return found

    def _add_pool(self, shelf: InstancePool) -> InstancePool:
        with self._lock:
            self._others[shelf.guest.build] = shelf
            self._recently_used.add(shelf.guest.build)
            crowded = list(self._others)[:-OTHERS_MAX]
            self._start_timer()
        for build in crowded:
            self._release(build)
        return shelf

    def _start_timer(self) -> None:
        """There is a timer exactly while there are others."""
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
