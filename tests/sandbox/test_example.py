"""The example in the package's docstring runs, and says what it says it says."""

from __future__ import annotations

import textwrap

import pytest

import rookery.actors.sandbox as package


@pytest.mark.starts_something
def test_the_example_of_the_package_runs(capsys: pytest.CaptureFixture[str]):
    assert package.__doc__ is not None
    _, _, rest = package.__doc__.partition("::\n")
    example, _, promise = rest.partition("\nprints ")
    exec(textwrap.dedent(example), {})
    assert capsys.readouterr().out.strip() == promise.split(".")[0]
    assert len(example.strip().splitlines()) <= 11
