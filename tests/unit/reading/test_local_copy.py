"""A local copy by itself, and the setting of its directory."""

from pathlib import Path
from typing import Any

import pytest

from statelog.errors import ConfigError
from statelog.producer.settings import WriterSettings
from statelog.reading.local_copy import LocalCopy
from statelog.recovery.settings import RecoverySettings


def test_a_partial_copy_that_vanished_is_not_begun_anew(tmp_path: Path) -> None:
    """Changes do not recreate an incomplete copy that another incarnation removed, since its beginning is missing."""
    copy = LocalCopy(tmp_path, 1)
    copy.add(0, b"first")
    copy.pause()
    next(tmp_path.iterdir()).unlink()
    copy.add(0, b"second")
    copy.complete({0: [1, 2]})

    assert isinstance(copy.error, FileNotFoundError)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_is_a_path(tmp_path: Path) -> None:
    """A text in place of a path is refused before anything is opened, by the writer's and the recovery's settings."""
    text: Any = str(tmp_path)
    for settings in (WriterSettings, RecoverySettings):
        with pytest.raises(ConfigError, match="local_copies"):
            settings(local_copies=text)
