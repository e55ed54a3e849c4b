"""The files of `deploy/` are valid for systemd, Kubernetes and the command itself."""

import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from statelog.cli.materialize import command as materialize
from statelog.log.config import file_layer
from statelog.operate.health import Health, HealthServer, LogHealth
from statelog.operate.listening import listening_at
from tests.support.documents import ROOT, programs

_DEPLOY = ROOT / "deploy"
_KUBERNETES = _DEPLOY / "kubernetes"
_UNIT = _DEPLOY / "systemd" / "statelog-materializer@.service"
_PATCHES = [_KUBERNETES / "scraped" / name for name in ("materializer.yaml", "worker.yaml")]
_MANIFESTS = sorted(
    path for path in _KUBERNETES.rglob("*.yaml") if path.name != "kustomization.yaml" and path not in _PATCHES
)
_VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
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
            _fit(json.dumps(document), version)


@cache
def _fit(document: str, version: str) -> None:
    """Validate an object; several overlays have the same one, and the library reads its schemas for each."""
    validator: Any = pytest.importorskip("kubernetes_validate", reason=_NO_SCHEMAS)
    validator.validate(json.loads(document), version, strict=True)


def _kustomize(folder: Path) -> str:
    for command in (["kubectl", "kustomize"], ["kustomize", "build"]):
        if program := shutil.which(command[0]):
            built = subprocess.run([program, command[1], str(folder)], capture_output=True, text=True, check=False)
            assert built.returncode == 0, built.stderr
            return built.stdout
    pytest.skip("kustomize cannot be had here: install kubectl or kustomize")


