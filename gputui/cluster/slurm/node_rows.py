"""Nodes as `scontrol show nodes` lists them."""

from __future__ import annotations

import re

from msgspec import Struct

from gputui.cluster.slurm import texts

_RECORD = re.compile(r"^(?=NodeName=)", re.MULTILINE)
_REASON = re.compile(r"\sReason=(.*?)\s\[([^\s\[\]@]+)@(\d+|Unknown)\]", re.DOTALL)


class NodeRow(Struct, frozen=True):
    """A node."""

    name: str
    states: tuple[str, ...]
    """Its state and flags, without `*` and the like: `IDLE`, `DRAIN`."""
    gpus: tuple[str, ...] = ()
    """Models of its GPUs by index; empty words where Slurm knows none."""
    used: tuple[int, ...] = ()
    """Indices of the allocated ones, also of those that jobs share by shards or MPS."""
    used_count: int = 0
    """Number of the allocated ones, also where Slurm does not tell which."""
    reason: str = ""
    reason_by: str = ""
    reason_at: int | None = None
    """Reason of its state by an administrator or Slurm, with the second since 1970."""


def parse(output: str) -> list[NodeRow]:
    """Return the nodes in the output of `scontrol -d -o show nodes`."""
    return [row for record in _RECORD.split(output) if (row := _row(record)) is not None]


def _row(record: str) -> NodeRow | None:
    head, _, _ = record.partition(" Reason=")
    name, state = _value(head, "NodeName"), _value(head, "State")
    if not name or not state:
        return None
    models = [model for model, count, _ in texts.gpu_lists(_value(head, "Gres")) for _ in range(min(count, 1024))]
    used = texts.gpu_lists(_value(head, "GresUsed"))
    whole = [index for _, _, indices in used for index in indices]
    shared = [index for index in texts.shared_gpus(_value(head, "GresUsed")) if index not in whole]
    has_used = "GresUsed=" in head
    reason = _REASON.search(record)
    return NodeRow(
        name,
        tuple(flag.strip("*~#!%$@^-") for flag in state.split("+")) + (("NOT_RESPONDING",) if "*" in state else ()),
        tuple(models),
        tuple(index for index in (*whole, *shared) if index < len(models)),
        sum(count for _, count, _ in used) + len(shared) if has_used else 0,
        " ".join(reason[1].split()) if reason else "",
        reason[2] if reason else "",
        int(reason[3]) if reason and reason[3].isdigit() else None,
    )


def _value(text: str, name: str) -> str:
    match = re.search(rf"(?:^|\s){name}=(\S*)", text)
    return match[1] if match else ""
