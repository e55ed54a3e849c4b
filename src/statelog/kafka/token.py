"""Tokens for Kafka: the user's function that returns them, or its name, and the callback of a client for it.

A client asks for a token when it is made, and again after four fifths of each one's lifetime. The thread that makes
the client gets the first one, and raises its error. A thread of the client gets the others. It tries again ten seconds
after a failure, and uses the last token meanwhile.

Invariants: no token is in a repr, message, fact or log line of ours. A function is imported when a client is made, and
not before.
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
"""The token; its expiry in seconds since 1970; its principal and SASL extensions, if the broker requires them."""
TokenFunction = Callable[[], Token]
"""Returns a token. It is called from several threads."""

_LOG = logging.getLogger("statelog.kafka")
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_HINT = 'Write it as "package.module:function", of a module that Python finds in every process that uses it'
_EXTENSION, _TEXT = re.compile(r"(?!auth$)[A-Za-z]+"), re.compile(r"[\t\n\r -~]*")
_LONGEST_S = 10 * 366 * 86_400.0


def token_by_name(given: object) -> TokenFunction | str:
    """Return the name of a token function if other processes can import it by that, else the function.

    Raises ConfigError for a value that is neither a name nor callable.
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
    """Return the name of a token function, for people."""
    return token if isinstance(token, str) else getattr(token, "__qualname__", type(token).__name__)


def check_travels(token: TokenFunction | str | None) -> str | None:
    """Return the token function's name, for other processes. Raises ConfigError for a function without one."""
    if token is None or isinstance(token, str):
        return token
    raise ConfigError("this kafka_token is a function that no other process can import", hint=_HINT)


class TokenSource:
    """The tokens of one client: confluent-kafka's callback `oauth_cb`.

    Raises ConfigError for a function that is missing or returns no token, BrokerUnavailable for one that raises, and
    the function's own StatelogError. A later failure goes to `errors`, and into the log.
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
        """Return the token that the client uses from now on."""
        first, self._first = self._first, None
        if first is not None:
            return first
        try:
            return self._ask()
        except StatelogError as error:
            # The client drops an exception from here, and only reports that there was one.
            self._errors.append(confluent_kafka.KafkaError(confluent_kafka.KafkaError._AUTHENTICATION, error.message))
            _LOG.warning("%s; the client asks again in 10 s", error.message)
            raise

    def _ask(self) -> Token:
        try:
            token = self._function()
        except StatelogError:
            raise
        except Exception as error:  # noqa: BLE001 - the user's own function: its error is reported
            told = self._redact(f"{type(error).__name__}: {error}")
            hint = "Try again, or correct the function: nothing is lost"
            raise BrokerUnavailable(f"the token function failed: {told}", hint=hint, token=self._name) from None
        wrong = _wrong(token, time.time())
        if wrong:
            hint = "Return (token, expiry in seconds since 1970), and optionally a principal and extensions"
            raise ConfigError(f"the token function gave {wrong}", hint=hint, token=self._name)
        return token


def _wrong(token: object, now_s: float) -> str:
    """Return why a token is not valid, without any part of it; empty if it is."""
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
    """Return the attribute of a module by its dotted path, or None."""
    return reduce(lambda found, part: getattr(found, part, None), path.split("."), module)
