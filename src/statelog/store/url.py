"""Root URLs, the paths below them, temporary names, storage options, and the masking of secrets. Pure.

Invariants:
- A `RootUrl` carries no credentials.
- A path that passes `check_path` cannot leave the log's directory, and is never a temporary name, so listings can omit
  those.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import unquote, urlsplit

from statelog.errors import ConfigError, InvalidName
from statelog.schemas.names import check_name
from statelog.secrets import check_secrets

PROTOCOLS = ("file", "s3", "gs", "webhdfs", "abfs", "memory")
DIRECTORY_MODE = "directory_mode"
"""The one storage option of local roots."""
_ALIASES = {"s3a": "s3", "gcs": "gs", "abfss": "abfs"}
_HDFS_HINT = "HDFS is reached over WebHDFS: write webhdfs://NAME-NODE:PORT/path, with its web port, often 9870"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=//)")
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]*@")
_SIGNED = re.compile(r"(?<=[?&])([\w-]*(?:token|sig|signature|credential)=)[^&\s,\"')]+", re.IGNORECASE)
_SECRET_OPTION = re.compile(
    r"pass|secret|token|pem|key|jaas|credential|sas|connection_string|session|user", re.IGNORECASE
)
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]")
_TEMPORARY = ".tmp-"
_MAX_PATH_CHARS = 512
# Each of these would break a guarantee of the port: a cached listing, a shared client, an event loop of the caller.
_OWN_OPTIONS = frozenset({"use_listings_cache", "skip_instance_cache", "listings_expiry_time", "asynchronous", "loop"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RootUrl:
    """The location of logs. `url` is the normal form, without credentials and without a trailing slash."""

    protocol: str
    url: str
    local: Path | None = None
    """The absolute directory, for protocol `file` only."""


def parse_root(url: str, *, cwd: Path) -> RootUrl:
    """Check and normalize a root URL. A path without a scheme is local, relative to `cwd`.

    Raises ConfigError for a protocol that is not in `PROTOCOLS`, a chained URL, credentials, a query, '..', control
    characters, or a missing bucket or host.
    """
    shown = mask_url(url)
    if not url or _FORBIDDEN.search(url):
        raise ConfigError(f"Root URL {shown!r} is empty, or contains control characters or backslashes")
    if "::" in url:
        raise ConfigError(f"Root URL {shown!r} is a chain of file systems", hint="Name the one store itself")
    match, protocol = _SCHEME.match(url), check_scheme(url)
    if match is None:
        return _local_root(url, shown, cwd)
    rest = url[match.end() + 2 :]
    if protocol != "file":
        return _remote_root(protocol, rest, shown)
    if not rest.startswith("/"):
        raise ConfigError(f"Root URL {shown!r} is not absolute", hint="Write file:///absolute/path, or a plain path")
    return _local_root("/" + unquote(rest).strip("/"), shown, Path("/"))


def check_scheme(url: str) -> str:
    """Return the protocol of a root URL, `file` for a path. Raises ConfigError if it is not in `PROTOCOLS`."""
    match, shown = _SCHEME.match(url), mask_url(url)
    scheme = match.group(1).lower() if match else "file"
    protocol = _ALIASES.get(scheme, scheme)
    if protocol not in PROTOCOLS:
        allowed = ", ".join((*PROTOCOLS, *_ALIASES))
        if protocol == "hdfs":
            raise ConfigError(f"Root URL {shown!r} is of HDFS' own protocol", hint=_HDFS_HINT)
        raise ConfigError(f"Root URL {shown!r} has the unsupported protocol {scheme!r}", hint=f"Use one of {allowed}")
    return protocol


def _local_root(text: str, shown: str, cwd: Path) -> RootUrl:
    if _FORBIDDEN.search(text):  # A URL may have them percent-encoded.
        raise ConfigError(f"Root URL {shown!r} contains control characters or backslashes")
    if ":/" in text.split("/", 1)[0] + "/":
        raise ConfigError(f"Root URL {shown!r} is neither a path nor a URL", hint="Write scheme://place/path")
    path = Path(text)
    if ".." in path.parts:
        raise ConfigError(f"Root URL {shown!r} contains '..'", hint="Give the directory itself")
    path = path if path.is_absolute() else cwd / path
    return RootUrl(protocol="file", url=f"file://{path}", local=path)


def _remote_root(protocol: str, rest: str, shown: str) -> RootUrl:
    parts = rest.rstrip("/").split("/")
    if ".." in parts or "." in parts or "" in parts[1:] or "?" in rest or "#" in rest:
        raise ConfigError(f"Root URL {shown!r} has '.', '..', an empty part, a query or a fragment in its path")
    if not parts[0]:
        raise ConfigError(f"Root URL {shown!r} names no bucket, container or host")
    _check_place(protocol, parts[0], shown)
    return RootUrl(protocol=protocol, url=f"{protocol}://{'/'.join(parts)}")


def _check_place(protocol: str, place: str, shown: str) -> None:
    """Refuse credentials. The text before '@' is a user on HDFS, a container on Azure; elsewhere it may be a secret."""
    before, at, _ = place.rpartition("@")
    if at and (":" in before or protocol not in ("webhdfs", "abfs")):
        raise ConfigError(f"Root URL {shown!r} carries credentials", hint="Give them as storage options instead")
    if protocol == "webhdfs":
        try:
            port = urlsplit(f"webhdfs://{place}").port
        except ValueError as error:
            raise ConfigError(f"Root URL {shown!r} has an invalid port") from error
        if port is None:
            raise ConfigError(f"Root URL {shown!r} names no port", hint=_HDFS_HINT)


def log_url(root: RootUrl, log: str) -> str:
    """Return the URL of a log's directory. Raises InvalidName."""
    separator = "" if root.url.endswith("/") else "/"
    return f"{root.url}{separator}{check_name('log', log)}"


