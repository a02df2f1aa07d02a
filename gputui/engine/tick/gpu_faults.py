"""Records fatal Xid errors in the store, and removes them after a reset or an operator's resume."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime

from msgspec.structs import replace

from gputui.domain.attempt import BootTime
from gputui.domain.gpu import ProbeCode
from gputui.domain.gpu_faults import FaultEvidence, GpuFault, judged, reported
from gputui.domain.log_fields import about
from gputui.engine.tick.context import TickContext

log = logging.getLogger(__name__)


class FaultRecorder:
    """Keeps GPU faults in the store, and tracks which of them the running probe reported itself."""

    def __init__(self, context: TickContext) -> None:
        self._context = context
        self._live: frozenset[str] = frozenset()

    def record(self, now: datetime, boot: BootTime) -> None:
        """Record changed faults, if any."""
        context = self._context
        reading, controls = context.probe.latest(), context.queue.controls
        if reading.status.code is not ProbeCode.OK:
            return
        seen = FaultEvidence(reading.samples, controls.resumed, boot.boot, now)
        self._live = frozenset(reported(seen)) | (self._live & controls.faults.keys())
        seen = replace(seen, live=self._live)
        if judged(controls.faults, seen) is controls.faults:
            return
        with context.store.transaction() as transaction:
            before = transaction.controls()
            after = judged(before.faults, replace(seen, resumed=before.resumed))
            if after is not before.faults:
                transaction.set_controls(replace(before, faults=after))
        _tell(before.faults, after)
        context.refresh()


def _tell(before: Mapping[str, GpuFault], after: Mapping[str, GpuFault]) -> None:
    for uuid in after.keys() - before.keys():
        log.warning(
            "%s takes no job until it is reset or resumed: %s", uuid, after[uuid].text, extra=about(gpus=[uuid])
        )
    for uuid in before.keys() - after.keys():
        log.info("%s may take jobs again: it was reset or resumed", uuid, extra=about(gpus=[uuid]))
