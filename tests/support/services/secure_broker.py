"""A broker that speaks TLS, asks for passwords and grants nothing by itself: the one of the security tests.

It owns a certificate authority of its own, the broker's users, and two listeners of one node. The tested principals use
SASL_SSL with SCRAM, or with tokens of its issuer. The administrator, who grants and revokes, uses a plain one on
loopback. It runs as the fixture `secure_node`, without a user. Invariant: a principal has exactly the rights that
`grant` last gave it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from statelog.testing.broker import EmbeddedBroker, free_port
from tests.support.services.faulty_broker import with_listeners
from tests.support.services.tokens import Issuer
from tests.support.waiting import wait_for

__all__ = [
    "Right",
    "SecureBroker",
    "cluster",
    "group",
    "publishing",
    "reading",
    "rolling_up",
    "secure_node",
    "topic",
    "writing",
]

_ASK_TIMEOUT_S = 60.0
_SETTLED_S = 120.0
_MECHANISM = ScramMechanism.SCRAM_SHA_256


class Right(NamedTuple):
    """One right: the kind of the resource, its name (or the beginning of it), and the operation."""

    kind: ResourceType
    name: str
    operation: AclOperation
    is_prefix: bool = False

    def __str__(self) -> str:
        return f"{self.operation.name} on {self.kind.name.lower()} {self.name}{'*' if self.is_prefix else ''}"


def topic(name: str, *operations: str) -> list[Right]:
    """Return rights on a topic, by Kafka's names of operations."""
    return [Right(ResourceType.TOPIC, name, AclOperation[operation]) for operation in operations]


def group(name: str, *operations: str) -> list[Right]:
    """Return rights on a consumer group."""
    return [Right(ResourceType.GROUP, name, AclOperation[operation]) for operation in operations]


def cluster(*operations: str) -> list[Right]:
    """Return rights on the cluster itself."""
    return [Right(ResourceType.BROKER, "kafka-cluster", AclOperation[operation]) for operation in operations]


def reading(log: str) -> list[Right]:
    """Return the rights that docs/security.md lists for a reader of a log: a recovery, a follower, Spark."""
    return [*topic(log, "READ", "DESCRIBE_CONFIGS"), *topic(f"{log}.ledger", "READ", "DESCRIBE_CONFIGS")]


def writing(log: str) -> list[Right]:
    """Return the rights that it lists for a writer, a coordinator, and Spark writing."""
    return [*reading(log), *topic(log, "WRITE"), *topic(f"{log}.ledger", "WRITE")]


def rolling_up(log: str) -> list[Right]:
    """Return the rights that it lists for a materializer, but for its group."""
    return [*reading(log), *topic(log, "DELETE"), *topic(f"{log}.ledger", "DELETE")]


def publishing(log: str) -> list[Right]:
    """Return the rights that a materializer's group needs."""
    return group(f"statelog.{log}.materializer", "READ")


@dataclass(frozen=True, slots=True)
class SecureBroker:
    """A running broker and its users. `plain` is the administrator's host:port, `secure` the one for everybody else."""

    plain: str
    secure: str
    ca_path: Path
    passwords: Mapping[str, str]
    log_path: Path
    issuer: Issuer

    def client(self, user: str, **settings: str) -> dict[str, str]:
        """Return the connection settings of a user, as statelog takes them; `settings`, `_` for `.`, replace them."""
        given = {name.replace("_", "."): value for name, value in settings.items()}
        return {
            "bootstrap.servers": self.secure,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": user,
            "sasl.password": self.passwords[user],
            "ssl.ca.location": str(self.ca_path),
            **given,
        }

    def token_client(self, **settings: str) -> dict[str, str]:
        """Return the connection settings of any client with a token; `settings` with `_` for `.` are added."""
        given = {name.replace("_", "."): value for name, value in settings.items()}
        secure = {"bootstrap.servers": self.secure, "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
        return {**secure, "ssl.ca.location": str(self.ca_path), **given}

    def serve(self, passwords: Mapping[str, str]) -> "SecureBroker":
        """Replace the users by these, and revoke all rights of everybody; return the same broker."""
        admin, scram = AdminClient({"bootstrap.servers": self.plain}), ScramCredentialInfo(_MECHANISM, 4096)
        made = [UserScramCredentialUpsertion(user, scram, password.encode()) for user, password in passwords.items()]
        for altered in admin.alter_user_scram_credentials(made, request_timeout=_ASK_TIMEOUT_S).values():
            altered.result()
        _set_rights(admin, None, [])
        return replace(self, passwords=passwords)

    def grant(self, user: str, rights: Iterable[Right]) -> None:
        """Give a user exactly these rights; return when the broker has them."""
        _set_rights(AdminClient({"bootstrap.servers": self.plain}), user, list(dict.fromkeys(rights)))


def _set_rights(admin: AdminClient, user: str | None, rights: Sequence[Right]) -> None:
    """Make these all the rights of a user, or of everybody."""
    theirs = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, user and f"User:{user}", None, AclOperation.ANY,
        AclPermissionType.ANY,
    )  # fmt: skip
    for deleted in admin.delete_acls([theirs], request_timeout=_ASK_TIMEOUT_S).values():
        deleted.result()
    if user and rights:
        bindings = [_binding(user, right) for right in rights]
        for created in admin.create_acls(bindings, request_timeout=_ASK_TIMEOUT_S).values():
            created.result()

    def is_shown() -> bool:
        return len(admin.describe_acls(theirs, request_timeout=_ASK_TIMEOUT_S).result()) == len(rights)

    wait_for(is_shown, "the broker does not show the rights that it was given", timeout_s=_SETTLED_S, tick_s=0.02)


