"""Batch scripts: what Slurm plans a job with, and what a node of its cluster does to run it.

A job with an image runs in a container of the node's Docker engine, by `container.sh`; the site may choose Apptainer,
or Slurm's own containers, `srun --container-image`, instead. A host job is the script's own process. Slurm knows all
processes of jobs without a container of Docker, and signals and ends them.
"""

from __future__ import annotations

import math
import re
import shlex
import signal
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path

from gputui.cluster.slurm import commands
from gputui.domain import docker_args
from gputui.domain.cluster import Caps
from gputui.domain.errors import InputError
from gputui.domain.job_spec import NORMAL_PRIORITY, ContainerOptions, GpuRequest, JobId, JobSpec, Pairs, Submission
from gputui.domain.runs import runs_of
from gputui.domain.settings import ClusterSettings, Settings

_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_UNSEEN = "\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\udc80-\udcff"
"""Characters that act on a terminal, end a line for some readers, or hide; bytes that are not UTF-8."""
_SPECIAL = re.compile(rf"[\x01-\x1f\\'{_UNSEEN}]")
_CONTROL = re.compile(rf"[\x01-\x08\x0b-\x1f{_UNSEEN}]")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
"""Names that a variable of bash can have."""
_ELSEWHERE = frozenset(
    {
        *("cpus", "env", "labels", "log_driver", "log_opt", "memory", "no_init", "pids_limit", "publish"),
        *("security_opt", "stop_timeout", "user"),
    }
)
"""Options that are not passed on as they are."""
OPTION_NAMES = {"volumes": "volume", "mounts": "mount", "labels": "label", "ulimits": "ulimit"}
"""Options of docker by their fields, where these differ."""
_OURS = "gputui."
_PROFILE = "seccomp="


def word(text: str) -> str:
    """Return the text as one word; raises InputError if it contains a NUL, which no word can.

    Texts with control characters are written as $'…': sbatch refuses scripts with ends of line as in DOS.
    """
    if "\0" in text:
        raise InputError("a command and its options cannot contain the character NUL")
    if not _CONTROL.search(text):
        return shlex.quote(text)
    return "$'" + _SPECIAL.sub(lambda match: _ESCAPES.get(match[0]) or _bytes(match[0]), text) + "'"


def _bytes(character: str) -> str:
    """Return the character as its bytes, which every locale takes: \\u depends on it."""
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def array(name: str, words: Iterable[str]) -> str:
    lines = [f"  {each}\n" for each in words]
    return f"{name}=(\n{''.join(lines)})\n" if lines else f"{name}=()\n"


