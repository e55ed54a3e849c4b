"""Detects a listener that wants TLS, once a plaintext client has got no answer at all.

Kafka's client tells the reverse (TLS at a plain listener) by itself, and of this one only that connections are closed.
So a handshake is tried, of which nothing but its beginning counts: no certificate is verified, and nothing is sent.
"""

import socket
import ssl

__all__ = ["speaks_tls"]


def speaks_tls(bootstrap_servers: str, timeout_s: float) -> str:
    """The first of these servers (host:port, comma-separated) that answers a TLS handshake, or an empty text."""
    for server in bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition("://")[2].rpartition(":")
        if port.isdecimal() and _shakes_hands(host.strip("[]"), int(port), timeout_s):
            return server.strip()
    return ""


def _shakes_hands(host: str, port: int, timeout_s: float) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), timeout_s) as plain, context.wrap_socket(plain):
            return True
    except ssl.SSLError as error:
        # A broker that wants our certificate ends the handshake with an alert, which is TLS as well.
        return "ALERT" in (error.reason or "")
    except (OSError, ValueError):
        return False
