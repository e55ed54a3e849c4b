"""The files of `deploy/` are what systemd, Kubernetes and the command itself take."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from statelog.storage.config import file_layer
from tests.support.documents import ROOT

_DEPLOY = ROOT / "deploy"
_KUBERNETES = _DEPLOY / "kubernetes"
_UNIT = _DEPLOY / "systemd" / "statelog-materializer@.service"
_MANIFESTS = sorted(path for path in _KUBERNETES.rglob("*.yaml") if path.name != "kustomization.yaml")
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
    named = _options(unit[1].split()) | _options(args)
    assert "--scratch" in named
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