@pytest.mark.parametrize("path", _MANIFESTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_manifest_fits_the_schemas(path: Path) -> None:
    """Each object has only fields that Kubernetes knows, in an old version and in the newest."""
    documents = _documents(path.read_text("utf-8"))
    assert documents
    _check(documents)


def test_what_does_not_fit_is_noticed() -> None:
    """An unknown field, or one of a wrong type, is an error, so the tests above can fail."""
    validator: Any = pytest.importorskip("kubernetes_validate", reason=_NO_SCHEMAS)
    for field, value in (("replica", 1), ("replicas", "one")):
        document = _documents((_KUBERNETES / "base" / "materializer.yaml").read_text("utf-8"))[0]
        document["spec"][field] = value
        with pytest.raises(validator.ValidationError):
            validator.validate(document, _OLDEST, strict=True)


@pytest.mark.parametrize("folder", ["base", "example", "all-logs"])
def test_kustomize_builds_what_fits(folder: str) -> None:
    """Base and overlays build with kustomize, and their objects fit the schemas."""
    documents = _documents(_kustomize(_KUBERNETES / folder))
    assert {document["kind"] for document in documents} >= {"ConfigMap", "Deployment", "ServiceAccount"}
    _check(documents)


def _of_kind(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {document["kind"]: document for document in documents}


def _container(workload: dict[str, Any]) -> dict[str, Any]:
    (found,) = workload["spec"]["template"]["spec"]["containers"]
    return dict(found)


def _variables(workload: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry.get("value") for entry in _container(workload)["env"]}


def test_the_example_says_what_it_is_to_say() -> None:
    """The example's log, topic, images, role and configuration arrive where the programs read them."""
    found = _documents(_kustomize(_KUBERNETES / "example"))
    documents = _of_kind(found)
    daemon, worker = documents["Deployment"], documents["StatefulSet"]
    assert daemon["spec"]["replicas"] == 2
    assert _container(daemon)["image"] == f"registry.example.com/statelog:{_VERSION}"
    assert _variables(daemon)["LOG"] == "orders"
    assert (_variables(worker)["LOG"], _variables(worker)["TOPIC"]) == ("orders", "clicks")
    assert "orders-state" in documents["ConfigMap"]["data"]["statelog.toml"]
    assert documents["ServiceAccount"]["metadata"]["annotations"]["eks.amazonaws.com/role-arn"].startswith(
        "arn:aws:iam"
    )
    assert worker["spec"]["serviceName"] == documents["Service"]["metadata"]["name"] == "orders-statelog-worker"
    budgets = {one["metadata"]["name"]: one["spec"] for one in found if one["kind"] == "PodDisruptionBudget"}
    assert budgets["orders-statelog-materializer"]["minAvailable"] == 1
    assert budgets["orders-statelog-worker"]["maxUnavailable"] == 1
    assert worker["spec"]["template"]["spec"]["topologySpreadConstraints"]


def _overlay(folder: Path, source: str, **replaced: str) -> list[dict[str, Any]]:
    """Build an overlay next to the base, with words of its file replaced."""
    if not folder.exists():
        shutil.copytree(_KUBERNETES, folder)
    file = folder / source / "kustomization.yaml"
    text = file.read_text("utf-8")
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    file.write_text(text, "utf-8")
    documents = _documents(_kustomize(file.parent))
    _check(documents)
    return documents


def _selectors(documents: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return all label selectors of pods: workloads, Services, budgets and spreads."""
    found: list[dict[str, str]] = []
    for document in documents:
        spec = document.get("spec", {})
        selector = spec.get("selector", {})
        found += [selector.get("matchLabels", selector)] if selector else []
        spreads = spec.get("template", {}).get("spec", {}).get("topologySpreadConstraints", [])
        found += [one["labelSelector"]["matchLabels"] for one in spreads]
    return found


def _pods(documents: list[dict[str, Any]]) -> list[dict[str, str]]:
    specs = [document.get("spec", {}) for document in documents]
    return [spec["template"]["metadata"]["labels"] for spec in specs if "template" in spec]


def test_overlays_in_one_namespace_leave_each_others_pods_alone(tmp_path: Path) -> None:
    """The selectors of an overlay match its own pods and no other overlay's. No two objects have one name."""
    overlays = [
        _overlay(tmp_path / "a", "example"),
        _overlay(tmp_path / "b", "example", **{"orders-\n": "visits-\n", "instance: orders": "instance: visits"}),
        _overlay(tmp_path / "c", "all-logs"),
    ]
    for mine in overlays:
        for selector in _selectors(mine):
            takes = [[selector.items() <= pod.items() for pod in _pods(other)] for other in overlays]
            assert [any(one) for one in takes] == [other is mine for other in overlays], selector
    names = [(one["kind"], one["metadata"]["name"]) for overlay in overlays for one in overlay]
    assert len(set(names)) == len(names) > 15


def test_one_daemon_rolls_up_all_logs(tmp_path: Path) -> None:
    """The overlay with one daemon has no worker and valid arguments. A log needs no daemon of its own."""
    documents = _of_kind(_documents(_kustomize(_KUBERNETES / "all-logs")))
    assert documents.keys() == {"ConfigMap", "Deployment", "ServiceAccount"}
    args = [
        one.replace("$(LOG)", _variables(documents["Deployment"])["LOG"])
        for one in _container(documents["Deployment"])["args"]
    ]
    context = materialize.make_context("materialize", args[1:])
    assert (context.params["is_all"], context.params["names"]) == (True, ())
    (patch,) = [text for text in programs(ROOT / "docs" / "deploy.md", "yaml") if "$patch: delete" in text]
    shutil.copytree(_KUBERNETES, tmp_path / "kubernetes")
    file = tmp_path / "kubernetes" / "example" / "kustomization.yaml"
    text = file.read_text("utf-8").replace("components:\n  - ../failover\n", "")
    begin, end = (
        text.index("  - patch: |-\n      apiVersion: apps/v1\n      kind: Deployment"),
        text.index("  - patch: |-\n      apiVersion: apps/v1\n      kind: StatefulSet"),
    )
    file.write_text(text[:begin] + patch + text[end:], "utf-8")
    kinds = _of_kind(_documents(_kustomize(file.parent))).keys()
    assert "StatefulSet" in kinds
    assert "Deployment" not in kinds


@pytest.fixture
def scraped(tmp_path: Path) -> list[dict[str, Any]]:
    """Return the example with its metrics opened."""
    return _overlay(tmp_path / "kubernetes", "example", **{"  - ../failover\n": "  - ../failover\n  - ../scraped\n"})


def test_metrics_are_opened_beside_the_probes(scraped: list[dict[str, Any]]) -> None:
    """Each workload has both ports, a Service for its metrics, and its usual probes."""
    plain = _of_kind(_documents(_kustomize(_KUBERNETES / "example")))
    for kind in ("Deployment", "StatefulSet"):
        container, before = _container(_of_kind(scraped)[kind]), _container(plain[kind])
        assert {port["name"]: port["containerPort"] for port in container["ports"]} == {"metrics": 9400, "probes": 9401}
        assert [container[name] for name in _PROBES] == [before[name] for name in _PROBES]
    services = [one for one in scraped if one["kind"] == "Service" and one["spec"].get("ports")]
    assert [port["targetPort"] for one in services for port in one["spec"]["ports"]] == ["metrics", "metrics"]
    assert _variables(_of_kind(scraped)["StatefulSet"])["LISTEN"] == "0.0.0.0:9400"
    given = {"TLS_CERTIFICATE", "TLS_KEY", "TOKEN_FILE", "PROBES"}
    assert given <= _variables(_of_kind(scraped)["StatefulSet"]).keys()


@pytest.mark.parametrize(
    ("health", "codes"),
    [
        (Health(), [200, 200]),
        (Health(logs=[LogHealth(log="orders", not_ready=("it fails",))]), [200, 503]),
        (Health(not_live="it hangs"), [503, 503]),
    ],
)
def test_the_probes_ask_what_they_mean(health: Health, codes: list[int]) -> None:
    """A healthy pod passes both probes, a failing one is live and not ready, and a hanging one neither."""
    documents = _documents((_KUBERNETES / "base" / "materializer.yaml").read_text("utf-8"))
    documents += _documents((_KUBERNETES / "base" / "worker.yaml").read_text("utf-8"))
    probing = listening_at("0.0.0.0:0", is_guarded=True)
    with HealthServer(None, lambda: health, None, probing) as server:
        for document in documents:
            if "template" in document["spec"]:
                assert [_asked(_container(document)[name], server.url) for name in _PROBES] == codes
                (port,) = _container(document)["ports"]
                assert (port["name"], port["containerPort"]) == ("probes", 9401)
                told = [*_container(document).get("args", []), *_variables(document).values()]
                assert "0.0.0.0:9401" in told


_PROBES = ("livenessProbe", "readinessProbe")


def _asked(probe: dict[str, Any], url: str) -> int:
    """Return kubelet's answer to a probe."""
    assert probe["httpGet"]["port"] == "probes"
    with closing(http.client.HTTPConnection("127.0.0.1", int(url.rpartition(":")[2]), timeout=30)) as connection:
        connection.request("GET", probe["httpGet"]["path"])
        return connection.getresponse().status


@pytest.mark.parametrize(
    ("extras", "there", "missing"),
    [
        (None, ("s3fs", "aws-msk-iam-sasl-signer", "prometheus_client"), "gcsfs"),
        ("gcs,web", ("gcsfs", "jinja2"), "s3fs"),
        ("", ("pyarrow",), "s3fs"),
    ],
)
def test_the_image_has_the_extras_that_are_asked_for(
    extras: str | None, there: tuple[str, ...], missing: str, tmp_path: Path
) -> None:
    """The image has the extras for S3, MSK and metrics by default, and others by a build argument."""
    text = (ROOT / "Dockerfile").read_text("utf-8")
    (usual,) = re.findall(r"^ARG EXTRAS=(\S+)$", text, re.MULTILINE)
    (program,) = re.findall(r'^RUN python3 -c "(.*?)" \\$', text, re.MULTILINE | re.DOTALL)
    program = program.replace("\\\n", "").replace("/tmp/", f"{tmp_path}/")
    environment = {**os.environ, "EXTRAS": usual if extras is None else extras}
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, check=True, timeout=60)
    needs = (tmp_path / "needs").read_text("utf-8")
    assert all(re.search(rf"^{one}\b", needs, re.MULTILINE) for one in there)
    assert not re.search(rf"^{missing}\b", needs, re.MULTILINE)


def test_the_policy_for_aws_allows_what_the_roles_need() -> None:
    """The policy allows a materializer and a worker exactly the table's actions, on log, ledger, input and groups."""
    (text,) = programs(ROOT / "docs" / "deploy.md", "json")
    allowed: dict[str, set[str]] = {}
    for statement in json.loads(text)["Statement"]:
        assert statement["Effect"] == "Allow"
        for resource in _listed(statement["Resource"]):
            allowed.setdefault(resource.rpartition(":")[2], set()).update(_listed(statement["Action"]))
    table = (ROOT / "docs" / "security.md").read_text("utf-8").partition("## Rights under IAM")[2].partition("\n## ")[0]
    rows = {row.split("|")[1].strip(): row.split("|")[2:6] for row in table.splitlines() if row.startswith("| ")}

    def actions(cell: str) -> set[str]:
        return {f"kafka-cluster:{one}" for one in re.findall(r"`([A-Z]\w+)`", cell)}

    writer, worker, daemon = rows["writer, coordinator, Spark writing"], rows["worker"], rows["materializer"]
    for topic in ("topic/CLUSTER/UUID/orders", "topic/CLUSTER/UUID/orders.ledger"):
        assert allowed[topic] == actions(writer[0]) | actions(daemon[0])
    assert allowed["topic/CLUSTER/UUID/clicks"] == actions(worker[0])
    for group in ("orders", "statelog-reader", "statelog.orders.materializer"):
        assert allowed[f"group/CLUSTER/UUID/{group}"] == actions(worker[2]) == actions(daemon[2])
    assert allowed["cluster/CLUSTER/UUID"] == actions(worker[3]) | {"kafka-cluster:Connect"}
    assert allowed["orders-state/logs/*"] >= {"s3:GetObject", "s3:PutObject", "s3:DeleteObject"}
    assert allowed["orders-state"] == {"s3:ListBucket"}


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


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
        | _options(_container(_documents(_PATCHES[0].read_text("utf-8"))[0])["args"])
    )
    assert named >= {"--scratch", "--listen", "--probes", "--token-file"}
    assert named <= known


@pytest.mark.parametrize("path", sorted(_DEPLOY.rglob("statelog.toml")), ids=lambda path: path.parent.name)
def test_a_configuration_has_known_keys(path: Path) -> None:
    """The command reads the example configuration without an unknown key."""
    layer = file_layer(path.read_text("utf-8"), str(path))
    assert str(layer.values["root"]).startswith("s3://")


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify` accepts the unit without a complaint, with an existing program."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze cannot be had here")
    unit = tmp_path / _UNIT.name
    unit.write_text(_UNIT.read_text("utf-8").replace("/opt/statelog/bin/statelog", sys.executable), "utf-8")
    verified = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, check=False, timeout=120)
    assert (verified.returncode, verified.stderr) == (0, "")
