"""Table of the words that people and other programs use for what gputui calls otherwise.

Palette and help of the console find commands by them, and the shell suggests a command for them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import cache
from typing import NamedTuple


class Meaning(NamedTuple):
    """Words of one meaning, with what gputui has for it."""

    words: str
    """Separated by commas, from Slurm, PBS, Docker, htop and everyday language."""
    console: str = ""
    """Names of commands of the console, separated by commas."""
    shell: str = ""
    """Command of the shell, after `gputui`."""
    hint: str = ""
    """Sentence in place of a command of the shell, if there is none."""

    @property
    def names(self) -> list[str]:
        """All words of this meaning, in lower case, with the names of gputui's commands."""
        return [*filter(None, [*self.words.lower().split(", "), *self.console.split(", "), self.shell])]


MEANINGS = (
    Meaning("srun, salloc, start, launch, execute", shell="run"),
    Meaning("sbatch, qsub, bsub, add, new, create, run, start, launch, enqueue, queue up, srun", "submit", "submit"),
    Meaning("duplicate, copy job, resubmit, submit again", "clone", "submit"),
    Meaning("squeue, qstat, bjobs, jobs, ls, list, status, stat, state, waiting, pending", "tab_queue", "queue"),
    Meaning("why, when, forecast, reason", shell="explain"),
    Meaning("show, inspect, info, describe, env, environment, why, explain, scontrol, get, cat", "detail", "show"),
    Meaning("log, logs, tail, output, follow, stdout, stderr, watch, docker logs, cat", "follow", "logs"),
    Meaning("sattach, connect, reattach, foreground, fg", shell="attach"),
    Meaning("exec, shell, bash, sh, ssh, attach, enter, terminal, console, docker exec", "shell", "exec"),
    Meaning(
        "kill, scancel, qdel, bkill, stop, end, delete, del, remove, rm, terminate, abort, interrupt, signal",
        "cancel",
        "cancel",
    ),
    Meaning("qhold, defer, postpone, block, suspend, stash", "hold", "hold"),
    Meaning("qrls, unhold, unblock, unstash", "release", "release"),
    Meaning("rerun, restart, retry, repeat, redo, run again, resubmit, qrerun", "requeue", "requeue"),
    Meaning("increase, boost, priority, priority up, urgent, nice, renice, prio", "raise", "priority"),
    Meaning("decrease, reduce, priority down, nice, renice", "lower", "priority"),
    Meaning("first, front, head of queue, next, urgent", "top", "priority"),
    Meaning("reorder, rearrange, down, move, switch, swap", "move", "priority"),
    Meaning("extend, extension, time limit, timelimit, longer, shorten, deadline", "edit", "edit ID --time-limit +2h"),
    Meaning("modify, change, update, alter, qalter, scontrol, set, rename", "edit", "edit"),
    Meaning("freeze, stop, sigstop, docker pause, scontrol suspend, ctrl-z", "suspend", "suspend"),
    Meaning("continue, resume job, wake, thaw, sigcont, docker unpause, scontrol resume, fg", "unsuspend", "unsuspend"),
    Meaning("send, kill -USR1, interrupt, sigusr1, sigint, checkpoint, scancel --signal", "signal", "signal"),
    Meaning("gpu, gpus, nvidia-smi, smi, nvitop, nvtop, gpustat, sinfo, devices, metrics, graph", "gpu", "gpus"),
    Meaning("ps, top, htop, pids, process, tree, docker top", "processes"),
    Meaning("ps, processes, users, who, nvidia-smi pmon, foreign", "gpu_processes", "ps"),
    Meaning("disable, maintenance, offline, cordon", "drain", "drain"),
    Meaning("undrain, enable, online, uncordon", "resume", "resume"),
    Meaning("stop, suspend, freeze, halt", "pause", "pause"),
    Meaning("continue, resume scheduler, start, unfreeze, unhalt", "unpause", "unpause"),
    Meaning("reservation, book, block, allocate, salloc", "reserve", "reserve"),
    Meaning("reservations, bookings", "tab_reservations", "reserve list"),
    Meaning("share, shares, quota, quotas, fairshare, group, account, sacctmgr, limits", shell="tenant"),
    Meaning("cron, crontab, repeat, periodic, every day, schedule", "recur", "cron add"),
    Meaning("cron, crontab", "tab_recurring", "cron list"),
    Meaning("stop, suspend", "pause_recurring", "cron pause"),
    Meaning("continue, start", "resume_recurring", "cron resume"),
    Meaning("delete, rm, unreserve, drop, del", "remove", "cron remove"),
    Meaning("history, sacct, past, ended, done, completed, finished", "tab_finished", "history"),
    Meaning("done, completed, past", "finished"),
    Meaning("acknowledge, ack, failed, failures", "failures_seen"),
    Meaning("sreport, usage, accounting, statistics, stats, cost, bill", shell="report"),
    Meaning("simulate, simulation, benchmark, compare", shell="replay"),
    Meaning("daemon, server, scheduler, serve", shell="serve"),
    Meaning("service, systemd, setup, enable", shell="install"),
    Meaning("check, diagnose, health, test, verify", shell="doctor"),
    Meaning("backup", shell="state backup"),
    Meaning("restore", shell="state restore"),
    Meaning("repair, fix", shell="state repair"),
    Meaning("completion", shell="completions"),
    Meaning("browser, http, url", shell="web"),
    Meaning("dashboard, dashboards, grafana, prometheus, alerts", shell="metrics"),
    Meaning("try, simulator, example", shell="demo"),
    Meaning(
        "config, configure, configuration, settings, setting, preferences, options",
        "themes, columns, gpu_view, gpu_colours",
        hint="settings are in /etc/gputui/config.toml and ~/.config/gputui/config.toml; docs/cli.md lists them",
    ),
    Meaning("exit, close, bye, logout, quit", "quit", hint="q leaves the console; gputui --help lists the commands"),
    Meaning("keys, bindings, shortcuts, manual, man, F1, usage, help", "help", "--help"),
    Meaning("version, about", hint="gputui --version prints it"),
    Meaning("yank, clipboard", "copy"),
    Meaning("yank, clipboard", "copy_lines"),
    Meaning("gantt, schedule, calendar, plan, forecast, when", "timeline"),
    Meaning("revert, take back, mistake", "undo"),
    Meaning("errors, warnings, alerts, messages, events, problems", "notices"),
    Meaning("idle, forgotten, unused, go to, jump, problem", "alarm"),
    Meaning("history, zoom, minutes, hour, scale", "graph_span"),
    Meaning("heat, red, green, palette, intensity, nvitop, idle", "gpu_colours"),
    Meaning("color, colour, colors, colours, appearance, dark, light, skin", "themes"),
    Meaning("tag, select", "mark"),
    Meaning("tag all, select all", "mark_all"),
    Meaning("search, find, grep, user, only", "filter"),
    Meaning("order by, idle, nodes", "sort"),
    Meaning("fields, setup, format, display", "columns"),
    Meaning("expand, collapse, tree", "fold"),
    Meaning("maximize, full screen, fullscreen", "zoom"),
    Meaning("layout, compact, rows, cards", "gpu_view"),
    Meaning("find, grep", "log_search"),
    Meaning("line wrap, long lines", "log_wrap"),
    Meaning("time, timestamps, date", "log_times"),
    Meaning("download, export, write log", "save_log"),
)
"""Table of meanings; of several for a word, the likelier ones first."""
_BEGINS = 3
"""Minimum number of letters that stand for a word that begins with them."""
_MOST = 3
"""Maximum number of commands that are suggested."""
_ALIKE = 0.75
"""Minimum similarity of a mistyped word, from 0 to 1."""


