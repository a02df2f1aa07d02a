"""What a job may be asked for: each thing once, for the options of `submit` and the keys of a job file alike."""

from __future__ import annotations

from gputui.request import endings, gpu_specs, numbers, specs, texts
from gputui.request.docker_keys import DOCKER_KEYS
from gputui.request.key import Key as Key
from gputui.request.key import Kind as Kind

KEYS = (
    Key(
        "gpus",
        "How many GPUs (2, 2-4, all), or which ones (device=0,GPU-…), as in docker run.",
        gpu_specs.gpus,
        "N|N-M|all|device=…",
    ),
    Key("gpu_memory", "Memory each GPU must have in total.", numbers.size, "SIZE"),
    Key("share", "Let other such jobs on its GPUs: of each it is promised --gpu-memory, no more.", kind=Kind.FLAG),
    Key("gpu_model", "Part of the model's name, such as h100.", specs.gpu_model),
    Key("priority", "0 to 100; the default is 50, higher goes first.", numbers.priority, "N"),
    Key("nice", "Lowers the job's rank by so much.", numbers.nice, "N"),
    Key("time_limit", "End the job after this long.", numbers.time_limit, "DURATION"),
    Key(
        "signal",
        "Announce the time limit by a signal so long before it: TERM@60, USR1@2m.",
        endings.warning,
        "SIGNAL@DURATION",
    ),
    Key("retries", "Run a job that failed again so many times.", numbers.retries, "N"),
    Key("backoff", "Pause before the first retry, doubled each time; the default is 5s.", numbers.duration, "DURATION"),
    Key(
        "retry_on",
        "Only after these: exit codes, EXIT, SIGNAL, OOM, GPU_OOM, TIMEOUT; the default is all but TIMEOUT.",
        endings.retry_on,
        "CODE|WORD[,…]",
        Kind.MANY,
    ),
    Key("gpu_memory_step", "After running out of GPU memory, ask for so much more per GPU.", numbers.size, "SIZE"),
    Key(
        "after",
        "Start when all of these jobs COMPLETED (afterok); an array's id means all its elements, 12_5 one.",
        numbers.job_ids,
        "ID[,ID…]",
        Kind.MANY,
    ),
    Key("after_any", "Start when all of these jobs ended, however.", numbers.job_ids, "ID[,ID…]", Kind.MANY),
    Key("begin", "Do not start before: +1h, 18:00, or 2026-03-02T18:00.", metavar="TIME"),
    Key("array", "One job for each index: 0-9, 1,3,5-9; %2: two at once.", specs.array, "INDICES[%N]"),
    Key("tenant", "Whom the job is charged to; the default is you.", texts.tenant_name, "NAME"),
    Key("hold", "Wait until released.", kind=Kind.FLAG),
    Key("preemptible", "May be stopped and requeued for a higher class.", kind=Kind.FLAG),
    Key("name", "The job's name; the default is the image's or the command's.", texts.job_name, "NAME"),
    Key("env_all", "Host jobs: take over all of your environment, not PATH and its like alone.", kind=Kind.FLAG),
    *DOCKER_KEYS,
)
BY_NAME = {key.name: key for key in KEYS}
