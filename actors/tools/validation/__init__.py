"""Validation of arguments and results against the JSON Schemas of tools.

``schema_validator`` says in plain words how a value fails to match; ``schema_acceptor`` is a quick
test before it, of the keywords that most schemas have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.tools.validation.schema_validator import (
        SchemaMismatch,
        SchemaValidator,
        validator_of,
    )

__all__ = ["SchemaMismatch", "SchemaValidator", "validator_of"]

__getattr__ = lazy_names(
    __name__, {"schema_validator": ("SchemaMismatch", "SchemaValidator", "validator_of")}
)