def option_words(spec: JobSpec, settings: Settings) -> Iterator[str]:
    """Yield the options that do not depend on the node; raises InputError for what the site does not allow."""
    options = spec.options
    yield from _plain(options)
    yield from (word(f"--publish={text}") for text in _published(options))
    yield from (word(f"--security-opt={text}") for text in options.security_opt if not _is_profile(text))
    yield from (word(f"--label={name}={value}") for name, value in options.labels if not name.startswith(_OURS))
    if spec.tenant:
        yield word(f"--label=user={spec.tenant}")
    own = {text.partition("=")[0] for text in options.log_opt}
    site = {"max-size": settings.runtime.log_max_size, "max-file": settings.runtime.log_max_files}
    rotation = (f"{name}={value}" for name, value in site.items() if name not in own)
    yield from (word(f"--log-opt={text}") for text in (*rotation, *options.log_opt))
    yield word(f"--log-driver={options.log_driver or 'json-file'}")
    if not options.no_init:
        yield "--init"
    if spec.interactive is not None:
        yield from ["--interactive"] if spec.interactive.stdin else []
        yield from ["--tty"] if spec.interactive.tty else []
    grace = -(-settings.scheduler.stop_grace // timedelta(seconds=1))
    yield word(f"--stop-timeout={grace if options.stop_timeout is None else options.stop_timeout}")
    limit, most = options.pids_limit, settings.runtime.pids_limit
    if limit is None or (most is not None and limit <= 0):
        limit = most
    elif most is not None:
        limit = min(limit, most)
    if limit is not None:
        yield word(f"--pids-limit={limit}")
    yield from _user(options, settings)
    if options.cpus is not None:
        yield word(f"--cpus={options.cpus:g}")
    elif settings.cluster.limit_containers:
        yield '${SLURM_CPUS_ON_NODE:+"--cpus=$SLURM_CPUS_ON_NODE"}'
    if options.memory is not None:
        yield word(f"--memory={options.memory}")
    elif settings.cluster.limit_containers:
        yield "$(allocated_memory)"


def profiles(options: ContainerOptions) -> Iterator[str]:
    return (text.removeprefix(_PROFILE) for text in options.security_opt if _is_profile(text))


def gpu_value(request: GpuRequest) -> tuple[str, str]:
    """Return what precedes and follows the UUIDs in the value of `--gpus`."""
    before = f"driver={request.driver}," if request.driver else ""
    fields = []
    if request.capabilities:
        fields.append('"capabilities=' + ",".join(request.capabilities) + '"')
    if request.driver_options:
        fields.append('"options=' + ",".join(f"{name}={value}" for name, value in request.driver_options) + '"')
    return before + '"device=', "".join(['"', *(f",{field}" for field in fields)])


def _plain(options: ContainerOptions) -> Iterator[str]:
    for field in ContainerOptions.__struct_fields__:
        value = getattr(options, field)
        if field in _ELSEWHERE or value is None or value is False:
            continue
        flag = "--" + OPTION_NAMES.get(field, field).replace("_", "-")
        if value is True:
            yield flag
        else:
            for each in value if isinstance(value, tuple) else (value,):
                is_duration = isinstance(each, timedelta)  # which docker's client reads in Go's notation
                yield word(f"{flag}={each // timedelta(microseconds=1)}us" if is_duration else f"{flag}={each}")


def _published(options: ContainerOptions) -> Iterator[str]:
    for text in options.publish:
        try:
            ports = docker_args.published_ports(text)
        except ValueError as error:
            raise InputError(str(error), where="--publish") from error
        for port in ports:
            address = f"[{port.host_ip}]:" if ":" in port.host_ip else f"{port.host_ip}:" if port.host_ip else ""
            host = f"{port.host_port}:" if port.host_port or address else ""
            yield f"{address}{host}{port.key}"


def _is_profile(text: str) -> bool:
    return text.startswith(_PROFILE) and text.removeprefix(_PROFILE).lstrip().startswith("{")


def _user(options: ContainerOptions, settings: Settings) -> Iterator[str]:
    if not settings.runtime.run_as_submitter:
        yield from (word(f"--user={user}") for user in (options.user,) if user is not None)
        return
    if options.user is not None:
        raise InputError("containers of this cluster run as their submitter", where="--user", hint="leave it out")
    yield '--user="$(id -u):$(id -g)"'
    yield '$(printf -- "--group-add=%s " $(id -G))'
    yield "--security-opt=no-new-privileges"


COMMENT = "gputui:"
"""Beginning of the comment of each job that gputui submits; a key follows, then INPUT and TERMINAL if it has them."""
INPUT, TERMINAL = "input", "terminal"
"""Words in the comment by which other machines know that somebody can attach to the job."""
STOP_SIGNALS = (2, 15)
"""SIGINT and SIGTERM, by which Slurm and the batch script end a job."""
WARNING_SIGNAL = 23
"""SIGURG, which stands for a warning by one of STOP_SIGNALS."""
NICE_STEP = 1000
"""Slurm's nice value for each point of priority below 50."""
NO_STREAMS = (
    "in Slurm only a job in a container of Docker has a terminal or input: gputui exec -it opens a shell in others"
)
REFUSED = {
    "gpu_memory": "Slurm does not know the memory of GPUs: name their model",
    "gpu_free_memory": "Slurm gives whole GPUs, whatever others left in them",
    "share": "Slurm gives each GPU to one job",
    "retries": "Slurm does not repeat a failed job",
}
IGNORED = {
    "idle_timeout": "Slurm does not end idle jobs",
    "preemptible": "Slurm's settings decide which jobs are preempted",
}
"""Options of jobs that Slurm lacks, without which an exported script is wrong, or does the same work."""
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_MIB = 1024**2
_LONGEST_LINE = 60_000
"""Bytes of a line of an environment file that docker's client reads."""
_GPU_CHOICE = frozenset({"NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"})
_NOT_IN_FILE = re.compile(r"[\n\r]|\A[\s#\ufeff]")
_OF_BASH = (
    r"BASH.*|SHELLOPTS|POSIXLY_CORRECT|UID|EUID|PPID|IFS|PATH|HOME|ENV|PWD|OLDPWD|TMPDIR|_"
    r"|LD_.*|DOCKER_.*|GO.*|.*_PROXY|.*_proxy|SSL_.*|XDG_.*|SLURM_.*|GPUTUI_.*|gputui_.*|sweep_.*"
)
"""Variables with a meaning to bash or to docker's client."""
SLURMS = (
    "JOB_ID JOBID JOB_NAME JOB_USER JOB_UID JOB_ACCOUNT JOB_PARTITION JOB_QOS JOB_RESERVATION RESTART_COUNT "
    "CLUSTER_NAME ARRAY_JOB_ID ARRAY_TASK_ID ARRAY_TASK_COUNT ARRAY_TASK_MIN ARRAY_TASK_MAX ARRAY_TASK_STEP "
    "JOB_NODELIST NODELIST JOB_NUM_NODES NNODES NODEID JOB_CPUS_PER_NODE CPUS_ON_NODE CPUS_PER_TASK "
    "NTASKS NPROCS TASKS_PER_NODE PROCID LOCALID MEM_PER_NODE MEM_PER_CPU GPUS_ON_NODE JOB_START_TIME JOB_END_TIME"
)
"""Variables of Slurm, without `SLURM_`, that containers get: numbers and names, no path, address or index of a GPU."""
LIST_GPUS = 'read -ra job_gpus <<<"${SLURM_JOB_GPUS//,/ }"\n'
"""Line that lists the job's GPUs in an array, for `own_variables`; it starts no process."""
JOB_ID = """
# Written by gputui.
job=$SLURM_JOB_ID
[[ -z $SLURM_ARRAY_JOB_ID ]] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
"""
_OF_HOSTS = frozenset({"env", "workdir", "cpus", "memory", "ulimits", "labels"})
_OF_OTHERS = frozenset({"env", "workdir", "cpus", "memory", "labels", "volumes", "mounts"})
_ULIMITS = {
    "as": "v",
    "core": "c",
    "cpu": "t",
    "data": "d",
    "fsize": "f",
    "memlock": "l",
    "nofile": "n",
    "nproc": "u",
    "rtprio": "r",
    "sigpending": "i",
    "stack": "s",
}
"""Options of bash's `ulimit`."""
_KIBIBYTES = frozenset({"as", "core", "data", "fsize", "memlock", "stack"})
"""Limits that bash counts in units of 1,024 bytes."""


def directives(submission: Submission, key: str, settings: ClusterSettings, output: str) -> Iterator[str]:
    """Yield options of `sbatch`, without quotes; raises InputError for what Slurm has no counterpart of."""
    spec = submission.spec
    Caps("Slurm", options=REFUSED).check_submission(submission)
    gpus, streams = spec.gpus, spec.interactive
    refusals = (
        ("--gpus", bool(gpus.devices), "Slurm chooses the GPUs of a job: ask for a number"),
        ("--gpus", gpus.minimum != gpus.maximum, "Slurm needs one number of GPUs, not a range"),
        ("--interactive", streams is not None and spec.is_host, NO_STREAMS),
        ("--command", spec.is_host and not (spec.command and spec.command[0]), "a host job needs a command"),
    )
    for where, is_asked, reason in refusals:
        if is_asked:
            raise InputError(reason, where=where)
    yield f"--job-name={_printable(spec.name) or 'gputui'}"
    kinds = ((INPUT, streams and streams.stdin), (TERMINAL, streams and streams.tty))
    yield f"--comment={' '.join((COMMENT + key, *(kind for kind, is_wanted in kinds if is_wanted)))}"
    yield from ("--nodes=1", "--ntasks=1", "--export=NIL", "--open-mode=append")
    yield "--requeue" if settings.requeue else "--no-requeue"
    if gpus.everything:
        yield from ("--gres=gpu:1", "--exclusive")
    elif gpus.minimum:
        model = f"{gpus.model.strip().lower()}:" if gpus.model else ""
        yield f"--gres=gpu:{_printable(model)}{gpus.minimum}"
    if spec.options.cpus is not None:
        yield f"--cpus-per-task={max(1, math.ceil(spec.options.cpus))}"
    if spec.options.memory is not None:
        yield f"--mem={-(-spec.options.memory // _MIB)}M"
    if limit := spec.time_limit or settings.default_time:  # else that of the partition
        yield f"--time={clock(limit)}"
    yield from _queue(submission)
    if output:
        yield f"--output={_printable(output)}"
    if spec.is_host and spec.options.workdir:
        yield f"--chdir={_printable(spec.options.workdir)}"
    yield from (f"--{name}={value}" for name in ("partition", "account") if (value := getattr(settings, name)))
    yield from map(_printable, settings.sbatch_options)


def directive_line(option: str) -> str:
    name, equals, value = option.partition("=")
    if equals and not re.fullmatch(r"[\w./:,%@+-]*", value, re.ASCII):
        value = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"#SBATCH {name}{equals}{value}"


def clock(length: timedelta) -> str:
    """Return a time limit as Slurm reads it, `1-02:00:00`: in whole minutes, at least one."""
    minutes = max(1, -(-length // timedelta(minutes=1)))
    return f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00"


def nice_of(priority: int) -> int:
    return (NORMAL_PRIORITY - priority) * NICE_STEP


def _queue(submission: Submission) -> Iterator[str]:
    spec = submission.spec
    if submission.held:
        yield "--hold"
    if nice := nice_of(spec.priority) + spec.nice:
        yield f"--nice={nice}"
    if spec.begin_at is not None:
        yield f"--begin=uts{math.ceil(spec.begin_at.timestamp())}"
    if waits := [*_after("afterok", spec.after), *_after("afterany", spec.after_any)]:
        yield f"--dependency={','.join(waits)}"
    if submission.array:
        limit = f"%{submission.array_limit}" if submission.array_limit else ""
        yield f"--array={','.join(map(str, runs_of(0, sorted(submission.array))))}{limit}"
    if spec.warning is not None:
        seconds = -(-spec.warning.before // timedelta(seconds=1))
        number = WARNING_SIGNAL if spec.warning.number in STOP_SIGNALS else spec.warning.number
        yield f"--signal=B:{number}@{seconds}"


def _after(kind: str, chosen: Iterable[JobId]) -> Iterator[str]:
    if found := [commands.words(each) for each in chosen]:
        yield ":".join((kind, *found))


def _printable(text: str) -> str:
    return _UNPRINTABLE.sub(" ", text).strip()


def text_word(text: str, sweep: Pairs) -> str:
    """Return the text as a word, in which the element's values take the place of the sweep's names."""
    if not sweep:
        return word(text)
    from gputui.domain import sweep as sweeps  # few jobs have one

    names = {name for name, _ in sweep} | {sweeps.INDEX}
    parts = []
    for literal, name in sweeps.pieces(text, names):
        parts += [word(literal)] if literal else []
        parts += [f'"$sweep_{name}"'] if name else []
    return "".join(parts) or "''"


def sweep_lines(sweep: Pairs) -> Iterator[str]:
    """Yield the lines that set `$sweep_NAME` to the values of the element; the last name varies fastest."""
    if not sweep:
        return
    from gputui.domain import sweep as sweeps

    yield f"sweep_{sweeps.INDEX}=$SLURM_ARRAY_TASK_ID\n"
    yield f"(( sweep_{sweeps.INDEX} < {sweeps.size(sweep)} )) || exit 2\n"
    yield f"rest=$sweep_{sweeps.INDEX}\n"
    for name, text in reversed(sweep):
        yield array("values", map(word, sweeps.values(text)))
        yield f"sweep_{name}=${{values[rest % {sweeps.size(((name, text),))}]}}\n"
        yield f"(( rest /= {sweeps.size(((name, text),))}, 1 ))\n"


class Environment:
    """Environment of a job, by the way in which each variable reaches its container.

    An environment file keeps values off the list of processes, but carries neither line ends nor very long values.
    Those are exported to docker's client, unless their names mean something to it; the others are on its command line.
    """

    def __init__(self, spec: JobSpec) -> None:
        self.lines: list[str] = []
        self.exported: dict[str, str] = {}
        self.shown: list[str] = []
        swept = "".join(text for _, text in spec.sweep)
        for name, value in variables(spec):
            pair, quoted = f"{name}={value}{swept if '{' in value else ''}", text_word(value, spec.sweep)
            is_short = len(pair.encode("utf-8", "surrogateescape")) < _LONGEST_LINE
            if is_short and not _NOT_IN_FILE.search(pair) and not re.search(r"\s", name):
                self.lines.append(word(f"{name}=") + quoted)
            elif NAME.fullmatch(name) and not re.fullmatch(_OF_BASH, name):
                self.exported[name] = quoted
            else:
                self.shown.append(word(f"--env={name}=") + quoted)


def variables(spec: JobSpec) -> Iterable[tuple[str, str]]:
    """Return the job's own variables, without a choice of GPUs, each once; raises InputError for names with `=`."""
    found = {name: value for name, value in spec.options.env if name not in _GPU_CHOICE}
    for name in found:
        if not name or "=" in name:
            raise InputError(f"{name!a} cannot be the name of an environment variable", where="--env")
    if spec.sweep:
        from gputui.domain.sweep import VARIABLE

        found |= {f"{VARIABLE}{name.upper()}": f"{{{name}}}" for name, _ in spec.sweep}
    return found.items()


def slurms(spec: JobSpec) -> list[str]:
    own = {name for name, _ in variables(spec)}
    return [name for each in SLURMS.split() if (name := f"SLURM_{each}") not in own]


def command_words(spec: JobSpec) -> list[str]:
    return [text_word(each, spec.sweep) for each in spec.command]


def has_gpus(spec: JobSpec) -> bool:
    return bool(spec.gpus.minimum or spec.gpus.everything)


def own_variables(submission: Submission) -> Iterator[tuple[str, str]]:
    yield "GPUTUI_JOB_ID", '"$job"'
    yield "GPUTUI_ATTEMPT", '"$SLURM_CLUSTER_NAME:$job:$(( ${SLURM_RESTART_COUNT:-0} + 1 ))"'
    yield "GPUTUI_GPUS", '"${#job_gpus[@]}"' if has_gpus(submission.spec) else "0"
    if submission.array:
        yield "GPUTUI_ARRAY_INDEX", '"$SLURM_ARRAY_TASK_ID"'


def batch_script(submission: Submission, key: str, settings: Settings, output: str = "") -> str:
    """Return the script for `sbatch`; raises InputError for a job that cannot run in this way.

    `key` identifies the submission: it is in the job's comment and on its container. `output` is the file for output
    in the notation of `sbatch --output`; empty: Slurm's default one.
    """
    spec = submission.spec
    head = [f"{directive_line(option)}\n" for option in directives(submission, key, settings.cluster, output)]
    record = (
        [f"key={word(key)} record={word(_directory(output))}/.$job.run\n", shell_text("record.sh")] if output else []
    )
    lines = [*sweep_lines(spec.sweep), *body(submission, key, settings)]
    return "".join(["#!/bin/bash\n", *head, JOB_ID, *record, *lines])


def shell_text(name: str) -> str:
    return Path(__file__).with_name(name).read_text()


def record_file(output: str, job: str) -> str:
    """Return the path of the file in which the script of a job notes starts and ends; `record.sh` describes it."""
    return f"{_directory(output)}/.{job}.run"


def _directory(output: str) -> str:
    return output.rpartition("/")[0].replace("%%", "%")


def body(submission: Submission, key: str, settings: Settings) -> Iterator[str]:
    """Yield the part of the script that runs the job, and ends with its exit code."""
    spec = submission.spec
    if has_gpus(spec):
        yield LIST_GPUS
    if spec.is_host:
        _refuse(spec.options, _OF_HOSTS, "a host job")
        limits = [f"{_ulimit(text)} || exit 125" for text in spec.options.ulimits]
        yield from _command(spec, [*limits, *_exports(submission, "")], command_words(spec))
    elif settings.cluster.container == "docker":
        yield from _container(submission, key, settings)
    elif spec.interactive is not None:
        raise InputError(NO_STREAMS, where="--interactive")
    else:
        yield from _apptainer(submission) if settings.cluster.container == "apptainer" else _srun(submission)


def _container(submission: Submission, key: str, settings: Settings) -> Iterator[str]:
    spec = submission.spec
    environment = Environment(spec)
    exported = environment.exported
    yield f"image={word(spec.image or '')}\n"
    yield array("command", command_words(spec))
    own = [f"{name}={value}" for name, value in own_variables(submission)]
    if settings.cluster.cdi or not has_gpus(spec):  # images of NVIDIA get every GPU where its runtime is the default
        own.append("NVIDIA_VISIBLE_DEVICES=void")
    yield array("environment", [*environment.lines, *own])
    yield f"environment+=({' '.join(slurms(spec))})  # a name alone takes the value from here\n"
    yield _function("export_environment", (f"export {name}={value}" for name, value in exported.items()))
    yield f"gpus={int(has_gpus(spec))}\n"
    yield f"attached={int(spec.interactive is not None)}\n"
    yield _warning(spec)
    yield array("profiles", map(word, profiles(spec.options)))
    shown = [*(word(f"--env={name}") for name in exported), *environment.shown]
    identity = ['"--label=gputui.job=$SLURM_JOB_ID"', word(f"--label=gputui.key={key}"), '"--label=gputui.gpus=$uuids"']
    words = [*option_words(spec, settings), *identity, *shown]
    if has_gpus(spec) and settings.cluster.cdi:
        words.append("$(printf -- '--device=nvidia.com/gpu=%s ' ${uuids//,/ })")
    elif has_gpus(spec):
        before, after = gpu_value(spec.gpus)
        words.append(f'{word(f"--gpus={before}")}"$uuids"{word(after)}')
    yield _function("set_options", ("options=(", *(f"  {each}" for each in words), ")"))
    yield from map(shell_text, ("gpus.sh", "children.sh", "container.sh"))


def _warning(spec: JobSpec) -> str:
    number = spec.warning.number if spec.warning is not None else 0
    return f"warning={signal.Signals(number).name.removeprefix('SIG') if number in STOP_SIGNALS else repr('')}\n"


def _command(spec: JobSpec, set_up: Iterable[str], words: Iterable[str]) -> Iterator[str]:
    """Yield the lines that run a command as a child of the script, and end with its exit code.

    The lines `set_up` give the child alone its limits and variables.
    """
    yield _warning(spec)
    yield _function("set_up", set_up)
    yield array("command", words)
    yield from map(shell_text, ("children.sh", "command.sh"))


def _function(name: str, lines: Iterable[str]) -> str:
    body = "".join(f"  {each}\n" for each in lines) or "  :\n"
    return f"{name}() {{\n{body}}}\n"


def _apptainer(submission: Submission) -> Iterator[str]:
    spec, options = submission.spec, submission.spec.options
    _refuse(options, _OF_OTHERS, "Apptainer")
    image = spec.image or ""
    if "://" not in image and not image.startswith(("/", "./")):  # neither an address nor a file
        image = f"docker://{image}"
    words = ["--compat"]
    words += ["--nv"] if has_gpus(spec) else []
    words += [
        word(f"--bind={source}:{target}{':ro' if is_fixed else ''}") for source, target, is_fixed in _binds(options)
    ]
    words += [word(f"--pwd={options.workdir}")] if options.workdir else []
    exports = [*_exports(submission, "APPTAINERENV_"), "export APPTAINERENV_CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES"]
    passed = '[[ -z ${!name+x} ]] || export "APPTAINERENV_$name=${!name}"'
    exports.append(f"for name in {' '.join(slurms(spec))}; do {passed}; done")
    verb = "exec" if spec.command else "run"
    yield from _command(spec, exports, ["apptainer", verb, *words, word(image), *command_words(spec)])


def _srun(submission: Submission) -> Iterator[str]:
    spec, options = submission.spec, submission.spec.options
    _refuse(options, _OF_OTHERS, "srun --container-image")
    if not spec.command:
        raise InputError("srun --container-image needs the command", where="--command")
    mounts = [f"{source}:{target}{':ro' if is_fixed else ''}" for source, target, is_fixed in _binds(options)]
    words = [word(f"--container-image={_enroot(spec.image or '')}"), "--no-container-mount-home"]
    words += [word(f"--container-mounts={','.join(mounts)}")] if mounts else []
    words += [word(f"--container-workdir={options.workdir}")] if options.workdir else []
    names = ",".join(name for name, _ in variables(spec))
    words += [word(f"--container-env={names}")] if names else []
    command = ["srun", "--export=ALL", *words, "--", *command_words(spec)]
    yield from _command(spec, _exports(submission, ""), command)


def _refuse(options: ContainerOptions, known: frozenset[str], what: str) -> None:
    for field in ContainerOptions.__struct_fields__:
        value = getattr(options, field)
        if field not in known and value not in (None, ()) and value is not False:
            raise InputError(
                f"{what} has no such option", where="--" + OPTION_NAMES.get(field, field).replace("_", "-")
            )


def _exports(submission: Submission, prefix: str) -> Iterator[str]:
    spec = submission.spec
    for name, value in variables(spec):
        if not NAME.fullmatch(name):
            raise InputError(f"{name!a} cannot be the name of a variable of a shell", where="--env")
        yield f"export {prefix}{name}={text_word(value, spec.sweep)}"
    for name, quoted in own_variables(submission):
        yield f"export {prefix}{name}={quoted}"


def _binds(options: ContainerOptions) -> Iterator[tuple[str, str, bool]]:
    """Yield source and target of each mount, and whether it is read-only."""
    for text in options.volumes:
        source, _, rest = text.partition(":")
        target, _, mode = rest.partition(":")
        yield _bind("--volume", source, target, "ro" in mode.split(","))
    for text in options.mounts:
        try:
            mount = docker_args.mount(text)
        except ValueError as error:
            raise InputError(str(error), where="--mount") from error
        yield _bind("--mount", mount.source if mount.kind == "bind" else "", mount.target, mount.readonly)


def _bind(option: str, source: str, target: str, is_fixed: bool) -> tuple[str, str, bool]:
    if not source.startswith("/") or not target:
        raise InputError("only directories of the node can be mounted without Docker", where=option)
    for path in (source, target):
        if any(mark in path for mark in ",:"):
            raise InputError(f"{path!a} has a comma or a colon", where=option)
    return source, target, is_fixed


def _enroot(image: str) -> str:
    """Return the image as enroot names it: `nvcr.io#nvidia/pytorch:24.01`."""
    registry, slash, rest = image.partition("/")
    is_registry = slash and ("." in registry or ":" in registry or registry == "localhost")
    return f"{registry}#{rest}" if is_registry and "#" not in image and registry not in {"", "."} else image


def _ulimit(text: str) -> str:
    name, _, limits = text.partition("=")
    soft, _, hard = limits.partition(":")
    letter = _ULIMITS.get(name)
    if letter is None:
        raise InputError(f"{name!a} is not a limit that bash knows", where="--ulimit")
    values = []
    for text in (soft, hard or soft):
        if text not in {"-1", "unlimited"} and not (text.isascii() and text.isdigit()):
            raise InputError(f"{text!a} is not a limit", where="--ulimit")
        is_number, unit = text.isdigit(), 1024 if name in _KIBIBYTES else 1
        values.append(str(int(text) // unit) if is_number else "unlimited")
    return f"ulimit -S{letter} {values[0]} && ulimit -H{letter} {values[1]}"
