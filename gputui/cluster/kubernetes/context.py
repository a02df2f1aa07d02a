"""The kubeconfig and its current context, read without Kubernetes' client: to name a directory, not to connect."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path

_CURRENT = re.compile(r"""["']?current-context["']?:\s*["']?([^"'\s,}]+)""")
IN_CLUSTER = "in-cluster"
"""Name of the place of a pod that reaches the server of its own cluster."""


def kubeconfig_of(environ: Mapping[str, str]) -> str:
    """Return the path of the kubeconfig, or several with colons."""
    return environ.get("KUBECONFIG") or str(Path(environ.get("HOME") or Path.home()) / ".kube" / "config")


def context_in(environ: Mapping[str, str]) -> str:
    """Return the current context; that of a pod without a kubeconfig."""
    for part in kubeconfig_of(environ).split(":"):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if match := _CURRENT.search(Path(part).read_text(encoding="utf-8")):
                return match[1]
    return IN_CLUSTER
