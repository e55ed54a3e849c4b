"""The broker's released jars: fetched once, checked at every start.

`jars.sha256` pins each jar by its coordinates, `group:artifact:version`, and its SHA-256. The package jgo fetches them;
which server they come from is its business and never named here. Invariant: a directory that `ensure_jars` returns
holds exactly the pinned jars, byte for byte; it appears by one rename, so no process ever sees half of it.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from importlib import resources, util
from pathlib import Path

from statelog.errors import ConfigError, Corrupt, Unavailable

__all__ = ["KAFKA_VERSION", "check_jars", "clean_abandoned", "ensure_jars", "fetch_jar", "fetch_jars", "parse_pins"]

KAFKA_VERSION = "4.3.1"
_PINS = "jars.sha256"
_STALL_TIMEOUT_S = 60
_TELL_BYTES = 10_000_000

Fetch = Callable[[str, Path], Path]
"""Fetches the jar of these coordinates into a directory, and returns where it is there. Raises Unavailable."""


def ensure_jars(directory: Path, *, on_fetched: Callable[[int], None] = lambda _: None) -> Path:
    """The directory below `directory` that holds the jars, fetched if it is not there yet.

    `on_fetched` is called with the bytes so far, every 10 MB or so. The caller holds a lock on `directory`.
    Raises ConfigError without jgo, Unavailable if the jars cannot be had, Corrupt if they are not the pinned ones.
    """
    jars = directory / f"kafka-{KAFKA_VERSION}"
    pins = parse_pins(resources.files("statelog.cli.devbroker").joinpath(_PINS).read_text(encoding="ascii"))
    if not jars.is_dir():
        fetch_jars(jars, pins, on_fetched=on_fetched)
    check_jars(jars, pins)
    return jars


def parse_pins(text: str) -> dict[str, str]:
    """SHA-256 in hexadecimal by the jar's coordinates, from one `checksum  group:artifact:version` a line."""
    pairs = (line.split() for line in text.splitlines() if line)
    return {coordinates: checksum for checksum, coordinates in pairs}


def check_jars(jars: Path, pins: Mapping[str, str]) -> None:
    """Raise Corrupt unless `jars` holds exactly the jars of `pins`, with these checksums."""
    pinned = {_name(coordinates): checksum for coordinates, checksum in pins.items()}
    present = {path.name for path in jars.iterdir()}
    missing, extra = sorted(pinned.keys() - present), sorted(present - pinned.keys())
    changed = [name for name in sorted(pinned.keys() & present) if _sha256(jars / name) != pinned[name]]
    if missing or extra or changed:
        raise Corrupt(
            "the broker's jars are not the released ones",
            hint=f"Remove {jars} and start again; if this repeats, the mirror does not serve the released jars",
            directory=str(jars),
            missing=" ".join(missing),
            extra=" ".join(extra),
            changed=" ".join(changed),
        )


def _name(coordinates: str) -> str:
    _, artifact, version = coordinates.split(":")
    return f"{artifact}-{version}.jar"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch_jar(coordinates: str, directory: Path) -> Path:
    """Fetch one jar, asking no cache of the user's, which may be another one's. Raises ConfigError, Unavailable."""
    if util.find_spec("jgo") is None:
        raise ConfigError(
            "jgo, which fetches the broker, is not installed",
            hint="Install the extra: pip install 'statelog[dev]'. Or use a broker of your own",
        )
    from jgo.config import GlobalSettings
    from jgo.maven import MavenContext

    group, artifact, version = coordinates.split(":")
    try:
        servers = GlobalSettings.load().repositories or None  # A mirror, if the user's own settings of jgo name one.
        context = MavenContext(repo_cache=directory, remote_repos=servers, timeout=_STALL_TIMEOUT_S)
        return context.project(group, artifact).at_version(version).artifact().resolve()
    except (OSError, RuntimeError) as error:
        raise Unavailable(
            "the broker's jars could not be fetched",
            hint="Check the network, and start again: nothing half-done is left behind",
            reason=str(error),
            jar=coordinates,
        ) from error


def fetch_jars(
    jars: Path,
    pins: Mapping[str, str],
    *,
    on_fetched: Callable[[int], None] = lambda _: None,
    fetch: Fetch = fetch_jar,
) -> None:
    """Fetch the pinned jars into a directory of its own, check them, then rename it to `jars`.

    The caller holds a lock on the directory above. Raises as `ensure_jars`.
    """
    jars.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=jars.parent) as made:
        staging = Path(made, "jars")
        staging.mkdir()
        size_bytes = told_bytes = 0
        for coordinates in pins:
            jar = fetch(coordinates, Path(made, "cache")).rename(staging / _name(coordinates))
            size_bytes += jar.stat().st_size
            if size_bytes - told_bytes >= _TELL_BYTES:
                on_fetched(told_bytes := size_bytes)
        check_jars(staging, pins)
        staging.rename(jars)


def clean_abandoned(directory: Path) -> None:
    """Remove what killed fetches left in `directory`. The caller holds the lock, so no fetch is under way."""
    for left in directory.glob("fetch-*/"):
        shutil.rmtree(left)
