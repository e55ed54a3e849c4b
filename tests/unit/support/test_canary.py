"""The search for canaries, which would pass every test of secrets if it found nothing."""

import base64
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.canary import CANARY, canary_in, files_with_canary


@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("encode", [bytes, base64.b64encode, base64.urlsafe_b64encode, pickle.dumps])
def test_a_canary_is_seen_wherever_it_stands(before: int, encode: Callable[[bytes], bytes]) -> None:
    """A canary is found as it is, in a pickle, and in base64 behind any number of bytes."""
    assert canary_in(encode(b"x" * before + CANARY.encode() + b"store"))


def test_files_are_named(tmp_path: Path) -> None:
    """Files are found by their contents and their names, at any depth, and others are not."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "held").write_text(f"password={CANARY}\n")
    (tmp_path / "a" / "utf16").write_bytes(CANARY.encode("utf-16-le"))
    (tmp_path / f"{CANARY}.txt").touch()
    (tmp_path / "innocent").write_text("password=***\n")
    assert files_with_canary(tmp_path) == [f"{CANARY}.txt", "a/b/held", "a/utf16"]
