"""Options of a job's container, as words of a bash script that Slurm runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gputui.cluster.slurm.batch_script import gpu_value, option_words, profiles
from gputui.domain.errors import InputError
from gputui.domain.job_spec import ContainerOptions, GpuRequest, Interactive
from gputui.domain.settings import ClusterSettings, RuntimeSettings, SchedulerSettings, Settings
from tests.cases import cases
from tests.factories import spec


def words(
    *,
    runtime: dict[str, Any] | None = None,
    cluster: dict[str, Any] | None = None,
    interactive: Interactive | None = None,
    tenant: str = "",
    **options: Any,
) -> list[str]:
    """Return the options of a container, with the settings of a site."""
    settings = Settings(
        runtime=RuntimeSettings(**(runtime or {})),
        cluster=ClusterSettings(**(cluster or {})),
        scheduler=SchedulerSettings(stop_grace=timedelta(seconds=7.5)),
    )
    job = spec(options=ContainerOptions(**options), interactive=interactive, tenant=tenant)
    return [each.strip("'") for each in option_words(job, settings)]


@cases(
    ("options", "word"),
    [
        ({"privileged": True}, "--privileged"),
        ({"volumes": ("/a b:/c",)}, "--volume=/a b:/c"),
        ({"health_interval": timedelta(seconds=1.5)}, "--health-interval=1500000us"),
        ({"publish": ("127.0.0.1:8080:80",)}, "--publish=127.0.0.1:8080:80/tcp"),
        ({"publish": ("[::1]:8080:80/udp",)}, "--publish=[::1]:8080:80/udp"),
        ({"publish": ("80",)}, "--publish=80/tcp"),
        ({"security_opt": ("no-new-privileges",)}, "--security-opt=no-new-privileges"),
        ({"labels": (("a", "b"),)}, "--label=a=b"),
        ({"tenant": "ann"}, "--label=user=ann"),
        ({"user": "1000"}, "--user=1000"),
        ({"cpus": 1.5}, "--cpus=1.5"),
        ({"memory": 1024}, "--memory=1024"),
        ({"log_driver": "local"}, "--log-driver=local"),
        ({"log_opt": ("max-size=1m",)}, "--log-opt=max-size=1m"),
        ({"stop_timeout": 3}, "--stop-timeout=3"),
        ({}, "--stop-timeout=8"),
        ({}, "--log-driver=json-file"),
        ({}, "--init"),
        ({"interactive": Interactive(stdin=True)}, "--interactive"),
        ({"interactive": Interactive(tty=True)}, "--tty"),
    ],
)
def test_an_option_is_one_word(options: dict[str, Any], word: str) -> None:
    assert word in words(**options)


def test_words_of_limits_users_and_profiles() -> None:
    # what is not asked for is not said
    found = words(no_init=True, labels=(("gputui.job", "7"),), log_opt=("max-size=1m",), runtime={"log_max_size": "5m"})
    assert not {"--init", "--interactive", "--tty", "--label=gputui.job=7", "--log-opt=max-size=5m"} & set(found)
    # the allocation limits a job that sets no limits
    site = {"limit_containers": True}
    found = words(cluster=site)
    assert "$(allocated_memory)" in found
    assert any("SLURM_CPUS_ON_NODE" in each for each in found)
    own = words(cluster=site, cpus=2, memory=1024)
    assert not any("SLURM" in each or "allocated" in each for each in own)
    # containers run as their submitter where the site wants it
    site = {"run_as_submitter": True}
    found = words(runtime=site)
    assert '--user="$(id -u):$(id -g)"' in found
    assert "--security-opt=no-new-privileges" in found
    with pytest.raises(InputError, match="run as their submitter"):
        words(runtime=site, user="0")
    # a port that cannot be read is named
    with pytest.raises(InputError) as refusal:
        words(publish=("http",))
    assert refusal.value.where == "--publish"
    # profiles are files of their own
    options = ContainerOptions(security_opt=('seccomp={"a":1}', "seccomp=unconfined"))
    assert list(profiles(options)) == ['{"a":1}']
    assert "--security-opt=seccomp=unconfined" in words(security_opt=options.security_opt)


@cases(
    ("wanted", "most", "limit"),
    [
        (None, None, None),
        (None, 100, 100),
        (50, None, 50),
        (50, 100, 50),
        (200, 100, 100),
        (-1, 100, 100),
        (0, 100, 100),
    ],
)
def test_a_job_has_at_most_the_processes_that_the_site_allows(
    wanted: int | None, most: int | None, limit: int | None
) -> None:
    found = [each for each in words(pids_limit=wanted, runtime={"pids_limit": most}) if "pids-limit" in each]
    assert found == ([] if limit is None else [f"--pids-limit={limit}"])


@cases(
    ("request_", "around"),
    [
        (GpuRequest(1, 1), ('"device=', '"')),
        (GpuRequest(1, 1, driver="nvidia"), ('driver=nvidia,"device=', '"')),
        (
            GpuRequest(1, 1, capabilities=("gpu", "utility"), driver_options=(("a", "b"), ("c", "d"))),
            ('"device=', '","capabilities=gpu,utility","options=a=b,c=d"'),
        ),
    ],
)
def test_the_value_of_gpus_has_its_fields(request_: GpuRequest, around: tuple[str, str]) -> None:
    assert gpu_value(request_) == around
