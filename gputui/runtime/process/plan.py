"""Plan file of a launch: instructions for the wrapper. Container-only options are refused."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable

from msgspec.structs import asdict

from gputui.domain.container import DEFAULT_ENVIRONMENT, Launch
from gputui.runtime.accounts import Account, account_of, refused

_OF_HOSTS = frozenset({"env", "workdir", "user", "cpus", "cpu_shares", "memory", "ulimits", "labels"})
"""Options that apply to a host process; the others are for containers."""
_OPTIONS = {"volumes": "--volume", "mounts": "--mount"}
_PATH = "/usr/local/bin:/usr/bin:/bin"
_ROOT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def check(launch: Launch) -> None:
    """Raise BAD_SPEC for container-only options."""
    spec = launch.spec
    if spec.image is not None:
        raise refused("the job has an image, but this runtime runs commands of the host, without containers")
    if not spec.command or not spec.command[0]:
        raise refused("a host job needs a command")
    for field, value in asdict(spec.options).items():
        if field not in _OF_HOSTS and value not in (None, ()) and value is not False:
            option = _OPTIONS.get(field) or "--" + field.replace("_", "-")
            raise refused(f"{option} works only for containers, not for host jobs")


def plan_of(launch: Launch, *, log_limit: int) -> bytes:
    """Return the plan: `key=value` records, each ended by NUL; raises BAD_SPEC."""
    options = launch.spec.options
    account = account_of(options.user, launch.run_as)
    env = environment(launch, account)
    records = [("arg", each) for each in launch.spec.command]
    records += [("env", f"{name}={value}") for name, value in env.items()]
    if (inherited := launch.spec.inherited) is not None:
        records += [("umask", str(inherited.umask & 0o777))]
        limits = ((_known(name), soft) for name, soft in inherited.limits)
        records += [("soft", f"{which}:{soft}") for which, soft in limits if which is not None]
    records += [("rlimit", _rlimit(each, is_bound=launch.box is not None)) for each in options.ulimits]
    records += [("cwd", options.workdir or env.get("HOME") or "/"), ("log_limit", str(log_limit))]
    records += _session(launch, account)
    if account.is_other:
        records += [("uid", str(account.uid)), ("gid", str(account.gid))]
        records += [("group", str(group)) for group in account.groups]
    return encode(records)


def _session(launch: Launch, account: Account) -> list[tuple[str, str]]:
    """Return the records of an interactive job; empty for others."""
    interactive = launch.spec.interactive
    if interactive is None:
        return []
    owner = account.uid if launch.run_as is None else launch.run_as
    records = [("session", "tty" if interactive.tty else "pipes"), ("session_uid", str(owner))]
    return records + ([("session_input", "1")] if interactive.stdin else [])


def encode(records: Iterable[tuple[str, str]]) -> bytes:
    """Return the records in the wrapper's format."""
    return b"".join(_record(key, value) for key, value in records)


def environment(launch: Launch, account: Account) -> dict[str, str]:
    """Return the job's environment: the account's, the submitter's variables, and gputui's.

    Nothing of the scheduler's own environment is included.
    """
    env = {"HOME": account.home, "USER": account.name, "LOGNAME": account.name, "SHELL": account.shell}
    env["PATH"] = _PATH if account.uid else _ROOT_PATH
    for name, _ in launch.spec.options.env:
        if not name or "=" in name:
            raise refused(f"{name!a} cannot be the name of an environment variable")
    env |= DEFAULT_ENVIRONMENT | dict(launch.spec.options.env)
    visible = ",".join(launch.gpus)
    env |= {"CUDA_VISIBLE_DEVICES": visible, "NVIDIA_VISIBLE_DEVICES": visible or "void"}
    env |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "GPUTUI_ATTEMPT": launch.tag}
    env |= {"GPUTUI_JOB_ID": str(launch.job_id), "GPUTUI_GPUS": str(len(launch.gpus))}
    if launch.promised:
        env["GPUTUI_GPU_MEMORY"] = str(launch.promised)
    if launch.array_index is not None:
        env["GPUTUI_ARRAY_INDEX"] = str(launch.array_index)
    return env


def _rlimit(text: str, *, is_bound: bool) -> str:
    """Return the record of a `--ulimit`; the scheduler's own hard limits bound those of plain users."""
    name, _, limits = text.partition("=")
    soft, _, hard = limits.partition(":")
    which = _known(name.strip())
    numbers = [_limit(each) for each in (soft, hard or soft)]
    if which is None or None in numbers:
        raise refused(f"--ulimit {text!a} is not NAME=SOFT[:HARD] of a limit this host knows")
    most = resource.getrlimit(which)[1]
    if is_bound and any(number > most or number < 0 for number in numbers if number is not None) and most >= 0:
        raise refused(f"--ulimit {text!a} is more than {most}, the most that the scheduler itself may have")
    return f"{which}:{numbers[0]}:{numbers[1]}"


def _known(name: str) -> int | None:
    """Return the number of the limit; None if this host does not know it."""
    which = getattr(resource, f"RLIMIT_{name.upper()}", None)
    return which if isinstance(which, int) else None


def _limit(text: str) -> int | None:
    if text.strip() in {"-1", "unlimited"}:
        return resource.RLIM_INFINITY
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _record(key: str, value: str) -> bytes:
    try:
        encoded = os.fsencode(value)
    except UnicodeEncodeError:
        encoded = b"\0"
    if b"\0" in encoded:
        raise refused(f"{value[:40]!a} holds characters that no command line or environment can")
    return key.encode() + b"=" + encoded + b"\0"
