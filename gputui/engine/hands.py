"""The scheduler's hands: workers that start, stop, fetch and clean up, and the book of what they are at."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from gputui.domain.cause import CauseCode
from gputui.domain.container import ContainerRecord, Launch
from gputui.domain.errors import RuntimeFault, StoreError
from gputui.domain.settings import Settings
from gputui.engine import work
from gputui.engine.observer import Sequence
from gputui.engine.permissions import Permissions
from gputui.engine.pools import Pools, Work
from gputui.engine.pulls import Pulls
from gputui.engine.reconcile import Key
from gputui.ports import JobStore, Runtime, SteadyClock

log = logging.getLogger(__name__)

RETRY_CLEANING = timedelta(seconds=30)
REMEMBERED = 8192
"""Attempts of which it is known when we last worked on them."""


class Hands:
    """Runs the functions of `work` in workers. Its own methods never block; `changed` is called when one is done."""

    def __init__(
        self,
        *,
        store: JobStore,
        pools: Pools,
        clock: SteadyClock,
        directory: Path,
        settings: Settings,
        sequence: Sequence,
        changed: Callable[[str], None],
        permissions: Permissions | None = None,
    ) -> None:
        self._permissions = permissions
        self._store = store
        self._pools = pools
        self._clock = clock
        self._directory = directory
        self._settings = settings
        self._sequence = sequence
        self._changed = changed
        self._lock = threading.Lock()
        self._busy: set[Key] = set()
        self._settled: dict[Key, int] = {}
        self._told: dict[Key, str] = {}
        self._signs: dict[Key, str] = {}
        self._cleaned_at: dict[str, datetime] = {}
        self._cleaning: set[str] = set()
        self._kept: dict[str, str] = {}
        """Why containers could not be removed, as the log tells already."""
        self._telling: set[Key] = set()
        self.pulls = Pulls(store, pools, clock, settings.scheduler, changed)

    def is_busy(self, key: Key) -> bool:
        """Return whether a worker is on that attempt; number 0 stands for fetching the job's image."""
        job_id, number = key
        if not number:
            return self.pulls.is_wanted_by(job_id)
        with self._lock:
            return key in self._busy

    def settled(self, key: Key) -> int:
        """Place in the order of events of our last work on that attempt; 0 when there was none."""
        with self._lock:
            return self._settled.get(key, 0)

    def note_given_back(self, key: Key) -> None:
        """Remember that the number of this attempt was given back, in case its container comes up late."""
        with self._lock:
            self._note(key)

    def start(self, runtime: Runtime, launch: Launch) -> None:
        """Create and start the container of an attempt that was claimed."""
        key = (launch.job_id, launch.attempt)
        with self._lock:
            self._busy.add(key)
            self._told.pop(key, None)
        self._pools(Work.START, runtime.name).submit(self._start, runtime, launch)

    def _start(self, runtime: Runtime, launch: Launch) -> None:
        try:
            fault = work.start_attempt(self._store, runtime, launch, self._clock, self._settings, self._permitted)
            if fault is not None and fault.cause.code is CauseCode.IMAGE_NOT_FOUND:
                self.pulls.forget(runtime, launch.spec.image)
        except StoreError as error:  # reconcile says RUNNING as soon as the store can be written again
            log.warning("job %d was started, but the store cannot say so: %s", launch.job_id, error)
        except Exception:  # the border of a worker: the next listing tells how far it came
            log.exception("starting job %d", launch.job_id)
        finally:
            self._settle((launch.job_id, launch.attempt), runtime.name)

    def _permitted(self, launch: Launch) -> Launch:
        """Return the launch as the site allows it to its submitter; raises RuntimeFault."""
        if self._permissions is None:
            return launch
        uid = work.proven_submitter(self._store, launch.spec)
        return replace(launch, spec=self._permissions.at_start(launch.spec, uid))

    def tell(self, runtime: Runtime, key: Key, container_id: str, how: str) -> None:
        """Have it told to end, once for each `how`: `terminate`, or any other word for SIGKILL.

        While an engine is slow to take one signal no further one is queued: the next tick asks again.
        """
        with self._lock:
            if key in self._telling or self._told.get(key) == how:
                return
            self._told[key] = how
            self._telling.add(key)
            _forget_oldest(self._told)
        self._pools(Work.STOP, runtime.name).submit(self._tell, runtime, key, container_id, how)

    def _tell(self, runtime: Runtime, key: Key, container_id: str, how: str) -> None:
        is_told = False
        try:
            (runtime.terminate if how == "terminate" else runtime.kill)(container_id)
            is_told = True
        except RuntimeFault as fault:
            log.warning("could not %s %s: %s", how, container_id[:12], fault)
        except Exception:  # the border of a worker: the next tick asks again
            log.exception("could not %s %s", how, container_id[:12])
        finally:
            with self._lock:
                self._telling.discard(key)
                if not is_told:
                    self._told.pop(key, None)

    def look(self, runtime: Runtime, record: ContainerRecord) -> str | None:
        """The sign of a GPU out of memory in an ended attempt's output, empty for none; None: a worker is looking."""
        key = (record.job_id, record.attempt)
        with self._lock:
            if key not in self._signs and key not in self._busy:
                self._busy.add(key)
                begin = True
            else:
                begin = False
        if begin:
            self._pools(Work.EXIT, runtime.name).submit(self._look, runtime, record)
        with self._lock:
            return self._signs.get(key)

    def _look(self, runtime: Runtime, record: ContainerRecord) -> None:
        key, sign = (record.job_id, record.attempt), ""
        try:
            sign = work.sign_of_gpu_memory(runtime, record)
        except Exception:  # the border of a worker: what cannot be read tells nothing
            log.exception("looking at the output of job %d", record.job_id)
        finally:
            with self._lock:
                self._signs[key] = sign
            self._settle(key, runtime.name)

    def take_sign(self, key: Key) -> str:
        """What was found in that attempt's output, once."""
        with self._lock:
            return self._signs.pop(key, "")

    def warn(self, runtime: Runtime, key: Key, container_id: str, number: int) -> None:
        """Have it sent the signal that announces its time limit; the store says so already."""
        self._pools(Work.STOP, runtime.name).submit(self._warn, runtime, key, container_id, number)

    def _warn(self, runtime: Runtime, key: Key, container_id: str, number: int) -> None:
        try:
            runtime.signal(container_id, number)
        except Exception as fault:  # the border of a worker
            is_known = isinstance(fault, RuntimeFault)
            words = "could not warn %s of its time limit, which is tried again: %s"
            log.warning(words, container_id[:12], fault, exc_info=None if is_known else fault)
            self._unwarn(key)

    def _unwarn(self, key: Key) -> None:
        try:
            work.unwarn(self._store, key)
        except Exception as error:  # noqa: BLE001 - the border of a worker
            log.warning("job %d will not be warned of its time limit: %s", key[0], error)

    def clean(self, runtime: Runtime, record: ContainerRecord, now: datetime) -> None:
        """Save the output of an ended container and remove it; one clean-up at a time, repeated after a while."""
        with self._lock:
            last = self._cleaned_at.get(record.id)
            if record.id in self._cleaning or (last is not None and now - last < RETRY_CLEANING):
                return
            self._cleaned_at[record.id] = now
            self._cleaning.add(record.id)
        self._pools(Work.CLEAN, runtime.name).submit(self._clean, runtime, record)

    def _clean(self, runtime: Runtime, record: ContainerRecord) -> None:
        is_clean = False
        try:
            work.clean_up(runtime, record, self._directory)
            is_clean = True
        except OSError as error:
            self._tell_kept(record, f"its log cannot be saved: {error}")
        except RuntimeFault as fault:
            self._tell_kept(record, str(fault))
        except Exception:  # the border of a worker
            log.exception("cleaning up %s", record.id[:12])
        finally:
            with self._lock:
                self._cleaning.discard(record.id)
                if is_clean:
                    self._cleaned_at.pop(record.id, None)
                    self._kept.pop(record.id, None)

    def _tell_kept(self, record: ContainerRecord, why: str) -> None:
        """Log why a container is kept, once: it may stay until another user schedules."""
        if self._kept.get(record.id) != why:
            self._kept[record.id] = why
            name = record.id if record.id.startswith("gputui-") else record.id[:12]
            log.warning("container %s is kept: %s", name, why)

    def _settle(self, key: Key, runtime_name: str) -> None:
        with self._lock:
            self._note(key)
            self._busy.discard(key)
        self._changed(runtime_name)

    def _note(self, key: Key) -> None:
        """Write down that the attempt was worked on just now; the lock is held."""
        self._settled.pop(key, None)  # so that it is the youngest
        self._settled[key] = self._sequence.next()
        _forget_oldest(self._settled)


def _forget_oldest(book: dict[Key, Any]) -> None:
    """Keep the latest entries of a book that is written for ever: every listing is younger than the others by far."""
    if len(book) > REMEMBERED:
        del book[next(iter(book))]
