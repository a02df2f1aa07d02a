"""Jobs in the forms that clusters take: batch scripts of Slurm, manifests of Kubernetes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from gputui.domain.errors import InputError

if TYPE_CHECKING:
    from gputui.config import Options
    from gputui.domain.job_spec import Submission


class Exported(Struct, frozen=True):
    """A file for another scheduler."""

    text: str
    notes: tuple[str, ...] = ()
    """Requests of the job that the file does not contain, a sentence each."""


def slurm(options: Options, submission: Submission, key: str) -> Exported:
    """Return the batch script of a job or an array, held if it waits for others; raises InputError."""
    from msgspec.structs import replace

    from gputui.cluster.slurm.batch_script import batch_script

    spec = submission.spec
    ignored = {
        "--idle-timeout: Slurm does not end idle jobs": spec.idle_timeout is not None,
        "--preemptible: Slurm's settings decide": spec.preemptible,
    }
    notes = [sentence for sentence, is_asked in ignored.items() if is_asked]
    if spec.after or spec.after_any:
        notes.append("--after: the job is held; release it, or submit it with sbatch --dependency=afterok:ID")
        submission = replace(submission, held=True, spec=replace(spec, after=(), after_any=()))
    return Exported(batch_script(submission, key, options.settings), tuple(notes))


def kubernetes(options: Options, submission: Submission, key: str) -> Exported:
    """Return the manifests of a job, or of each element of an array; raises InputError."""
    from gputui.cluster.kubernetes import manifest, yaml

    classes = options.settings.cluster.priority_classes
    if classes and len(classes) != 3:
        hint = "name three PriorityClasses: for low, normal and high"
        raise InputError("has not three entries", where="cluster.priority_classes", hint=hint)
    documents = manifest.manifests(submission, key, options.settings)
    return Exported("---\n".join(map(yaml.document, documents)), tuple(manifest.left_out(submission)))
