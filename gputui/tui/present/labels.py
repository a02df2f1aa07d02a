"""What GPUs are called where several are spoken of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gputui.domain.snapshot import Snapshot
from gputui.domain.text import plain
from gputui.domain.units import plural
from gputui.tui.present.gpu import index_of


@dataclass(frozen=True)
class Labels:
    """How GPUs are called here: by their index, and by their node where there are several."""

    by_uuid: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot) -> Labels:
        """The labels of all GPUs of the picture."""
        several = len(snapshot.nodes) > 1
        return cls(
            {
                view.gpu.uuid: (f"{plain(node.name, 12)}:" if several else "") + index_of(view)
                for node in snapshot.nodes
                for view in node.gpus
            }
        )

    @property
    def width(self) -> int:
        """Cells that the longest takes."""
        return max((len(label) for label in self.by_uuid.values()), default=1)

    def of_all(self, uuids: Iterable[str]) -> str:
        """`GPU 0-3`, `GPU node1:0-3 node2:1`, `no GPU`; those that nobody lists now as a number: `2 GPUs`."""
        by_node: dict[str, list[str]] = {}
        unlisted = 0
        for uuid in uuids:
            if uuid not in self.by_uuid:
                unlisted += 1
                continue
            node, _, index = self.by_uuid[uuid].rpartition(":")
            by_node.setdefault(node, []).append(index)
        parts = [f"{node}:{ranges(indices)}" if node else ranges(indices) for node, indices in by_node.items()]
        told = [f"GPU {' '.join(parts)}"] if parts else []
        if unlisted:
            told.append(f"{unlisted} more" if told else plural(unlisted, "GPU"))
        return " and ".join(told) or "no GPU"


def ranges(indices: Sequence[str]) -> str:
    """`0-3,6` of 0, 1, 2, 3 and 6."""
    numbers = sorted(int(index) for index in indices if index.isdigit())
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return ",".join([*words, *(index for index in indices if not index.isdigit())])
