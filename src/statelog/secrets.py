"""Secrets in files, as orchestrators mount them, which settings name: `sasl.password.file`, `secret_file`.

Their variables are STATELOG_KAFKA__SASL_PASSWORD_FILE and STATELOG_STORAGE__SECRET_FILE.

Invariants:
- A file is read when a client is made and not before, so that a new client has a new secret.
- No error shows a secret. Trailing line ends are not part of it.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from statelog.errors import ConfigError

V = TypeVar("V")
SecretOf = Callable[[str], str]
"""Returns the setting whose value is in the file that a setting names; empty if the setting names no file."""


MASK = "***"
_URL_CREDENTIALS = re.compile(r"(?<=://)\S*(?=@)|[^\s/@:,]+:[^\s@,]+(?=@)")


def check_secrets(given: Mapping[str, object], secret_of: SecretOf) -> None:
    """Raise ConfigError for a secret that is given both directly and by a file."""
    twice = [name for name in given if secret_of(name) in given]
    if twice:
        raise ConfigError(f"{secret_of(twice[0])} is given, and {twice[0]} too", hint="Keep one", setting=twice[0])


def merge_secrets(weaker: Mapping[str, V], stronger: Mapping[str, V], secret_of: SecretOf) -> dict[str, V]:
    """Merge the settings of two layers. A secret in the stronger one, direct or by file, replaces both forms."""
    said = {secret_of(name) or name for name in stronger}
    return {**{name: value for name, value in weaker.items() if (secret_of(name) or name) not in said}, **stronger}


def read_secrets(given: Mapping[str, V], secret_of: SecretOf) -> dict[str, V | str]:
    """Replace settings that name a file by the secret in it. Raises ConfigError for a file without a secret."""
    return {
        secret_of(name) or name: read_secret(name, value) if secret_of(name) else value for name, value in given.items()
    }


def read_secret(name: str, path: object) -> str:
    """Return the secret in the file that the setting called `name` names. Raises ConfigError if there is none."""
    try:
        secret = Path(str(path)).read_text(encoding="utf-8-sig").rstrip("\r\n")
        problem = "" if secret else "it is empty"
    except OSError as error:
        secret, problem = "", error.strerror or type(error).__name__
    except ValueError:
        secret, problem = "", "it is not UTF-8"
    if problem:
        what, hint = (
            f"the file that {name} names cannot be used: {problem}",
            "Mount the secret there, or correct the path",
        )
        raise ConfigError(what, hint=hint, setting=name, file=str(path))
    return secret


def mask_text(text: str) -> str:
    """Mask the credentials of URLs in a text, such as a client's message."""
    return _URL_CREDENTIALS.sub(MASK, text)
