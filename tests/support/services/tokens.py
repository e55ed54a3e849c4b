"""Tokens that the broker of the security tests accepts: their issuer, and a server that gives them out.

It owns a key of its own (`Issuer`), whose public half the broker reads as a JWKS file, and an HTTP server on loopback
(`token_server`). The server answers as an OAuth 2 token endpoint, as Azure's metadata service and as AWS's STS do.
Invariants: only tokens that the issuer signed are valid; the token endpoint gives one only for a secret that it knows;
every token holds the canary.
"""

import base64
import json
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

from tests.support.canary import CANARY
from tests.support.services.http import Answering, serving

__all__ = ["Issuer", "TokenServer", "token_server"]


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Issuer:
    """An issuer that signs tokens (RS256) with a key of its own."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def jwks(self) -> str:
        """Return the public key, as brokers read it."""
        public = self._key.public_key().public_numbers()
        n, e = (_base64url(number.to_bytes((number.bit_length() + 7) // 8)) for number in (public.n, public.e))
        return json.dumps({"keys": [{"kty": "RSA", "kid": "test", "use": "sig", "alg": "RS256", "n": n, "e": e}]})

    def token(self, principal: str, lifetime_s: float) -> tuple[str, float]:
        """Return a token of a principal, and when it expires, in seconds since 1970."""
        now_s = time.time()
        head = {"alg": "RS256", "typ": "JWT", "kid": "test"}
        claims = {"sub": principal, "iat": now_s, "exp": now_s + lifetime_s, "scope": "kafka", "jti": f"{CANARY}token"}
        signed = ".".join(_base64url(json.dumps(part).encode()) for part in (head, claims))
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), SHA256())
        return f"{signed}.{_base64url(signature)}", now_s + lifetime_s


@dataclass(slots=True)
class TokenServer:
    """A running server, at `url`. `secrets` are the clients', by id; `asked` the paths and forms of all requests."""

    issuer: Issuer
    url: str
    secrets: dict[str, str]
    lifetime_s: float = 3600.0
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list[tuple[str, dict[str, str]]])

    def module(self, directory: Path, *principals: str) -> str:
        """Return the name of a module in `directory` that has a function for each principal, which gives its tokens."""
        lines = [
            "import json, time, urllib.request",
            "def ask(principal):",
            f"    with urllib.request.urlopen(f'{self.url}/imds?client_id={{principal}}', timeout=30) as answer:",
            "        given = json.load(answer)",
            "    return given['access_token'], time.time() + given['expires_in']",
            *(f"def {principal}():\n    return ask({principal!r})" for principal in principals),
        ]
        (directory / "issued_tokens.py").write_text("\n".join(lines), encoding="utf-8")
        return "issued_tokens"

    def answer(self, path: str, form: dict[str, str], authorization: str) -> tuple[int, str, str]:
        """Return status, kind and text of the answer to a request."""
        self.asked.append((path, form))
        if path == "/imds":
            return self._granted(form["client_id"])
        if form.get("Action") == "GetWebIdentityToken":
            return self._web_identity()
        given, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if self.secrets.get(given) != secret:
            return 401, "application/json", json.dumps({"error": "invalid_client", "error_description": "who is it?"})
        return self._granted(given)

    def _granted(self, principal: str) -> tuple[int, str, str]:
        token, _ = self.issuer.token(principal, self.lifetime_s)
        given = {"access_token": token, "token_type": "Bearer", "expires_in": int(self.lifetime_s)}
        return 200, "application/json", json.dumps(given)

    def _web_identity(self) -> tuple[int, str, str]:
        token, expires_s = self.issuer.token("robot", self.lifetime_s)
        expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(expires_s))
        space = "https://sts.amazonaws.com/doc/2011-06-15/"
        text = (
            f'<GetWebIdentityTokenResponse xmlns="{space}"><GetWebIdentityTokenResult>'
            f"<WebIdentityToken>{token}</WebIdentityToken><Expiration>{expires}</Expiration>"
            "</GetWebIdentityTokenResult></GetWebIdentityTokenResponse>"
        )
        return 200, "text/xml", text


@contextmanager
def token_server(issuer: Issuer, secrets: dict[str, str]) -> Generator[TokenServer]:
    """Yield a token server on loopback, for as long as the block runs."""

    class Handler(Answering):
        def serve(self) -> None:
            query = self.body().decode() or urlsplit(self.path).query
            form = {name: values[0] for name, values in parse_qs(query).items()}
            status, kind, text = server.answer(urlsplit(self.path).path, form, self.headers.get("Authorization", ""))
            self.answer(status, text.encode(), {"Content-Type": kind})

    with serving(Handler) as url:
        server = TokenServer(issuer, url, secrets)
        yield server
