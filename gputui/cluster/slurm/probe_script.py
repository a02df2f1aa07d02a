"""Batch scripts of the jobs that check a node: a probe job, and a job that looks at the node after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta

from msgspec.structs import replace

from gputui.cluster.bash import word
from gputui.cluster.slurm.batch_script import JOB_ID, body, shell_text
from gputui.cluster.slurm.directives import directives, line
from gputui.domain.job_spec import GpuRequest, JobSpec, Submission
from gputui.domain.settings import Settings

LIMIT = timedelta(minutes=15)
"""Time limit of these jobs; pulling the image takes most of the time."""
_STAYED = """
mark={mark}
PATH=${{PATH:+$PATH:}}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
if found=$(docker ps --all --quiet --filter=label=gputui.job={job} --filter=label=gputui.key={key}); then
  echo "$mark stayed" $found
  [[ -z $found ]] || docker rm --force --volumes $found >/dev/null 2>&1
fi
echo "$mark end"
"""


def probe_script(run: str, node: str, gpus: int, image: str, settings: Settings, output: str) -> str:
    """Return the script of the probe job `run` with so many GPUs of a node, whose facts follow the word `run`."""
    spec = JobSpec(image=image, command=("nvidia-smi", "-L"), name=run, gpus=GpuRequest(gpus, gpus), time_limit=LIMIT)
    lines = [*_head(Submission(spec), run, node, settings, output), JOB_ID]
    lines += [f"mark={run}\n", f"key={run}\n", f"image={word(image)}\n"]
    lines += [f"has_engine={int(settings.cluster.container == 'docker')}\n"]
    lines += [shell_text("gpus.sh"), "run_job() {\n", *body(Submission(spec), run, settings), "}\n"]
    return "".join([*lines, shell_text("probe.sh")])


def look_script(run: str, node: str, probe: int, settings: Settings, output: str) -> str:
    """Return the script of the job that tells which containers of the probe job are left after it."""
    spec = JobSpec(command=("true",), name=run, time_limit=LIMIT, after_any=(probe,))
    lines = _head(Submission(spec), f"{run}.after", node, settings, output)
    return "".join([*lines, _STAYED.format(mark=run, key=run, job=probe)])


def _head(submission: Submission, key: str, node: str, settings: Settings, output: str) -> Iterator[str]:
    once = replace(settings.cluster, requeue=False)
    options: Iterable[str] = (*directives(submission, key, once, output), f"--nodelist={node}")
    yield "#!/bin/bash\n"
    yield from (f"{line(option)}\n" for option in options)
