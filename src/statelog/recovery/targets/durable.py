"""Makes local files and directories durable: their content, and their name in the directory above.

Raises OSError; who calls says what that means.
"""

import os
from pathlib import Path

__all__ = ["make_parents", "sync"]


def sync(path: Path) -> None:
    """Sync a file, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_parents(path: Path) -> None:
    """Make the directories above a path that are missing."""
    missing = [parent for parent in path.parents if not parent.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync(made.parent)
