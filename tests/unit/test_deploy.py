"""The files of `deploy/` are what systemd, Kubernetes and the command itself take."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme
from prometheus_client import CollectorRegistry

from statelog.operate.health import Health, HealthServer, LogHealth
from statelog.operate.listening import listening_at
from statelog.storage.config import file_layer
from tests.support.documents import ROOT

_DEPLOY = ROOT / "deploy"
_KUBERNETES = _DEPLOY / "kubernetes"
_UNIT = _DEPLOY / "systemd" / "statelog-materializer@.service"
_PATCH = _KUBERNETES / "scraped" / "materializer.yaml"
_MANIFESTS = sorted(
    path for path in _KUBERNETES.rglob("*.yaml") if path.name != "kustomization.yaml" and path != _PATCH
)
_OLDEST = "1.29"
"""The oldest Kubernetes whose schemas the manifests have to fit."""
_NO_SCHEMAS = "the schemas of Kubernetes cannot be had here: pip install '.[test]'"


def _documents(text: str) -> list[dict[str, Any]]:
    yaml: Any = pytest.importorskip("yaml", reason=_NO_SCHEMAS)
    return [found for found in yaml.safe_load_all(text) if found]


def _check(documents: list[dict[str, Any]]) -> None:
    validator: Any = pytest.importorskip("kubernetes_validate", reason=_NO_SCHEMAS)
    for document in documents:
        for version in (_OLDEST, validator.latest_version()):
            validator.validate(document, version, strict=True)


def _kustomize(folder: Path) -> str:
    for command in (["kubectl", "kustomize"], ["kustomize", "build"]):
        if program := shutil.which(command[0]):
            built = subprocess.run([program, command[1], str(folder)], capture_output=True, text=True, check=False)
            assert built.returncode == 0, built.stderr
            return built.stdout
    pytest.skip("kustomize cannot be had here: install kubectl or kustomize")


@pytest.mark.parametrize("path", _MANIFESTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_manifest_fits_the_schemas(path: Path) -> None:
    """Each object has the fields that Kubernetes knows, and no others, in an old version and in the newest."""
    documents = _documents(path.read_text("utf-8"))
    assert documents
    _check(documents)


def test_what_does_not_fit_is_noticed() -> None:
    """A field that Kubernetes does not know, or of another type, is an error: so the tests above can fail."""
    validator: Any = pytest.importorskip("kubernetes_validate", reason=_NO_SCHEMAS)
    for field, value in (("replica", 1), ("replicas", "one")):
        document = _documents((_KUBERNETES / "base" / "materializer.yaml").read_text("utf-8"))[0]
        document["spec"][field] = value
        with pytest.raises(validator.ValidationError):
            validator.validate(document, _OLDEST, strict=True)


@pytest.mark.parametrize("folder", ["base", "example"])
def test_kustomize_builds_what_fits(folder: str) -> None:
    """Base and example are built, and what comes out fits the schemas."""
    documents = _documents(_kustomize(_KUBERNETES / folder))
    kinds = {document["kind"] for document in documents}
    assert kinds >= {"ConfigMap", "Deployment", "Service", "ServiceAccount", "StatefulSet"}
    _check(documents)


def test_the_example_says_what_it_is_to_say() -> None:
    """Its log, topic, images and configuration arrive where the programs look for them."""
    documents = {document["kind"]: document for document in _documents(_kustomize(_KUBERNETES / "example"))}
    daemon = documents["Deployment"]["spec"]
    worker = documents["StatefulSet"]["spec"]["template"]["spec"]["containers"][0]
    (container,) = daemon["template"]["spec"]["containers"]
    assert daemon["replicas"] == 2
    assert container["image"] == "registry.example.com/statelog:0.1.0"
    assert {entry["name"]: entry.get("value") for entry in container["env"]}["LOG"] == "orders"
    assert {"name": "LOG", "value": "orders"} in worker["env"]
    assert {"name": "TOPIC", "value": "clicks"} in worker["env"]
    assert "orders-state" in documents["ConfigMap"]["data"]["statelog.toml"]
    assert documents["PodDisruptionBudget"]["spec"]["minAvailable"] == 1


@pytest.fixture
def scraped(tmp_path: Path) -> dict[str, Any]:
    """The Deployment of the example with its metrics opened."""
    shutil.copytree(_KUBERNETES, tmp_path / "kubernetes")
    file = tmp_path / "kubernetes" / "example" / "kustomization.yaml"
    file.write_text(file.read_text("utf-8").replace("  - ../failover\n", "  - ../failover\n  - ../scraped\n"), "utf-8")
    documents = _documents(_kustomize(file.parent))
    _check(documents)
    assert [document["spec"]["ports"][0]["port"] for document in documents if "ports" in document.get("spec", {})] == [
        9400
    ]
    return next(document for document in documents if document["kind"] == "Deployment")


def _container(deployment: dict[str, Any]) -> dict[str, Any]:
    found: list[dict[str, Any]] = deployment["spec"]["template"]["spec"]["containers"]
    assert len(found) == 1
    return found[0]


def _probes(container: dict[str, Any], replaced: dict[str, str]) -> list[int]:
    """The exit codes of both probes, with places of this run in place of the container's."""
    codes: list[int] = []
    for name in ("livenessProbe", "readinessProbe"):
        _, option, program = container[name]["exec"]["command"]
        for printed, ours in replaced.items():
            assert printed in program
            program = program.replace(printed, ours)
        ran = subprocess.run([sys.executable, option, program], capture_output=True, check=False, timeout=60)
        codes.append(ran.returncode)
    return codes


