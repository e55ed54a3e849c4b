"""Limits of a `statelog.toml` that was found in the working directory and not named by the user. Pure.

A directory may be someone else's: a clone, a download, a shared disk. A file in it that names the brokers would receive
the password that the user's environment holds.

Invariant: no secret from one source goes to an address from a file that the user did not name.
"""

from collections.abc import Mapping, Sequence

from statelog.errors import ConfigError
from statelog.storage.config.merge import Layer
from statelog.storage.kafka.config import is_secret_setting
from statelog.storage.store.url import is_secret_option

__all__ = ["check_found_file", "check_owner"]

_SERVERS = "bootstrap.servers"


def check_owner(path: str, owner: int, mode: int, user: int) -> None:
    """Raise ConfigError for a file of another user than this one or root, or that everybody may write."""
    if owner not in (user, 0):
        raise _refused("it belongs to another user", path)
    if mode & 0o002:
        raise _refused("every user may write to it", path)


def check_found_file(file: Layer, stronger: Sequence[Layer]) -> None:
    """Raise ConfigError if secrets of `stronger` layers would go where `file` says."""
    sent = [name for layer in stronger for name in layer.kafka if is_secret_setting(name)]
    places = _left(file.kafka, [layer.kafka for layer in stronger])
    if "bootstrap" in file.values and not any(_names_brokers(layer) for layer in stronger):
        places.append("bootstrap")
    if sent and places:
        raise _received(places, f"kafka.{sent[0]}", file.origin)
    sent = [name for layer in stronger for name in layer.storage if is_secret_option(name)]
    places = _left(file.storage, [layer.storage for layer in stronger])
    if "root" in file.values and not any("root" in layer.values for layer in stronger):
        places.append("root")
    if sent and places:
        raise _received(places, f"storage.{sent[0]}", file.origin)


def _left(given: Mapping[str, object], stronger: Sequence[Mapping[str, object]]) -> list[str]:
    """The settings that no stronger layer replaces."""
    return [name for name in given if not any(name in layer for layer in stronger)]


def _names_brokers(layer: Layer) -> bool:
    return "bootstrap" in layer.values or _SERVERS in layer.kafka


def _received(places: Sequence[str], secret: str, path: str) -> ConfigError:
    return _refused(
        f"{secret} comes from elsewhere, and would be sent to the address in the file's {', '.join(places)}", path
    )


def _refused(why: str, path: str) -> ConfigError:
    return ConfigError(
        f"the configuration file of this directory is not used: {why}",
        file=path,
        hint=f"If you trust it, name it: --config {path} or STATELOG_CONFIG={path}; else change directory",
    )
