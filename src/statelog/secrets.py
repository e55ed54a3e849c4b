"""Secrets that a setting names by the file that they are in, as orchestrators mount them: `sasl.password.file`,
`secret_file`, and so the variables STATELOG_KAFKA__SASL_PASSWORD_FILE and STATELOG_STORAGE__SECRET_FILE.

Invariants: a file is read when a client is made and not before, so that a new client has a new secret; what is in it
is in no error. Line ends behind it are not part of it.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from statelog.errors import ConfigError

V = TypeVar("V")
SecretOf = Callable[[str], str]
"""The setting whose value is in the file that a setting of this name says; empty if it says none."""


MASK = "***"
_URL_CREDENTIALS = re.compile(r"(?<=://)\S*(?=@)|[^\s/@:,]+:[^\s@,]+(?=@)")


def check_secrets(given: Mapping[str, object], secret_of: SecretOf) -> None:
    """Raise ConfigError for a secret that is given as it is and by a file, too."""
    twice = [name for name in given if secret_of(name) in given]
    if twice:
        raise ConfigError(f"{secret_of(twice[0])} is given, and {twice[0]} too", hint="Keep one", setting=twice[0])


def merge_secrets(weaker: Mapping[str, V], stronger: Mapping[str, V], secret_of: SecretOf) -> dict[str, V]:
    """The settings of two layers; of a secret, what the stronger one says, in whichever way it does."""
    said = {secret_of(name) or name for name in stronger}
    return {**{name: value for name, value in weaker.items() if (secret_of(name) or name) not in said}, **stronger}


def read_secrets(given: Mapping[str, V], secret_of: SecretOf) -> dict[str, V | str]:
    """The settings with what is in the files that some of them name. Raises ConfigError for one that has no secret."""
    return {
        secret_of(name) or name: read_secret(name, value) if secret_of(name) else value for name, value in given.items()
    }


def read_secret(name: str, path: object) -> str:
    """What is in the file that the setting of this name says. Raises ConfigError if that is no secret."""
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
    """Free text, such as a URL or a client's message, without the credentials of URLs in it."""
    return _URL_CREDENTIALS.sub(MASK, text)