@pytest.mark.parametrize(
    ("health", "codes"),
    [
        (Health(), [0, 0]),
        (Health(logs=[LogHealth(log="orders", not_ready=("it fails",))]), [0, 1]),
        (Health(not_live="it hangs"), [1, 1]),
    ],
)
def test_the_probes_ask_what_they_mean(health: Health, codes: list[int]) -> None:
    """A daemon that is well passes both, one whose rounds fail is live and not ready, and one that hangs is neither."""
    container = _container(_documents((_KUBERNETES / "base" / "materializer.yaml").read_text("utf-8"))[0])
    assert "127.0.0.1:9400" in container["args"]
    with HealthServer(listening_at("127.0.0.1:0"), lambda: health, CollectorRegistry()) as server:
        assert _probes(container, {"http://127.0.0.1:9400": server.url}) == codes


def test_the_probes_show_the_token(scraped: dict[str, Any], tmp_path: Path) -> None:
    """Where the port is open, the probes ask by TLS, with the token of the mounted file."""
    cert, token = tmp_path / "cert.pem", tmp_path / "token"
    trustme.CA().issue_cert("statelog.example").private_key_and_cert_chain_pem.write_to_path(cert)
    token.write_text("0123456789abcdef0123456789abcdef\n", "utf-8")
    place = listening_at("0.0.0.0:0", certificate=cert, key=cert, token_file=token)
    with HealthServer(place, Health, CollectorRegistry()) as server:
        port = server.url.rpartition(":")[2]
        places = {"127.0.0.1:9400": f"127.0.0.1:{port}", "/run/secrets/statelog/token": str(token)}
        assert _probes(_container(scraped), places) == [0, 0]
        token.with_name("other").write_text("f" * 32, "utf-8")
        places["/run/secrets/statelog/token"] = str(token.with_name("other"))
        assert _probes(_container(scraped), places) == [1, 1]


def _options(words: list[str]) -> set[str]:
    return {word for word in words if word.startswith("--")}


def test_the_command_knows_the_options() -> None:
    """Every option of the unit and of the manifests is one of `statelog materialize`."""
    command = [sys.executable, "-m", "statelog", "materialize", "--help"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "200"})
    known = set(re.findall(r"--[\w-]+", told.stdout))
    unit = re.search(r"^ExecStart=\S+ materialize (.*)$", _UNIT.read_text("utf-8"), re.MULTILINE)
    assert unit is not None
    container = _documents((_KUBERNETES / "base" / "materializer.yaml").read_text("utf-8"))[0]
    args = container["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[0] == "materialize"
    named = (
        _options(unit[1].split())
        | _options(args)
        | _options(_container(_documents(_PATCH.read_text("utf-8"))[0])["args"])
    )
    assert named >= {"--scratch", "--listen", "--token-file"}
    assert named <= known


@pytest.mark.parametrize("path", sorted(_DEPLOY.rglob("statelog.toml")), ids=lambda path: path.parent.name)
def test_a_configuration_has_known_keys(path: Path) -> None:
    """The command reads it, and refuses no key of it."""
    layer = file_layer(path.read_text("utf-8"), str(path))
    assert str(layer.values["root"]).startswith("s3://")


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify` has nothing to say about it, with a program that is there."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze cannot be had here")
    unit = tmp_path / _UNIT.name
    unit.write_text(_UNIT.read_text("utf-8").replace("/opt/statelog/bin/statelog", sys.executable), "utf-8")
    verified = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, check=False, timeout=120)
    assert (verified.returncode, verified.stderr) == (0, "")
