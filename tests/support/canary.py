"""A text that begins every secret of a test, and the search for it in places where no secret may appear."""

import base64
from pathlib import Path

__all__ = ["CANARY", "canary_in", "files_with_canary"]

CANARY = "C4naryOfTheTests"


def canary_in(data: bytes) -> bool:
    """Return whether the data holds the canary as it is, in UTF-16, or in base64, which has three ways to begin."""
    text = CANARY.encode()
    encoded = [base64.b64encode(b"\0" * shift + text)[4 if shift else 0 : -4] for shift in range(3)]
    return any(form in data for form in (text, CANARY.encode("utf-16-le"), *encoded))


def files_with_canary(directory: Path) -> list[str]:
    """Return the files below a directory that hold the canary in their bytes or their names."""
    return sorted(
        str(path.relative_to(directory))
        for path in directory.rglob("*")
        if CANARY in path.name or (path.is_file() and canary_in(path.read_bytes()))
    )
