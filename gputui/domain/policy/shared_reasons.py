"""What keeps a job that shares from joining others: GPU by GPU, with what is left there."""

from __future__ import annotations

from gputui.domain.job import JobId
from gputui.domain.policy.board import Board
from gputui.domain.policy.machine import Ask
from gputui.domain.policy.place import Places
from gputui.domain.policy.sharing import Place
from gputui.domain.units import format_size, listed

_MOST = 3
"""So many GPUs are told of one by one."""


def shared_words(board: Board, places: Places, ask: Ask) -> str:
    """`; GPU 3 has 6G left beside jobs 4 and 9`, for each shared GPU that the job could use; empty without any."""
    found = [place for place in board.shares.uses if ask.eligible[place[0]] & place[1]]
    found.sort(key=lambda place: (-board.shares.left(place), place))
    told = [_told(board, places, place) for place in found[:_MOST]]
    more = len(found) - len(told)
    told += [f"{more} more shared {'GPU has' if more == 1 else 'GPUs have'} no more left"] if more else []
    return "".join(f"; {words}" for words in told)


def _told(board: Board, places: Places, place: Place) -> str:
    shares, row = board.shares, places.row(place)
    bay, jobs = shares.bay(place), sorted(job_id for job_id, _ in shares.uses[place])
    name = row.gpu.uuid[:12] if row.gpu.mig_parent else f"GPU {row.gpu.index}"
    if bay.most == 1:
        return f"{name} may not be shared, and {_names(jobs)} {'has' if len(jobs) == 1 else 'have'} it"
    if bay.closed:
        return f"{name} may not be joined: {bay.closed}"
    if len(jobs) >= bay.most:
        return f"{name} has {_names(jobs)}, and no more than {bay.most} may share it"
    return f"{name} has {_at_least(shares.left(place))} left beside {_names(jobs)}"


def _at_least(size: int) -> str:
    """The size, never rounded up: nobody is to ask for what looks left and is not."""
    shown = 1024**3 if size >= 10 * 1024**3 else 1024**3 // 10
    return format_size(size - size % shown if size >= 1024**3 else size)


def _names(jobs: list[JobId]) -> str:
    return f"job {jobs[0]}" if len(jobs) == 1 else f"jobs {listed(jobs)}"
