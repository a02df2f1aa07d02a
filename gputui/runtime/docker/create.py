"""Builds the body of `POST /containers/create` from a Launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct

from gputui.domain import docker_args
from gputui.domain.cause import Cause, CauseCode
from gputui.domain.container import DEFAULT_ENVIRONMENT, Launch
from gputui.domain.container_options import ContainerOptions
from gputui.domain.errors import RuntimeFault
from gputui.domain.policy.gpus.engine import CDI_KIND
from gputui.domain.settings import RuntimeSettings
from gputui.runtime.accounts import Account, ContainerUser, container_user
from gputui.runtime.docker import create_options
from gputui.runtime.docker.engine import EngineFacts, GpuMode
from gputui.runtime.docker.faults import bad_spec

STORE = "gputui.store"
JOB = "gputui.job"
ATTEMPT = "gputui.attempt"
GPUS = "gputui.gpus"
SUBMITTER = "gputui.submitter"
USER = "user"
_OURS = "gputui."

_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
_GPU_CHOICE = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


class CreateRequest(Struct, frozen=True):
    """Body of a create request, with notes on changes to the job's request."""

    body: dict[str, Any]
    notes: tuple[str, ...] = ()


def create_request(launch: Launch, facts: EngineFacts, settings: RuntimeSettings) -> CreateRequest:
    """Return the create request for an attempt on this engine; raises RuntimeFault."""
    if not launch.spec.image:
        raise bad_spec("image", "a job without an image runs as a host process, not in Docker")
    options = launch.spec.options
    for name, api, docker in _NEEDED_API:
        if getattr(options, name) and facts.api and facts.api < api:
            raise bad_spec(f"--{name.replace('_', '-')}", f"{facts.name} does not know it: it needs Docker {docker}")
    cpus, cpu_notes = _cpus(options, facts)
    account = None if launch.run_as is None else container_user(options.user, launch.run_as, options.group_add)
    env, env_notes = _env(launch, facts, account.account if account else None)
    host = _given(_host(launch, facts, settings) | {"NanoCpus": cpus}) | create_options.unmasked(options)
    if account is not None:
        host |= _given({"GroupAdd": list(account.groups)}) | _powerless(account, host)
    body: dict[str, Any] = {
        "Image": launch.spec.image,
        "Env": env,
        "Labels": _labels(launch),
        "Volumes": {path: {} for path in options.volumes if create_options.is_anonymous(path)},
        "HostConfig": host,
        **_given({"Cmd": list(launch.spec.command), "WorkingDir": options.workdir}),
        **_given({"User": account.user if account else options.user}),
        **_given(create_options.config_fields(options)),
        **_given({"NetworkingConfig": create_options.networking(options)}),
    }
    if (interactive := launch.spec.interactive) is not None:
        # as docker run does: the input ends with the first client, unless it is a terminal
        stdin = interactive.stdin
        body |= {"Tty": interactive.tty, "OpenStdin": stdin, "StdinOnce": stdin, "AttachStdin": stdin}
        body |= {"AttachStdout": True, "AttachStderr": True}
    if options.entrypoint is not None:
        body["Entrypoint"] = [options.entrypoint]
    return CreateRequest(body, (*cpu_notes, *env_notes))


_NEEDED_API: tuple[tuple[str, tuple[int, int], str], ...] = (
    ("cgroupns", (1, 41), "20.10"),
    ("platform", (1, 41), "20.10"),
    ("annotation", (1, 43), "24"),
    ("health_start_interval", (1, 44), "25"),
)
"""Options that older engines ignore without a word, the API version that has them, and its engine."""


def _host(launch: Launch, facts: EngineFacts, settings: RuntimeSettings) -> dict[str, Any]:
    options = launch.spec.options
    return create_options.host_fields(options) | {
        # as PID 1 a process ignores SIGTERM unless it handles it; below an init it ends
        "Init": None if options.no_init else True,
        # the exit code would be lost with the container if the event were missed
        "AutoRemove": False,
        "LogConfig": _log_config(options, settings),
        "PidsLimit": _pids_limit(options, settings),
        "Ulimits": [create_options.ulimit(text) for text in options.ulimits],
        "Binds": [create_options.bind(text) for text in options.volumes if not create_options.is_anonymous(text)],
        "Mounts": [
            *(create_options.mount(text) for text in options.mounts),
            *(create_options.held_mount(mount) for mount in launch.held),
        ],
        "DeviceRequests": [*_device_requests(launch, facts), *create_options.other_devices(options)],
    }


def _log_config(options: ContainerOptions, settings: RuntimeSettings) -> dict[str, Any]:
    """Return the log configuration: the site's rotation, unless the job sets its own."""
    rotation = {"max-size": str(settings.log_max_size), "max-file": str(settings.log_max_files)}
    own = {name: value for name, _, value in (text.partition("=") for text in options.log_opt)}
    return {"Type": options.log_driver or "json-file", "Config": rotation | own}


def _pids_limit(options: ContainerOptions, settings: RuntimeSettings) -> int | None:
    """Return the limit of processes, at most the site's."""
    wanted, most = options.pids_limit, settings.pids_limit
    if most is None or wanted is None:
        return most if wanted is None else wanted
    return most if wanted <= 0 else min(wanted, most)


