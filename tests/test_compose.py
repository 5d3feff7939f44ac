"""docker-compose.yml and docker/Dockerfile, as far as they can be checked without an engine."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import mtserve_backend

ROOT = Path(mtserve_backend.__file__).parent.parent
FILE = ROOT / "docker-compose.yml"
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()


@pytest.fixture
def services() -> dict[str, Any]:
    document = yaml.safe_load(FILE.read_text())
    assert {key for key in document if not key.startswith("x-")} == {"services"}
    found: dict[str, Any] = document["services"]
    return found


def test_one_service_a_profile(services: dict[str, Any]) -> None:
    assert {name: service["profiles"] for name, service in services.items()} == {
        "triton-cpu": ["cpu"],
        "triton-gpu": ["gpu"],
    }


def test_paths_exist(services: dict[str, Any]) -> None:
    for service in services.values():
        assert (ROOT / service["build"]["dockerfile"]).is_file()
        for volume in service["volumes"]:
            source, target, mode = volume.split(":")
            assert (ROOT / source).is_dir()
            assert mode == "ro"
            assert target.startswith("/")
    for words in re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.MULTILINE):
        for source in words.split():
            assert (ROOT / source).exists(), source


def test_the_package_is_mounted_where_the_stub_imports_from(services: dict[str, Any]) -> None:
    for service in services.values():
        assert f"./mtserve_backend:{service['working_dir']}/mtserve_backend:ro" in service["volumes"]


def test_build_arguments_are_declared(services: dict[str, Any]) -> None:
    declared = set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE))
    for service in services.values():
        assert set(service["build"]["args"]) == declared


def test_the_gpu_service_reserves_a_gpu_and_reads_its_configuration(services: dict[str, Any]) -> None:
    (device,) = services["triton-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    (option,) = set(services["triton-gpu"]["command"]) - set(services["triton-cpu"]["command"])
    assert option == "--model-config-name=gpu"
    assert (ROOT / "model_repository" / "hstu" / "configs" / "gpu.pbtxt").is_file()


def test_a_stop_is_given_the_time_it_takes(services: dict[str, Any]) -> None:
    for service in services.values():
        (timeout,) = re.findall(r"--exit-timeout-secs=(\d+)", " ".join(service["command"]))
        assert int(service["stop_grace_period"].removesuffix("s")) > int(timeout)


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_compose_accepts_it(profile: str) -> None:
    docker = shutil.which("docker")
    if not docker or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode != 0:
        pytest.skip("docker compose is not installed")
    words = [docker, "compose", "--file", str(FILE), "--profile", profile, "config", "--quiet"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