def _binding(user: str, right: Right) -> AclBinding:
    pattern = ResourcePatternType.PREFIXED if right.is_prefix else ResourcePatternType.LITERAL
    return AclBinding(
        right.kind, right.name, pattern, f"User:{user}", "*", right.operation, AclPermissionType.ALLOW
    )  # fmt: skip


@pytest.fixture(scope="session")
def secure_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    """Yield the node, which has no users yet; each module has users and logs of its own there."""
    directory, ca = tmp_path_factory.mktemp("secure-broker"), trustme.CA()
    ca_path = directory / "ca.pem"
    ca.cert_pem.write_to_path(str(ca_path))
    keys = directory / "broker.pem"
    keys.write_bytes(_key_store(ca))
    keys.chmod(0o600)
    port, issuer, jwks = free_port(), Issuer(), directory / "jwks.json"
    jwks.write_text(issuer.jwks(), encoding="utf-8")
    broker = EmbeddedBroker(
        directory / "broker", adapt=lambda settings: _with_security(settings, port, keys, ca_path, jwks)
    )
    try:
        with pytest.MonkeyPatch.context() as patched:
            # Java takes its options from here; without this one a broker reads keys from nowhere.
            patched.setenv("JDK_JAVA_OPTIONS", f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={jwks.as_uri()}")
            broker.start()
        yield SecureBroker(broker.bootstrap, f"127.0.0.1:{port}", ca_path, {}, broker.log_path, issuer)
    finally:
        broker.stop()


def _key_store(ca: trustme.CA) -> bytes:
    """Return key and certificates in one PEM file, the key in the one form that Kafka reads (PKCS 8)."""
    issued = ca.issue_cert("127.0.0.1")
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    chain = [key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())]
    return b"".join([*chain, *(blob.bytes() for blob in issued.cert_chain_pems), ca.cert_pem.bytes()])


def _with_security(settings: Mapping[str, str], port: int, keys: Path, ca_path: Path, jwks: Path) -> dict[str, str]:
    """Return the node's settings with an authorizer and a second listener that encrypts and asks for credentials."""
    security = "org.apache.kafka.common.security"
    scram, bearer = f"{security}.scram.ScramLoginModule required;", f"{security}.oauthbearer.OAuthBearer"
    tokens = "listener.name.sasl_ssl.oauthbearer"
    more = {
        "listeners": f"SASL_SSL://127.0.0.1:{port}",
        "advertised.listeners": f"SASL_SSL://127.0.0.1:{port}",
        "listener.security.protocol.map": "SASL_SSL:SASL_SSL",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,OAUTHBEARER",
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": scram,
        f"{tokens}.sasl.jaas.config": f"{bearer}LoginModule required;",
        f"{tokens}.sasl.server.callback.handler.class": f"{bearer}ValidatorCallbackHandler",
        f"{tokens}.sasl.oauthbearer.jwks.endpoint.url": jwks.as_uri(),
        # A connection ends with its token, or an hour later, unless its client presents a new one.
        f"{tokens}.connections.max.reauth.ms": "3600000",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keys),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(ca_path),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "false",
    }
    return with_listeners(settings, more)
