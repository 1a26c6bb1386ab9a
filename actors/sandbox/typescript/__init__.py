"""The TypeScript guest: translation to JavaScript, and the engine that runs it."""

from rookery.actors.sandbox.typescript.build import JavaScriptBuild
from rookery.actors.sandbox.typescript.guest import JavaScriptGuest

__all__ = [
    "JavaScriptBuild",
    "JavaScriptGuest",
]
