"""docker-compose.yml, .env.example and docker/Dockerfile, as far as they can be checked without an engine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import mtserve_backend
from perf.debian import DebianError, unpacked

ROOT = Path(mtserve_backend.__file__).parent.parent
FILE = ROOT / "docker-compose.yml"
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
TRITONS = ("triton-cpu", "triton-gpu")
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


def document() -> dict[str, Any]:
    """The file, its variables replaced by their defaults."""
    found: dict[str, Any] = yaml.safe_load(VARIABLE.sub(lambda match: match[2], FILE.read_text()))
    return found


@pytest.fixture
def services() -> dict[str, Any]:
    found: dict[str, Any] = document()["services"]
    return found


@pytest.fixture
def tritons(services: dict[str, Any]) -> list[dict[str, Any]]:
    return [services[name] for name in TRITONS]


def test_every_profile_has_one_triton_and_all_that_stands_beside_it(services: dict[str, Any]) -> None:
    profiles = {name: set(service["profiles"]) for name, service in services.items()}
    both = {name: {"cpu", "gpu"} for name in ("haproxy", "prometheus", "grafana")}
    assert profiles == {"triton-cpu": {"cpu"}, "triton-gpu": {"gpu"}} | both


def test_paths_exist_and_are_read_only(services: dict[str, Any]) -> None:
    named = set(document()["volumes"])
    for service in services.values():
        for volume in service["volumes"]:
            source, target, *mode = volume.split(":")
            assert target.startswith("/")
            if source in named:
                assert mode == []
                continue
            assert (ROOT / source).exists(), source
            assert mode == ["ro"], volume
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).is_file()
    for words in re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.MULTILINE):
        for source in words.split():
            assert (ROOT / source).exists(), source


def test_every_service_is_hardened_and_checked(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["healthcheck"]["test"][0] == "CMD", name


def test_only_haproxy_is_open_to_others(services: dict[str, Any]) -> None:
    for name, service in services.items():
        open_ports = [port for port in service.get("ports", []) if not port.startswith("127.0.0.1:")]
        assert bool(open_ports) == (name == "haproxy"), open_ports
    inside = {port.rpartition(":")[2] for port in services["haproxy"]["ports"]}
    binds = set(re.findall(r"^    bind :(\d+)", (ROOT / "deploy/haproxy/haproxy.cfg").read_text(), re.MULTILINE))
    assert inside == binds


def test_names_are_those_of_the_other_files(tritons: list[dict[str, Any]]) -> None:
    haproxy = (ROOT / "deploy/haproxy/haproxy.cfg").read_text()
    scraped = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    for triton in tritons:
        (alias,) = triton["networks"]["default"]["aliases"]
        assert f'"{alias}${{MTSERVE_DOMAIN}}:8001"' in haproxy
        assert scraped[0]["static_configs"] == [{"targets": [f"{alias}:8002"]}]


def test_the_package_is_mounted_where_the_stub_imports_from(tritons: list[dict[str, Any]]) -> None:
    for service in tritons:
        assert f"./mtserve_backend:{service['working_dir']}/mtserve_backend:ro" in service["volumes"]


def test_build_arguments_are_declared(tritons: list[dict[str, Any]]) -> None:
    declared = set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE))
    for service in tritons:
        assert set(service["build"]["args"]) == declared


def test_the_gpu_service_reserves_a_gpu_and_reads_its_configuration(services: dict[str, Any]) -> None:
    (device,) = services["triton-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    (option,) = set(services["triton-gpu"]["command"]) - set(services["triton-cpu"]["command"])
    assert option == "--model-config-name=gpu"
    assert (ROOT / "model_repository" / "hstu" / "configs" / "gpu.pbtxt").is_file()


def test_a_stop_is_given_the_time_it_takes(tritons: list[dict[str, Any]]) -> None:
    for service in tritons:
        (timeout,) = re.findall(r"--exit-timeout-secs=(\d+)", " ".join(service["command"]))
        assert int(service["stop_grace_period"].removesuffix("s")) > int(timeout)


def test_the_example_environment_has_every_variable_with_its_default() -> None:
    example = dict(re.findall(r"^(\w+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert example == dict(VARIABLE.findall(FILE.read_text()))


def test_it_follows_the_compose_specification() -> None:
    """Its JSON schema, as Debian's package of docker-compose has it."""
    try:
        schema = unpacked("docker-compose", "usr/lib/python3/dist-packages/compose/config/compose_spec.json")
    except DebianError as error:
        pytest.skip(f"no schema of the compose specification: {error}")
    validator = jsonschema.Draft7Validator(json.loads(schema.read_text()))
    assert [error.message for error in validator.iter_errors(document())] == []
    wrong = document()
    wrong["services"]["haproxy"]["imagee"] = "haproxy"
    assert list(validator.iter_errors(wrong))


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_compose_accepts_it(profile: str) -> None:
    docker = shutil.which("docker")
    if not docker or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode != 0:
        pytest.skip("docker compose is not installed")
    words = [docker, "compose", "--file", str(FILE), "--profile", profile, "config", "--quiet"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
