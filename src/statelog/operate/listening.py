"""`Listening`: where a server listens, and which clients it answers: local ones, or holders of a token, over TLS.

Owns the address, the certificate and the token. Invariants:

- Remote clients are served only with a certificate and a token, unless the caller says that the address is guarded.
- A token is compared in constant time, and appears in no repr and in no error.
"""

import base64
import binascii
import hmac
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from statelog.errors import ConfigError
from statelog.kafka.config import is_loopback
from statelog.schemas.names import check_kind, whole_in
from statelog.secrets import read_secret

_LEAST_TOKEN_CHARS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """A checked address. `token`: what a client has to present; empty if no token is required."""

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None
    token: str = field(default="", repr=False)

    @property
    def url(self) -> str:
        """The URL for a browser."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.certificate else 'http'}://{host}:{self.port}"

    def bound(self) -> socket.socket:
        """Return a listening socket; port 0 takes a free one. Raises ConfigError if the address cannot be bound."""
        try:
            family = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((self.host, self.port), family=family)
        except (OSError, UnicodeError) as error:  # UnicodeError: an impossible host name.
            problem = f"the address cannot be bound: {getattr(error, 'strerror', None) or error}"
            hint = "Name another port, or stop the process that listens on this one"
            raise ConfigError(problem, hint=hint, listen=f"{self.host}:{self.port}") from error

    def context(self) -> ssl.SSLContext | None:
        """Return the server's TLS context; None without a certificate. Raises ConfigError for unusable files."""
        if self.certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key, password="")  # Never prompt for a password.
        except (OSError, ssl.SSLError) as error:
            problem = f"the certificate cannot be used: {error.strerror or error}"
            hint = "Name PEM files: the certificate with its chain, and its key without a password"
            raise ConfigError(problem, hint=hint, certificate=str(self.certificate)) from error
        return context

    def admits(self, authorization: str) -> bool:
        """Tell whether this header has the token: as `Bearer TOKEN`, or as the password of basic authentication."""
        if not self.token:
            return True
        kind, _, given = authorization.partition(" ")
        if kind.lower() == "basic":
            try:
                given = base64.b64decode(given, validate=True).decode().partition(":")[2]
            except (binascii.Error, ValueError):
                return False
        elif kind.lower() != "bearer":
            return False
        return hmac.compare_digest(given.strip().encode(), self.token.encode())


def listening_at(
    address: str,
    *,
    certificate: Path | None = None,
    key: Path | None = None,
    token_file: Path | None = None,
    is_guarded: bool = False,
) -> Listening:
    """Return the checked address HOST:PORT, with the token that the file holds.

    `is_guarded`: answer every client in the clear, because the network keeps strangers out or nothing is secret.

    Raises ConfigError for an invalid address, a certificate or a key alone, and a short token; also for an address that
    other machines reach, without certificate and token.
    """
    check_kind("an address to listen on", address, str, example="127.0.0.1:9400")
    host, port = _address(address)
    if (certificate is None) != (key is None):
        raise ConfigError("a certificate and its key belong together", hint="Give both or neither")
    token = read_secret("the token", token_file) if token_file else ""
    if token and len(token) < _LEAST_TOKEN_CHARS:
        hint = "Make one with: openssl rand -hex 32"
        raise ConfigError(f"the token has fewer than {_LEAST_TOKEN_CHARS} characters", hint=hint, file=str(token_file))
    if not is_guarded and not is_loopback(host) and not (certificate and token):
        problem = "other machines can reach this address, and it has no certificate or no token"
        hint = "Listen on 127.0.0.1, or give a certificate, its key, and a file with a token"
        raise ConfigError(problem, hint=hint, listen=address)
    return Listening(host=host, port=port, certificate=certificate, key=key, token=token)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    has_brackets = host.startswith("[") and host.endswith("]")
    is_bare = ":" in host and not has_brackets
    number = whole_in(port)
    if not host or is_bare or number is None or number > 65535:
        hint = "Write HOST:PORT, for example 127.0.0.1:9400 or [::1]:9400"
        raise ConfigError(f"{text!r} is not an address to listen on", hint=hint)
    return host[1:-1] if has_brackets else host, number
