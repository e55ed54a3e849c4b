"""Finds the Java that runs the broker, and checks its version.

Takes the one that `JAVA_HOME` names, else the one on the search path, as Kafka's and Spark's own scripts do. Starts
`java -version` and nothing else. Invariant: what `find_java` returns is Java 17 or newer.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from statelog.errors import ConfigError

__all__ = ["OLDEST_JAVA", "find_java", "parse_java_version"]

OLDEST_JAVA = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_HINT = f"Install a Java runtime of version {OLDEST_JAVA} or newer, and put it on the path or name it in JAVA_HOME"


def find_java(environment: Mapping[str, str] = os.environ) -> Path:
    """The `java` program to use. Raises ConfigError if there is none, or if it is too old."""
    java = _candidate(environment)
    version = parse_java_version(_version_text(java))
    if version is None or version < OLDEST_JAVA:
        raise ConfigError(
            "this Java is too old for Kafka" if version else "this Java does not say its version",
            hint=_HINT,
            java=str(java),
            version=version,
            oldest=OLDEST_JAVA,
        )
    return java


def parse_java_version(text: str) -> int | None:
    """The major version in the output of `java -version`, or None. Java 8 and older call themselves 1.8."""
    match = _VERSION.search(text)
    return int(match.group(1)) if match else None


def _candidate(environment: Mapping[str, str]) -> Path:
    home = environment.get("JAVA_HOME", "")
    wanted = str(Path(home, "bin", "java")) if home else "java"
    found = shutil.which(wanted, path=environment.get("PATH"))
    if found is None:
        raise ConfigError("no Java was found", hint=_HINT, java_home=home or None)
    return Path(found)


def _version_text(java: Path) -> str:
    try:
        said = subprocess.run(  # noqa: S603 - the program is the Java that the user's environment names
            [str(java), "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"Java does not run: {error}", hint=_HINT, java=str(java)) from error
    return said.stderr + said.stdout
