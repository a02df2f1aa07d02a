"""Writes the generated parts of docs/cluster.md: what each engine can do, and the options of jobs that it lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import wrap

from gputui.cluster.kubernetes.site import CALLS, KubeSite
from gputui.cluster.kubernetes.site import caps_of as kubernetes_caps_of
from gputui.cluster.slurm.site import SlurmSite, caps_of
from gputui.domain.cluster import Capability, Caps

BEGIN, END = "<!-- capabilities -->", "<!-- end -->"
OPTIONS, OPTIONS_END = "<!-- options -->", "<!-- end of options -->"
FUNCTIONS: Mapping[Capability, str] = {
    Capability.ARRAYS: "arrays and sweeps: `submit --array`, `--sweep`",
    Capability.DEPENDENCIES: "dependencies: `submit --after`, `--after-any`",
    Capability.TEST_ONLY: "forecast before a submission: `submit --dry-run`, the form",
    Capability.WHAT_IF: "forecast after a change: other `--dry-run`, the what-if panel, the timeline",
    Capability.HOLD: "`hold`, `release`, `submit --hold`",
    Capability.REQUEUE: "`requeue`",
    Capability.LOWER_PRIORITY: "lower a priority: `priority ID -N`",
    Capability.RAISE_PRIORITY: "raise a priority: `priority ID +N`",
    Capability.TOP: "head of the queue: `priority ID top`",
    Capability.MOVE: "a place beside another job (`J`, `K` in the console)",
    Capability.EXTEND: "time limit of waiting and running jobs: `edit --time-limit`",
    Capability.EDIT: "other changes of a waiting job: `edit`",
    Capability.SIGNAL: "`signal`",
    Capability.SUSPEND: "`suspend`, `unsuspend`",
    Capability.DRAIN_NODE: "nodes: `drain`, `resume`",
    Capability.DRAIN_GPU: "single GPUs: `drain`, `resume`",
    Capability.PAUSE: "`pause`, `unpause`",
    Capability.RESERVE: "`reserve`",
    Capability.RECURRING: "recurring jobs: `cron`",
    Capability.GPU_IDS: "the GPUs of each job: `queue`, `gpus`",
    Capability.LIVE_LOG: "output of running jobs: `logs -f`, the log pane",
    Capability.INSIDE: "commands and shells in jobs, and their processes: `exec`, the console's `x` and `X`",
    Capability.STREAMS: "jobs with a terminal or input: `run -it`, `attach`",
    Capability.USERS: "users have rights of their own",
    Capability.HISTORY: "ended jobs: `history`, `report`",
}
"""Functions that people see, by capability, in the order of the table."""


def updated(text: str) -> str:
    """Return the document with its generated parts up to date."""
    for begin, end, lines in ((BEGIN, END, table()), (OPTIONS, OPTIONS_END, options())):
        before, _, rest = text.partition(begin)
        text = "".join((before, begin, "\n\n", "\n".join(lines), "\n\n", end, rest.partition(end)[2]))
    return text


def options() -> Iterator[str]:
    """Yield an entry for each engine: the options that it lacks, those with one reason together."""
    for caps in {caps.engine: caps for caps in _engines().values()}.values():
        by_reason: dict[str, list[str]] = {}
        for name, why in caps.options.items():
            by_reason.setdefault(why, []).append(f"`--{name.replace('_', '-')}`")
        told = "; ".join(f"{', '.join(names)} ({why})" for why, names in by_reason.items())
        yield from wrap(f"- {caps.engine}: {told}.", 130, subsequent_indent="  ", break_on_hyphens=False)


def table() -> Iterator[str]:
    """Yield the rows of the table, one for each capability."""
    engines = _engines()
    yield f"| function | {' | '.join(engines)} |"
    yield "|---" * (len(engines) + 1) + "|"
    for capability in Capability:
        assert capability in FUNCTIONS, f"{capability} has no words"
    for capability, words in FUNCTIONS.items():
        told: dict[str, None] = {}
        cells = [_words(caps, capability, told) for caps in engines.values()]
        yield f"| {words} | {' | '.join(cells)} |"


def _engines() -> dict[str, Caps]:
    """Return the capabilities of each engine, for users and for operators."""
    return {
        "Slurm, user": caps_of(SlurmSite(user="user", uid=1000, slurm_user="slurm")),
        "Slurm, operator": caps_of(SlurmSite(user="operator", uid=1001, slurm_user="slurm", admin_level="Operator")),
        "Kubernetes, user": kubernetes_caps_of(_kubernetes(is_operator=False)),
        "Kubernetes, operator": kubernetes_caps_of(_kubernetes(is_operator=True)),
    }


def _kubernetes(*, is_operator: bool) -> KubeSite:
    """Return a server whose user has the rights that `gputui cluster rbac` grants."""
    return KubeSite("v1.31.0", rights=frozenset(each.name for each in CALLS if is_operator or not each.is_operators))


def _words(caps: Caps, capability: Capability, told: dict[str, None]) -> str:
    """Return `yes`, or `no` with the reason, unless the row has told it already."""
    why = caps.why_not(capability)
    if not why:
        return "yes"
    is_told = why in told
    told[why] = None
    return "no" if is_told else f"no: {why}"


if __name__ == "__main__":
    path = Path(__file__).parent.parent / "docs" / "cluster.md"
    path.write_text(updated(path.read_text(encoding="utf-8")), encoding="utf-8")