@cache
def words_of(name: str) -> tuple[str, ...]:
    found = (meaning.words for meaning in MEANINGS if name in meaning.console.split(", "))
    return tuple(word for words in found for word in words.split(", "))


def suggestion(typed: str, commands: Collection[str]) -> str:
    """Return a sentence about what a word may mean that is none of these commands of the shell; empty if unknown."""
    known = {word for meaning in MEANINGS for word in meaning.names}
    for word in _readings(typed.lower(), {*known, *commands}):
        meant = [meaning for meaning in MEANINGS if word in meaning.names]
        found = [word] if word in commands else [name for meaning in meant for name in _commands(meaning, commands)]
        if found:
            return f"did you mean {' or '.join(list(dict.fromkeys(found))[:_MOST])}?"
        if hint := next((meaning.hint for meaning in meant if meaning.hint), ""):
            return hint
    return ""


def _commands(meaning: Meaning, commands: Collection[str]) -> Iterator[str]:
    """Yield the commands for a meaning; those of a group are found by their own names."""
    if meaning.shell.partition(" ")[0] in commands or meaning.shell == "--help":
        yield meaning.shell
    else:
        yield from (word for word in meaning.names if word in commands)


def _readings(typed: str, known: Collection[str]) -> Iterator[str]:
    """Yield the known words that a word may stand for: itself, its parts, those that it begins or is like."""
    import difflib  # rarely needed

    if typed in known:
        yield typed
        return
    yield from (part for part in re.split(r"[-_ ]", typed) if part in known)
    if len(typed) >= _BEGINS:
        yield from sorted((word for word in known if word.startswith(typed)), key=lambda word: (len(word), word))
    yield from difflib.get_close_matches(typed, sorted(known), 3, _ALIKE)
