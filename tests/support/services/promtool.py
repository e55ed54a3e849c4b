"""Prometheus' own checker, where it can be had: installed, or taken out of Debian's package of Prometheus."""

import shutil
import subprocess
from functools import cache
from pathlib import Path

from statelog.testing.broker import cache_directory

__all__ = ["promtool"]


@cache
def promtool() -> tuple[Path | None, str]:
    """The program, or why there is none here. The package is taken apart, not installed: it would start a server."""
    if found := shutil.which("promtool"):
        return Path(found), ""
    place = cache_directory() / "promtool"
    kept = place / "usr" / "bin" / "promtool"
    if not kept.exists():
        place.mkdir(parents=True, exist_ok=True)
        try:
            _run(place, "apt-get", "download", "prometheus")
            _run(place, "dpkg-deb", "--extract", str(next(place.glob("prometheus_*.deb"))), ".")
        except (OSError, subprocess.SubprocessError, StopIteration) as error:
            return None, f"it is not installed, and apt-get does not have it: {error}"
    return kept, ""


def _run(directory: Path, *command: str) -> None:
    subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=120)
