"""Addresses on which a server of ours may listen, and the clients that it answers."""

import base64
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from statelog.errors import ConfigError
from statelog.operate.listening import Listening, listening_at

TOKEN = "a token of some length"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """Return a file with a token, as an editor saves it."""
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n", "utf-8")
    return path


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("127.0.0.1:9400", "http://127.0.0.1:9400"),
        ("[::1]:9401", "http://[::1]:9401"),
        ("localhost:0", "http://localhost:0"),
        ("127.8.8.8:1", "http://127.8.8.8:1"),
    ],
)
def test_this_machine_needs_neither_certificate_nor_token(address: str, url: str) -> None:
    """Clients on this machine need neither certificate nor token."""
    found = listening_at(address)
    assert found.url == url
    assert found.admits("")
    assert found.context() is None


@pytest.mark.parametrize("address", ["9400", ":9400", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:70000", "::1:9400"])
def test_what_is_no_address_is_refused(address: str) -> None:
    """A malformed address is refused with what to write instead."""
    with pytest.raises(ConfigError, match="not an address") as refused:
        listening_at(address)
    assert "HOST:PORT" in str(refused.value.hint)


@pytest.mark.parametrize("address", ["0.0.0.0:9400", "[::]:9400", "10.1.2.3:9400", "example.test:9400"])
def test_nothing_is_served_to_others_without_certificate_and_token(address: str, token_file: Path) -> None:
    """Serving others without certificate and token is refused. A host name may be anybody's, too."""
    half: dict[str, Any] = {"certificate": token_file, "key": token_file}
    wanting: list[dict[str, Any]] = [{}, {"token_file": token_file}, half]
    for given in wanting:
        with pytest.raises(ConfigError, match="other machines can reach") as refused:
            listening_at(address, **given)
        assert refused.value.facts["listen"] == address
    assert listening_at(address, token_file=token_file, **half).url.startswith("https://")


@pytest.mark.parametrize("host", ["a..b", "a" * 64, "192.0.2.1"])
def test_where_nothing_can_listen_is_refused(host: str) -> None:
    """An address that cannot be bound is refused, whether it is no name or another machine's."""
    with pytest.raises(ConfigError, match="the address cannot be bound"):
        Listening(host=host, port=0).bound()


def test_a_certificate_is_used_with_its_key(tmp_path: Path) -> None:
    """A certificate is used with its key. An incomplete or invalid pair is refused."""
    issued = trustme.CA().issue_cert("localhost")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    issued.private_key_pem.write_to_path(key)
    for part in issued.cert_chain_pems:
        part.write_to_path(certificate, append=True)
    assert listening_at("127.0.0.1:1", certificate=certificate, key=key).context() is not None
    with pytest.raises(ConfigError, match="belong together"):
        listening_at("127.0.0.1:1", certificate=certificate)
    for wrong in (key, tmp_path / "not there"):
        with pytest.raises(ConfigError, match="cannot be used"):
            listening_at("127.0.0.1:1", certificate=wrong, key=key).context()


def test_a_key_with_a_password_is_refused_on_a_terminal_too(tmp_path: Path) -> None:
    """A key with a password is refused, also on a terminal, where a daemon would wait for the password."""
    issued = trustme.CA().issue_cert("localhost")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(certificate)
    plain = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    locked = serialization.BestAvailableEncryption(b"a password")
    key.write_bytes(plain.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))
    code = (
        "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from pathlib import Path;"
        "from statelog.operate.listening import listening_at;"
        f"listening_at('127.0.0.1:1', certificate=Path({str(certificate)!r}), key=Path({str(key)!r})).context()"
    )
    mine, its = os.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=its, stdout=its, stderr=its, start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    os.close(its)
    told = b""
    while not any(end in told for end in (b"without a password", b"pass phrase")):
        told += os.read(mine, 1024)
    child.kill()
    child.wait()
    os.close(mine)
    assert b"the certificate cannot be used" in told


def test_a_token_is_asked_for_where_there_is_one(token_file: Path) -> None:
    """The token is accepted as a bearer token, or as a browser's password, and is never shown."""
    found = listening_at("127.0.0.1:1", token_file=token_file)
    assert TOKEN not in repr(found)

    def basic(user_and_password: str) -> str:
        return f"Basic {base64.b64encode(user_and_password.encode()).decode()}"

    assert found.admits(f"Bearer {TOKEN}")
    assert found.admits(f"bearer {TOKEN}")
    assert found.admits(basic(f"anybody:{TOKEN}"))
    for header in ("", TOKEN, "Bearer", "Bearer wrong", f"Digest {TOKEN}", "Basic !", basic(TOKEN), basic("a:b")):
        assert not found.admits(header), header
    token_file.write_text("short", "utf-8")
    with pytest.raises(ConfigError, match="fewer than"):
        listening_at("127.0.0.1:1", token_file=token_file)
    assert Listening(host="127.0.0.1", port=1).admits("anything")
