"""tritonserver's command line: the options, and why those that are not obvious."""

from pathlib import Path

_NVIDIA_DEVICE = Path("/dev/nvidiactl")


def tritonserver_command(
    server: Path,
    repository: Path,
    backends: Path,
    *,
    ports: dict[str, int],
    address: str,
    shm_prefix: str,
    exit_timeout: int,
    log_verbose: int = 0,
    model_config_name: str = "",
) -> list[str]:
    """The words of the command."""
    command = [
        str(server),
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        # Told apart from other servers', so that what a dead server leaves in /dev/shm can be removed.
        f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
        f"--exit-timeout-secs={exit_timeout}",
        f"--log-verbose={log_verbose}",
        # Configurations here are complete; completing them starts a second stub process per model, which
        # imports torch once more: a second of every start.
        "--disable-auto-complete-config",
    ]
    for service, port in ports.items():
        command += [f"--{service}-port={port}", f"--{service}-address={address}"]
    if model_config_name:
        command.append(f"--model-config-name={model_config_name}")
    if not _NVIDIA_DEVICE.exists():  # spares a machine without a GPU three warnings about drivers
        command += ["--allow-gpu-metrics=false", "--pinned-memory-pool-byte-size=0"]
    return command
