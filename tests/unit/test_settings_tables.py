"""Settings are explained in one way: a table in the docstring, with a row for every field."""

import dataclasses
import inspect
import re
from importlib import import_module
from typing import Any

import pytest

from tests.support.rooms import ROOMS


def _settings() -> list[type[Any]]:
    exported = (getattr(import_module(f"statelog.{room}"), name) for room in ROOMS for name in _names(room))
    found = [kind for kind in exported if re.search("(Settings|Policy)$", getattr(kind, "__name__", ""))]
    return [kind for kind in found if "__dataclass_fields__" in vars(kind)]


def _names(room: str) -> list[str]:
    names: list[str] = import_module(f"statelog.{room}").__all__
    return names


@pytest.mark.parametrize("kind", _settings(), ids=lambda kind: str(kind.__name__))
def test_every_setting_has_its_row(kind: type[Any]) -> None:
    """The table has the fields in order, the name first, then its meaning."""
    rows = re.findall(r"^(\w+) {2,}\S", inspect.getdoc(kind) or "", re.MULTILINE)
    assert rows == [one.name for one in dataclasses.fields(kind) if not one.name.startswith("_")]


def test_the_settings_are_found() -> None:
    """The settings of all rooms that have any are found."""
    names = {kind.__name__ for kind in _settings()}
    assert names >= {"CacheSettings", "MaterializerSettings", "RecoverySettings", "RetentionPolicy", "WriterSettings"}
