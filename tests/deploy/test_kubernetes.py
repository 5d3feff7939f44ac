"""deploy/kubernetes against the API's own schemas, strictly, and against the files it must agree with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import mtserve_backend

DEPLOY = Path(mtserve_backend.__file__).parent.parent / "deploy"
FILES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
# ordinals of a StatefulSet are stable since 1.31.
VERSIONS = ("1.31", kubernetes_validate.latest_version())
Resource = dict[str, Any]


def resources() -> list[Resource]:
    return [resource for file in FILES for resource in yaml.safe_load_all(file.read_text())]


def only(kind: str, name: str) -> Resource:
    (found,) = [r for r in resources() if r["kind"] == kind and r["metadata"]["name"] == name]
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_the_api_accepts_every_resource(version: str) -> None:
    assert {file.name for file in FILES} == {"triton.yaml", "haproxy.yaml"}
    for resource in resources():
        kubernetes_validate.validate(resource, version, strict=True)


def test_a_wrong_field_would_be_found() -> None:
    wrong = only("StatefulSet", "triton")
    wrong["spec"]["replica"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


def test_selectors_find_the_pods() -> None:
    labels = {
        r["metadata"]["name"]: r["spec"]["template"]["metadata"]["labels"]
        for r in resources()
        if "template" in r["spec"]
    }
    assert set(labels) == {"triton", "haproxy"}
    for resource in resources():
        spec = resource["spec"]
        chosen = [spec.get("selector"), spec.get("podSelector")]
        for selector in filter(None, chosen):
            wanted = selector.get("matchLabels", selector)
            assert any(wanted.items() <= pod.items() for pod in labels.values()), resource["metadata"]


def test_one_gpu_a_pod_shared_memory_and_a_model_that_is_asked() -> None:
    pod = only("StatefulSet", "triton")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
    assert set(mounts.values()) == set(volumes)
    for probe in ("readinessProbe", "livenessProbe"):
        assert "mtserve_backend.probe" in container[probe]["exec"]["command"]
    (exit_timeout,) = [int(word.rpartition("=")[2]) for word in container["args"] if "exit-timeout" in word]
    (_, wait) = container["lifecycle"]["preStop"]["exec"]["command"]
    assert pod["terminationGracePeriodSeconds"] > exit_timeout + int(wait)


def test_pods_have_the_names_that_haproxy_knows() -> None:
    spec = only("StatefulSet", "triton")["spec"]
    first = spec["ordinals"]["start"]
    pods = {f"triton-{number}" for number in range(first, first + spec["replicas"])}
    text = (DEPLOY / "haproxy" / "haproxy.cfg").read_text()
    assert set(re.findall(r'^    server (\S+) "\1\$\{MTSERVE_DOMAIN\}:8001"', text, re.MULTILINE)) == pods
    (container,) = only("Deployment", "haproxy")["spec"]["template"]["spec"]["containers"]
    domain = {variable["name"]: variable["value"] for variable in container["env"]}["MTSERVE_DOMAIN"]
    assert domain.startswith(f".{spec['serviceName']}.")
    assert only("Service", spec["serviceName"])["spec"]["clusterIP"] == "None"


def test_every_server_has_one_disruption_at_a_time() -> None:
    assert only("PodDisruptionBudget", "triton")["spec"]["maxUnavailable"] == 1
