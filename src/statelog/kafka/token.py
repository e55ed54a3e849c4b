"""Tokens for Kafka: a function of the user's that gives them, by name or as it is, and what is made of it for a client.

A client asks for a token when it is made, and again after four fifths of each one's life. The first one is asked for
here, in the thread that makes the client, so that an error comes out of the call; the others are asked for in a thread
of the client's own, which tries again ten seconds after a failure and goes on with what it has.

Invariants: no token is in a repr, message, fact or log line of ours. A function is imported when a client is made,
and not before.
"""

import importlib
import logging
import re
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import reduce
from typing import cast

import confluent_kafka

from statelog.errors import BrokerUnavailable, ConfigError, StatelogError

Token = tuple[str, float] | tuple[str, float, str] | tuple[str, float, str, dict[str, str]]
"""The token; when it expires, in seconds since 1970; whose it is, and SASL extensions, if the broker asks for them."""
TokenFunction = Callable[[], Token]
"""Gives a token. It is called from several threads."""

_LOG = logging.getLogger("statelog.kafka")
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_HINT = 'Write it as "package.module:function", of a module that Python finds in every process that uses it'
_EXTENSION, _TEXT = re.compile(r"(?!auth$)[A-Za-z]+"), re.compile(r"[\t\n\r -~]*")
_LONGEST_S = 10 * 366 * 86_400.0


def token_by_name(given: object) -> TokenFunction | str:
    """What a program gives for a token: by name where it has one that others can import it by, else as it is.

    Raises ConfigError for what is neither a name nor callable.
    """
    if isinstance(given, str):
        if not _NAME.fullmatch(given):
            raise ConfigError(f"the token {given!r} names no function", hint=_HINT)
        return given
    if not callable(given):
        raise ConfigError(f"a token is a function or its name, and not {type(given).__name__}", hint=_HINT)
    module, path = getattr(given, "__module__", None), getattr(given, "__qualname__", "")
    name, found = f"{module}:{path}", _attribute(sys.modules.get(module or ""), path)
    has_name = module != "__main__" and _NAME.fullmatch(name) and found is given
    return name if has_name else cast("TokenFunction", given)


def name_of(token: TokenFunction | str) -> str:
    """What a token's function is called, for people."""
    return token if isinstance(token, str) else getattr(token, "__qualname__", type(token).__name__)


def check_travels(token: TokenFunction | str | None) -> str | None:
    """The token's name, for another process. Raises ConfigError for a function that has none."""
    if token is None or isinstance(token, str):
        return token
    raise ConfigError("this kafka_token is a function that no other process can import", hint=_HINT)


class TokenSource:
    """The tokens of one client: what confluent-kafka calls as its `oauth_cb`.

    Raises ConfigError for a function that is not there or gives no token, BrokerUnavailable for one that raises,
    and what it raises itself if that is an error of statelog. A later failure goes to `errors`, and into the log.
    """

    def __init__(
        self, token: TokenFunction | str, errors: deque[confluent_kafka.KafkaError], redact: Callable[[str], str]
    ) -> None:
        self._name = name_of(token)
        self._function = _imported(token) if isinstance(token, str) else token
        self._errors = errors
        self._redact = redact
        self._first: Token | None = self._ask()

    def __call__(self, _config: str | None) -> Token:
        """The token that the client is to show from now on."""
        first, self._first = self._first, None
        if first is not None:
            return first
        try:
            return self._ask()
        except StatelogError as error:
            # What is raised from here the client drops, and reports that something was.
            self._errors.append(confluent_kafka.KafkaError(confluent_kafka.KafkaError._AUTHENTICATION, error.message))
            _LOG.warning("%s; the client asks again in 10 s", error.message)
            raise

    def _ask(self) -> Token:
        try:
            token = self._function()
        except StatelogError:
            raise
        except Exception as error:  # noqa: BLE001 - the user's own function: what it raises is reported
            told = self._redact(f"{type(error).__name__}: {error}")
            hint = "Nothing is lost: try again, or correct the function"
            raise BrokerUnavailable(f"the token function failed: {told}", hint=hint, token=self._name) from None
        wrong = _wrong(token, time.time())
        if wrong:
            hint = "It gives (token, expiry in seconds since 1970), and may add a principal and extensions"
            raise ConfigError(f"the token function gave {wrong}", hint=hint, token=self._name)
        return token


def _wrong(token: object, now_s: float) -> str:
    """What is wrong with a token, without a word of it; empty if nothing is."""
    kind = type(token).__name__
    match cast("tuple[object, ...]", token) if isinstance(token, tuple) else ():
        case (str(text), int() | float() as expires_s, *more):
            pass
        case _:
            return f"{kind}, and no such tuple"
    if not text or not _TEXT.fullmatch(text):
        return "an empty token, or one with characters that none has"
    if not now_s < expires_s < now_s + _LONGEST_S:
        what = "has expired" if expires_s <= now_s else "would last for years: is its expiry in milliseconds?"
        return f"a token that {what}"
    match more:
        case []:
            return ""
        case [str(principal)] if principal.isprintable():
            return ""
        case [str(principal), extensions] if principal.isprintable() and _are_extensions(extensions):
            return ""
        case _:
            return "a principal that is no text, or extensions that Kafka does not take"


def _are_extensions(given: object) -> bool:
    pairs = cast("dict[object, object]", given).items() if isinstance(given, dict) else [(None, None)]
    return all(
        isinstance(name, str) and _EXTENSION.fullmatch(name) and isinstance(value, str) and _TEXT.fullmatch(value)
        for name, value in pairs
    )


def _imported(name: str) -> TokenFunction:
    module, _, path = name.partition(":")
    try:
        found = _attribute(importlib.import_module(module), path)
    except Exception as error:  # noqa: BLE001 - the user's own module runs
        why = f"{type(error).__name__}: {error}"
        raise ConfigError(f"the module of the token {name} cannot be imported: {why}", hint=_HINT, token=name) from None
    if not callable(found):
        raise ConfigError(f"the token {name} is no function of that module", hint=_HINT, token=name)
    return cast("TokenFunction", found)


def _attribute(module: object, path: str) -> object:
    """What a dotted path names in a module, or None."""
    return reduce(lambda found, part: getattr(found, part, None), path.split("."), module)
