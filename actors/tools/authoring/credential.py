"""The credential that a function gets for one call.

No program sees it, and no fact, log or error has it: what the function returns or raises is
scrubbed of it. A function that prints it, or sends it elsewhere, gives it away.
"""

from __future__ import annotations

from rookery.actors.protection.scrubber import Scrubber, scrubber_of

__all__ = ["ToolCredential"]


class ToolCredential:
    """A fresh credential of the tool's binding."""

    def __init__(self, value: str, scheme: str = "Bearer", generation: int = 0) -> None:
        self.value, self.scheme, self.generation = value, scheme, generation
        self.is_rejected = False
        """Whether the function has called ``reject``."""

    def header(self, name: str = "Authorization") -> dict[str, str]:
        """For a request: in ``Authorization`` it is preceded by its scheme."""
        is_plain = name.lower() != "authorization" or not self.scheme
        return {name: self.value if is_plain else f"{self.scheme} {self.value}"}

    def query(self, name: str) -> dict[str, str]:
        """For a URL, as a parameter."""
        return {name: self.value}

    def environment(self, name: str) -> dict[str, str]:
        """For a child process, beside the variables it needs; children inherit nothing of it."""
        return {name: self.value}

    def reject(self) -> None:
        """Report that the service refused it, as with status 401: the call fails, whatever the
        function returns, and the credential is refreshed although its time is not over."""
        self.is_rejected = True

    @property
    def scrubber(self) -> Scrubber:
        return scrubber_of(self.value)

    def __repr__(self) -> str:
        return "<ToolCredential>"

    __str__ = __repr__
