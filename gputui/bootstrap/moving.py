"""Jobs on their way to a cluster: as batch scripts of Slurm, as manifests of Kubernetes, by migration."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gputui.config import Options
    from gputui.domain.job_spec import Submission
    from gputui.engine.cluster.migration import Migration
    from gputui.ports import JobStore


class Exported(Struct, frozen=True):
    """A file for another scheduler."""

    text: str
    notes: tuple[str, ...] = ()
    """Requests of the job that the file does not contain, a sentence each."""


def slurm(options: Options, submission: Submission, key: str) -> Exported:
    """Return the batch script of a job or an array, held if it waits for others; raises InputError."""
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
    from gputui.cluster.kubernetes import manifest

    classes = options.settings.cluster.priority_classes
    if classes and len(classes) != 3:
        hint = "name three PriorityClasses: for low, normal and high"
        raise InputError("has not three entries", where="cluster.priority_classes", hint=hint)
    documents = manifest.manifests(submission, key, options.settings)
    return Exported("---\n".join(map(manifest.as_yaml, documents)), tuple(manifest.left_out(submission)))


def rbac(namespace: str, kind: str, name: str, *, is_operator: bool, is_wide: bool) -> str:
    """Return the manifest of roles and bindings for a `User`, a `Group`, or a `ServiceAccount` `NAMESPACE:NAME`."""
    from gputui.cluster.kubernetes import calls, manifest

    place, _, account = name.partition(":")
    if kind == "ServiceAccount":
        if not (place and account):
            raise InputError("is not NAMESPACE:NAME", where="--service-account")
        subject = calls.RbacSubject(kind, account, place)
    else:
        subject = calls.RbacSubject(kind, name)
    documents = calls.rbac(namespace, subject, is_operator=is_operator, is_wide=is_wide)
    return "---\n".join(map(manifest.as_yaml, documents))


def local(options: Options) -> Options:
    """Return the options with which this server's own queue is opened, also in cluster mode."""
    cluster = replace(options.settings.cluster, engine="")
    return replace(options, settings=replace(options.settings, cluster=cluster))


@contextmanager
def migration(options: Options, store: JobStore) -> Iterator[Migration]:
    """Yield the migration from this server's queue to the configured cluster; raises InputError if there is none."""
    from gputui import bootstrap
    from gputui.bootstrap import clusters
    from gputui.engine.cluster.migration import Migration

    with closing(clusters.open_cluster(options)) as cluster:
        yield Migration(store, cluster, options.settings.cluster.engine, bootstrap.clock(), bootstrap.actor())
