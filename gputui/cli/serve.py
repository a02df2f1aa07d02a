"""`gputui serve`: schedule without a screen."""

from __future__ import annotations

import click
from msgspec.structs import replace

from gputui.cli.session import Session, pass_session
from gputui.config import Options, listen_address
from gputui.domain.errors import CapabilityError, InputError
from gputui.request.job_values import duration

_AS_SET = "as set"
"""Value of `--metrics` without an address."""


@click.command("serve")
@click.option("--wait", default="0", metavar="DURATION", help="Wait this long for another scheduler to end.")
@click.option(
    "--metrics",
    is_flag=False,
    flag_value=_AS_SET,
    metavar="[ADDR:PORT]",
    help="Serve metrics for Prometheus; without an address at metrics.listen, 127.0.0.1:9877.",
)
@click.option(
    "--hpc-job-mapping-dir",
    metavar="DIR",
    help="With --metrics: write files there that tell dcgm-exporter which jobs run on which GPU.",
)
@click.option("--stand-in", is_flag=True, hidden=True, help="Take over from a console, as `console.serving` does.")
@pass_session
def command(session: Session, wait: str, metrics: str | None, hpc_job_mapping_dir: str | None, stand_in: bool) -> int:
    """Schedule without a screen until stopped. Containers keep running when it ends.

    In cluster mode the engine schedules: then it only serves metrics of the cluster, and runs hooks.
    """
    options = _with_metrics(session.options, metrics, hpc_job_mapping_dir)
    if options.in_cluster:
        from gputui.console import cluster_serving

        _check_cluster(options, has_duties=cluster_serving.has_duties(options))
        return cluster_serving.serve(options)
    from gputui.console.serving import serve

    return serve(options, duration(wait, "--wait").total_seconds(), stands_in=stand_in)


def _check_cluster(options: Options, *, has_duties: bool) -> None:
    """Raise CapabilityError for what serve cannot do in a cluster."""
    if not has_duties:
        hint = "gputui serve --metrics serves metrics of the cluster, and with [hooks] in the settings it runs them"
        raise CapabilityError("the engine schedules; there is nothing else to serve", hint=hint)
    if options.settings.metrics.hpc_job_mapping_dir:
        hint = "Slurm writes such files by its own prolog"
        raise CapabilityError("metrics.hpc_job_mapping_dir is for the GPUs of this machine", hint=hint)


def _with_metrics(options: Options, listen: str | None, mapping: str | None) -> Options:
    """Return the options with the metrics that the command asks for."""
    metrics, further = options.settings.metrics, []
    if listen is not None:
        metrics = replace(metrics, enabled=True)
        further.append("--metrics" if listen == _AS_SET else f"--metrics={listen}")
    if listen not in {None, _AS_SET}:
        listen_address(str(listen), "--metrics")
        metrics = replace(metrics, listen=str(listen))
    if mapping is not None:
        if not metrics.enabled:
            raise InputError("it is for metrics", where="--hpc-job-mapping-dir", hint="add --metrics")
        metrics = replace(metrics, hpc_job_mapping_dir=mapping)
        further.append(f"--hpc-job-mapping-dir={mapping}")
    settings = replace(options.settings, metrics=metrics)
    return replace(options, settings=settings, serve_arguments=tuple(further))