def _device_requests(launch: Launch, facts: EngineFacts) -> list[dict[str, Any]]:
    """Return the request for GPUs by UUID, never by count: the engine would choose other GPUs."""
    if not launch.gpus:
        return []
    if facts.gpu_mode is GpuMode.CDI:
        return [{"Driver": "cdi", "DeviceIDs": [f"{CDI_KIND}={name}" for name in launch.gpu_names or launch.gpus]}]
    if facts.gpu_mode is GpuMode.NONE:
        cause = Cause(CauseCode.GPU_SETUP_FAILED, f"{facts.name} silently ignores requests for GPUs")
        raise RuntimeFault(cause, hint="run `gputui doctor`")
    request = launch.spec.gpus
    return [
        {
            "Driver": request.driver or "",
            "DeviceIDs": list(launch.gpus),
            # as docker's own --gpus: the engine sets NVIDIA_DRIVER_CAPABILITIES to whatever else is listed
            "Capabilities": [[*_capabilities(launch), "gpu"]],
            "Options": dict(request.driver_options),
        }
    ]


def _capabilities(launch: Launch) -> tuple[str, ...]:
    """Return the driver capabilities to request; none if the job's environment names them."""
    return () if _CAPABILITIES in dict(launch.spec.options.env) else launch.spec.gpus.capabilities


def _powerless(user: ContainerUser, host: dict[str, Any]) -> dict[str, Any]:
    """Return what keeps a submitter's container from more rights than the account has, as by setuid programs."""
    if user.account is None:
        return {}
    security = {"SecurityOpt": [*host.get("SecurityOpt", ()), "no-new-privileges"]}
    return security | ({"CapDrop": ["ALL"]} if user.account.uid else {})


def _home(launch: Launch, account: Account) -> str:
    """Return the account's home directory if the job has it mounted: images have none for this user, and no `/`."""
    options = launch.spec.options
    targets = [text.partition(":")[2].partition(":")[0] for text in options.volumes]
    targets += [docker_args.mount(text).target for text in options.mounts]
    targets += [held.target for held in launch.held]
    is_mounted = any(target and Path(account.home).is_relative_to(target) for target in targets)
    return account.home if is_mounted else "/tmp"


def _env(launch: Launch, facts: EngineFacts, account: Account | None) -> tuple[list[str], tuple[str, ...]]:
    """Return the job's environment, with gputui's variables and without its own choice of GPUs, and notes."""
    if account is not None and account.uid:
        given = {"USER": account.name, "LOGNAME": account.name, "HOME": _home(launch, account)}
    else:
        given = {}
    given |= DEFAULT_ENVIRONMENT
    given |= {key: value for key, value in launch.spec.options.env if key not in _GPU_CHOICE}
    dropped = [key for key, _ in launch.spec.options.env if key in _GPU_CHOICE]
    notes = tuple(f"{key} was left out: the scheduler chooses the GPUs" for key in dict.fromkeys(dropped))
    if launch.gpus and launch.spec.gpus.capabilities and not _capabilities(launch):
        notes += (f"the capabilities of --gpus were left out: {_CAPABILITIES} of the job names others",)
    ours = {
        "GPUTUI_ATTEMPT": launch.tag,
        "GPUTUI_JOB_ID": str(launch.job_id),
        "GPUTUI_GPUS": str(len(launch.gpus)),
    }
    if launch.promised:
        ours["GPUTUI_GPU_MEMORY"] = str(launch.promised)
    if launch.array_index is not None:
        ours["GPUTUI_ARRAY_INDEX"] = str(launch.array_index)
    if not launch.gpus or facts.gpu_mode is GpuMode.CDI:
        # NVIDIA's images set `all`, which with NVIDIA's runtime as default gives every GPU to a job without GPUs
        ours["NVIDIA_VISIBLE_DEVICES"] = "void"
    return [f"{key}={value}" for key, value in (given | ours).items()], notes


def _labels(launch: Launch) -> dict[str, str]:
    own = {key: value for key, value in launch.spec.options.labels if not key.startswith(_OURS)}
    tenant = {USER: launch.spec.tenant} if launch.spec.tenant else {}
    identity = {
        STORE: launch.store_id,
        JOB: str(launch.job_id),
        ATTEMPT: str(launch.attempt),
        GPUS: ",".join(launch.gpus),
    }
    if launch.submitter is not None:
        identity[SUBMITTER] = str(launch.submitter)
    return own | tenant | identity


def _cpus(options: ContainerOptions, facts: EngineFacts) -> tuple[int | None, tuple[str, ...]]:
    """Return CPUs in billionths, and notes; the engine refuses more than it has."""
    if options.cpus is None:
        return None, ()
    if facts.cpus and options.cpus > facts.cpus:
        return facts.cpus * 10**9, (f"--cpus {options.cpus:g} was lowered to the host's {facts.cpus}",)
    return round(options.cpus * 1e9), ()


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that are set."""
    return {key: value for key, value in fields.items() if value is not None and value != []}