def check_path(path: str) -> str:
    """Return `path` if it names a file inside a log's directory, else raise InvalidName."""
    if not path or path.endswith("/"):
        raise InvalidName(f"path {path!r} names no file")
    return check_prefix(path)


def check_prefix(prefix: str) -> str:
    """Return `prefix` if it may start a path inside a log's directory ('' and 'runs/' do), else raise InvalidName."""
    parts = prefix.split("/")
    if prefix and (
        _FORBIDDEN.search(prefix)
        or len(prefix) > _MAX_PATH_CHARS
        or any(part in ("", ".", "..") for part in parts[:-1])
        or parts[-1] in (".", "..")
        or any(part.startswith(_TEMPORARY) for part in parts)
    ):
        raise InvalidName(
            f"path {prefix!r} is not one of a log's directory",
            hint="Use relative paths without '.', '..', empty parts, control characters or temporary names",
        )
    return prefix


def temporary_name(token: str) -> str:
    """Return the name of a file that is not published yet; `token` makes it unique."""
    return f"{_TEMPORARY}{token}"


def is_temporary(path: str) -> bool:
    """Return whether a path is that of a temporary file, which no listing shows."""
    return path.rsplit("/", 1)[-1].startswith(_TEMPORARY)


def check_options(root: RootUrl, options: Mapping[str, object]) -> None:
    """Raise ConfigError for storage options that would break the port's guarantees, or that the protocol has not."""
    check_secrets(options, secret_of)
    own = sorted(_OWN_OPTIONS & options.keys())
    if own:
        raise ConfigError(f"Storage options {own} are set by statelog itself", hint="Leave them out")
    if root.local is not None and options.keys() - {DIRECTORY_MODE}:
        hint = f"The only one is {DIRECTORY_MODE}: the rights of the log's directory, as in chmod"
        raise ConfigError(f"A local root does not take the storage options {sorted(options)}", hint=hint, root=root.url)


def parse_directory_mode(options: Mapping[str, object]) -> int:
    """Return the rights of a new local log directory, 0700 unless the options name others. Raises ConfigError."""
    given = options.get(DIRECTORY_MODE, 0o700)
    try:
        mode = given if isinstance(given, int) else int(str(given), 8)
    except ValueError:
        mode = -1
    if mode & ~0o2777 or mode & 0o700 != 0o700:
        hint = "Write it as in chmod; 2770 shares the log with the group of the directory"
        raise ConfigError(f"{DIRECTORY_MODE} is {given!r} and does not give its owner all rights", hint=hint)
    return mode


def option_value(name: str, text: str, *, origin: str) -> object:
    """Parse a storage option from the text at `origin`: objects, lists and booleans are JSON. Raises ConfigError."""
    if not text.startswith(("{", "[")) and text not in ("true", "false"):
        return text
    try:
        parsed: object = json.loads(text)
    except ValueError:
        hint = "Check its brackets and quotes"
        facts = {"origin": origin, "key": f"storage.{name}"}
        raise ConfigError(f"the storage option {name} is not JSON", hint=hint, **facts) from None
    return parsed


def option_text(value: object) -> str:
    """Return a storage option as the text that `option_value` parses: text unchanged, other values as JSON.

    Raises ConfigError for values that JSON does not have.
    """
    try:
        return value if isinstance(value, str) else json.dumps(value)
    except (TypeError, ValueError):
        kind, hint = type(value).__name__, "Give text, or Python's own numbers, lists and dicts"
        raise ConfigError(f"an option of type {kind} cannot be written as text", hint=hint) from None


def mask_url(text: str) -> str:
    """Mask the `user:password@` and the signatures in the query of every URL in a text."""
    return _SIGNED.sub(r"\1***", _CREDENTIALS.sub("***@", text))


def mask_options(options: Mapping[str, object]) -> dict[str, object]:
    """Mask the values of storage options that may be secret, nested ones too."""
    return {name: _masked(name, value) for name, value in options.items()}


def is_secret_option(name: str) -> bool:
    """Return whether a storage option of this name may hold a secret."""
    return _SECRET_OPTION.search(name) is not None


def secret_of(name: str) -> str:
    """Return the option whose value is in a file, by the option that names the file: `secret` for `secret_file`.

    Returns an empty string for any other option.
    """
    secret = name.removesuffix("_file")
    return secret if secret != name and is_secret_option(secret) else ""


def _masked(name: str, value: object) -> object:
    if is_secret_option(name) and not secret_of(name):
        return "***"
    if isinstance(value, Mapping):
        nested = cast("Mapping[object, object]", value)
        return {str(key): _masked(str(key), inner) for key, inner in nested.items()}
    return mask_url(value) if isinstance(value, str) else value
