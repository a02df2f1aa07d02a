"""The plan that is in force: made from one look at everything, and anew when anything changed that it depends on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gputui.domain.gpu import GpuState, GpuView
from gputui.domain.job import Job
from gputui.domain.policy.lineup import Known
from gputui.domain.policy.plan import Plan, plan
from gputui.domain.snapshot import Leader, Notice, Snapshot
from gputui.domain.state import JobState
from gputui.engine.ground import Ground
from gputui.engine.picture import World, with_plan, within
from gputui.engine.usage import PastUsage

_REASONS_KEEP = timedelta(seconds=5)


class Planner:
    """Looks and plans, no oftener than need be."""

    def __init__(self, ground: Ground, leader: Leader, past_usage: PastUsage) -> None:
        self._ground = ground
        self._leader = leader
        self._past_usage = past_usage
        self.plan = Plan()
        self._known = Known()
        self._snapshot = Snapshot()
        self._planned_for: object = None
        self._again_at = datetime.min.replace(tzinfo=UTC)

    @property
    def again_at(self) -> datetime:
        """When time alone calls for the next plan."""
        return self._again_at

    def look_again_by(self, now: datetime) -> None:
        """Plan anew at this time at the latest."""
        self._again_at = now

    def make(self, now: datetime, freed_at: Mapping[str, datetime], trouble: tuple[Notice, ...]) -> None:
        """Look at everything as it is now, and decide what starts."""
        self._look(now, freed_at, trouble)
        news = _news(self._ground.version, self._snapshot)
        if news != self._planned_for or now >= self._again_at:
            self.plan = plan(self._snapshot, self._ground.settings, now, self._known)
            self._planned_for, self._again_at = news, _next_look(self._snapshot, self.plan, now)

    def carried_out(self, claims: Iterable[Job], now: datetime, freed_at: Mapping[str, datetime]) -> None:
        """Take these starts for done; what else they change is planned at the next tick."""
        self._look(now, freed_at, ())
        self.plan, self._planned_for = _without(self.plan, claims), None

    @property
    def gpus(self) -> tuple[GpuView, ...]:
        """As they were looked at last."""
        return self._snapshot.gpus

    def picture(self, now: datetime) -> Snapshot:
        """What was looked at last, with the plan made of it."""
        return with_plan(replace(self._snapshot, taken_at=now), self.plan)

    def _look(self, now: datetime, freed_at: Mapping[str, datetime], trouble: tuple[Notice, ...]) -> None:
        """Put together the picture of everything as it is now."""
        ground = self._ground
        world = World(
            reading=ground.probe.latest(),
            observations=tuple(observer.latest for observer in ground.observers.values()),
            freed_at=freed_at,
            progress=ground.hands.pulls.progress,
            notices=(*trouble, *ground.damage),
            usage=self._past_usage.at(now),
        )
        self._snapshot = within(ground.store.store_id, ground.queue, world, self._leader, ground.settings, now)


def _news(version: object, snapshot: Snapshot) -> object:
    """What a plan is made from, apart from the time: as long as it stays the same, so does the plan."""
    node = snapshot.nodes[0]
    gpus = tuple((view.gpu.uuid, view.state, _told(view), view.sharers, view.closed) for view in node.gpus)
    return (version, gpus, node.runtimes, node.probe, snapshot.usage.at)


def _told(view: GpuView) -> str:
    """What reasons tell of it: why it is unknown. Why another is not free may name what changes all the time."""
    return view.why if view.state is GpuState.UNKNOWN else ""


def _without(decided: Plan, claims: Iterable[Job]) -> Plan:
    """The plan, of which these starts are done: it reckoned with them when it judged the others."""
    done = {job.id for job in claims}
    return replace(
        decided,
        starts=tuple(start for start in decided.starts if start.job_id not in done),
        order=tuple(job_id for job_id in decided.order if job_id not in done),
        forecast={job_id: at for job_id, at in decided.forecast.items() if job_id not in done},
    )


def _next_look(snapshot: Snapshot, decided: Plan, now: datetime) -> datetime:
    """When time alone changes the plan: a job may begin, a back-off or a reservation ends; reasons grow old before."""
    timed = [job for job in snapshot.jobs if job.not_before or job.spec.begin_at]
    gates = (gate for job in timed if job.state is JobState.PENDING for gate in (job.not_before, job.spec.begin_at))
    turns = (at for view in decided.windows for at in (view.window.start, view.lapses_at, view.window.end))
    return min((now + _REASONS_KEEP, *(at for at in (*gates, *turns) if at is not None and at > now)))
