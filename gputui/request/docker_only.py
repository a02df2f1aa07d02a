"""Options of `docker run` that no job has: those taken with a word on what they mean here, and those refused."""

from __future__ import annotations

from types import MappingProxyType

_DETACHED = "every job runs in the background"
_KEPT = "output is kept: gputui logs -f ID follows it"
_NO_INPUT = "a job has no input"
_NO_TERMINAL = f"a job has no terminal; {_KEPT}"
SILENT = ""

TAKEN = MappingProxyType(
    {
        "-d": _DETACHED,
        "--detach": _DETACHED,
        "--rm": "a job's container is removed once its log is saved",
        "--restart": "gputui restarts no container; --retries N runs a failed job again",
        "-i": _NO_INPUT,
        "--interactive": _NO_INPUT,
        "-t": _NO_TERMINAL,
        "--tty": _NO_TERMINAL,
        "-a": _KEPT,
        "--attach": _KEPT,
        "--detach-keys": _NO_TERMINAL,
        "--sig-proxy": "gputui cancel ID ends a job",
        "--init": SILENT,
        "-q": SILENT,
        "--quiet": SILENT,
        "--disable-content-trust": SILENT,
    }
)
"""Options that change nothing about a job, each with what it means here; empty: as docker has it."""

ANYHOW = frozenset({"-d", "--detach", "--rm"})
"""Of these, the ones that every job does anyhow: nothing of the line is lost."""

_WINDOWS = "Windows containers alone have it"
_SLURM = "sbatch's option"

REFUSED = MappingProxyType(
    {
        "--cidfile": "gputui show ID --json names the container",
        "--kernel-memory": "engines have given it up: --memory bounds all memory",
        "--use-api-socket": "write -v /var/run/docker.sock:/var/run/docker.sock",
        "--isolation": _WINDOWS,
        "--cpu-count": f"{_WINDOWS}: write --cpus N",
        "--cpu-percent": f"{_WINDOWS}: write --cpus N",
        "--io-maxbandwidth": f"{_WINDOWS}: write --device-write-bps",
        "--io-maxiops": f"{_WINDOWS}: write --device-write-iops",
        "--env-from-file": "write --env-file FILE",
        "--time": f"{_SLURM}: write --time-limit DURATION",
        "--gres": f"{_SLURM}: write --gpus N",
        "--dependency": f"{_SLURM}: write --after ID or --after-any ID",
    }
)
"""Options that cannot be honoured, each with what to write instead."""

WITHOUT_VALUE = frozenset(
    {
        *("-d", "--detach", "--rm", "-i", "--interactive", "-t", "--tty", "--sig-proxy", "--init"),
        *("-q", "--quiet", "--disable-content-trust", "--use-api-socket"),
    }
)
"""Of all these, the flags."""
