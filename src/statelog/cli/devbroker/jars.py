"""The broker's released jars: fetched once, checked at every start.

Apache Ivy, which comes with pyspark, resolves them; which server they come from is Ivy's business and never named
here. `jars.sha256` pins the name and the SHA-256 of every jar. Invariant: a directory that `ensure_jars` returns holds
exactly the pinned jars, byte for byte; it appears by one rename, so no process ever sees half of it.
"""

import hashlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import resources, util
from pathlib import Path

from statelog.errors import ConfigError, Corrupt, Unavailable

__all__ = ["KAFKA_VERSION", "check_jars", "clean_abandoned", "ensure_jars", "fetch_jars", "parse_pins", "pinned_jars"]

KAFKA_VERSION = "4.3.1"
_PINS = "jars.sha256"
_TELL_S = 5.0
_MODULE = f"""<ivy-module version="2.0">
  <info organisation="statelog" module="dev-broker"/>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{KAFKA_VERSION}" conf="*->default"/>
    <dependency org="org.slf4j" name="slf4j-simple" rev="1.7.36" conf="*->default"/>
  </dependencies>
</ivy-module>
"""


def ensure_jars(
    directory: Path, java: Path, *, fetch_timeout_s: float = 600.0, on_fetched: Callable[[int], None] = lambda _: None
) -> Path:
    """The directory below `directory` that holds the jars, fetched if it is not there yet.

    `on_fetched` is called every few seconds with the bytes so far. The caller holds a lock on `directory`.
    Raises ConfigError without pyspark, Unavailable if the jars cannot be had, Corrupt if they are not the pinned ones.
    """
    jars = directory / f"kafka-{KAFKA_VERSION}"
    if not jars.is_dir():
        fetch_jars(jars, java, _MODULE, pinned_jars(), timeout_s=fetch_timeout_s, on_fetched=on_fetched)
    check_jars(jars, pinned_jars())
    return jars


def pinned_jars() -> dict[str, str]:
    """SHA-256 in hexadecimal by the name of the jar."""
    return parse_pins(resources.files("statelog.cli.devbroker").joinpath(_PINS).read_text(encoding="ascii"))


def parse_pins(text: str) -> dict[str, str]:
    """Read the form that `sha256sum` writes: one `checksum  name` a line."""
    pairs = (line.split() for line in text.splitlines() if line)
    return {name: checksum for checksum, name in pairs}


def check_jars(jars: Path, pins: Mapping[str, str]) -> None:
    """Raise Corrupt unless `jars` holds exactly the files of `pins`, with these checksums."""
    present = {path.name for path in jars.iterdir()}
    missing, extra = sorted(pins.keys() - present), sorted(present - pins.keys())
    changed = [name for name in sorted(pins.keys() & present) if _sha256(jars / name) != pins[name]]
    if missing or extra or changed:
        raise Corrupt(
            "the broker's jars are not the released ones",
            hint=f"Remove {jars} and start again; if this repeats, the mirror does not serve the released jars",
            directory=str(jars),
            missing=" ".join(missing),
            extra=" ".join(extra),
            changed=" ".join(changed),
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch_jars(
    jars: Path,
    java: Path,
    module: str,
    pins: Mapping[str, str],
    *,
    timeout_s: float,
    on_fetched: Callable[[int], None] = lambda _: None,
) -> None:
    """Fetch what an Ivy module asks for into a directory of its own, check it against `pins`, then rename it to `jars`.

    The caller holds a lock on the directory above. Raises as `ensure_jars`.
    """
    ivy = _find_ivy()
    jars.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=jars.parent) as made:
        staging = Path(made)
        _run_ivy(ivy, java, module, staging, timeout_s, on_fetched)
        check_jars(staging / "jars", pins)
        (staging / "jars").rename(jars)


def _run_ivy(
    ivy: Path, java: Path, module: str, staging: Path, timeout_s: float, on_fetched: Callable[[int], None]
) -> None:
    # An empty home keeps Ivy from the user's Maven cache: a description there without its jar ends the resolution.
    (staging / "home").mkdir()
    (staging / "ivy.xml").write_text(module, encoding="ascii")
    log = staging.parent / "fetch.log"
    command = [str(java), f"-Duser.home={staging / 'home'}", "-jar", str(ivy)]
    command += ["-cache", str(staging / "cache"), "-ivy", str(staging / "ivy.xml")]
    # Some of the jars are published as OSGi bundles, which Ivy takes for another type.
    command += ["-types", "jar", "bundle"]
    command += ["-retrieve", str(staging / "jars" / "[artifact]-[revision](-[classifier]).[ext]")]
    with log.open("wb") as output:
        ivy_process = subprocess.Popen(  # noqa: S603 - the arguments are made above
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        code = _await(ivy_process, timeout_s, lambda: on_fetched(_size_bytes(staging / "cache")))
    if code is None:
        raise _not_fetched(log, f"not done after {timeout_s:.0f} s")
    if code != 0 or not (staging / "jars").is_dir():
        raise _not_fetched(log, f"Ivy ended with {code}")


def _await(process: "subprocess.Popen[bytes]", timeout_s: float, on_wait: Callable[[], None]) -> int | None:
    """The exit code of a process, or None if it was not done in time. It never outlives this call."""
    deadline_s = time.monotonic() + timeout_s
    try:
        while time.monotonic() < deadline_s:
            try:
                return process.wait(min(_TELL_S, timeout_s))
            except subprocess.TimeoutExpired:
                on_wait()
        return None
    finally:
        process.kill()
        process.wait()


def _size_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*.jar*") if path.is_file())


def _not_fetched(log: Path, reason: str) -> Unavailable:
    return Unavailable(
        "the broker's jars could not be fetched",
        hint="Check the network, see the log, and start again: nothing half-done is left behind",
        reason=reason,
        log=str(log),
    )


def _find_ivy() -> Path:
    """Ivy's jar inside the installed pyspark, which is found without importing it."""
    spec = util.find_spec("pyspark")
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    for place in places:
        found = sorted(Path(place, "jars").glob("ivy-*.jar"))
        if found:
            return found[-1]
    raise ConfigError(
        "pyspark, which brings the program that fetches the broker, is not installed",
        hint="Install the extra: pip install 'statelog[spark]'. Or use a broker of your own",
    )


def clean_abandoned(directory: Path) -> None:
    """Remove what killed fetches left in `directory`. The caller holds the lock, so no fetch is under way."""
    for left in directory.glob("fetch-*/"):
        shutil.rmtree(left)
