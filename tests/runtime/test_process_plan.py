"""Plans of host jobs: contents, and refused options."""

from __future__ import annotations

import grp
import os
import pwd
import resource
import stat
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.bootstrap import SystemClock
from gputui.domain.container import Launch
from gputui.domain.errors import CauseCode, RuntimeFault
from gputui.domain.job_spec import ContainerOptions, Inherited, JobSpec
from gputui.domain.settings import RuntimeSettings
from gputui.runtime.host_processes import Account, ContainerUser, account_of, container_user
from gputui.runtime.process.runtime import ProcessRuntime, environment, plan_of
from tests.cases import cases
from tests.factories import uuid
from tests.runtime.contract import output, shell
from tests.runtime.test_process import process_harness

STORE = "abcdefghijkl"


def launch(*command: str, gpus: tuple[str, ...] = (), image: str | None = None, **options: Any) -> Launch:
    spec = JobSpec(image=image, command=command, options=ContainerOptions(**options))
    return Launch(STORE, 5, 2, spec, gpus)


BOB = Account(1234, 1234, (1234,), "bob", "/home/bob", "/bin/zsh")


def env_of(each: Launch, account: Account = BOB) -> dict[str, str]:
    return environment(each, account)


def refusal(each: Launch, tmp_path: Path) -> str:
    """Return the sentence of a refusal, which leaves no files behind."""
    with pytest.raises(RuntimeFault) as fault:
        ProcessRuntime(STORE, tmp_path, RuntimeSettings(), SystemClock()).create(each)
    assert fault.value.cause.code is CauseCode.BAD_SPEC
    assert not list(tmp_path.rglob("*gputui*"))
    return fault.value.cause.text


@cases(
    ("field", "value", "option"),
    [
        ("volumes", ("/a:/b",), "--volume"),
        ("mounts", ("type=bind,source=/a,target=/b",), "--mount"),
        ("entrypoint", "sh", "--entrypoint"),
        ("shm_size", 1, "--shm-size"),
        ("ipc", "host", "--ipc"),
        ("network", "host", "--network"),
        ("runtime", "nvidia", "--runtime"),
    ],
)
def test_options_of_containers_are_refused_by_name(field: str, value: Any, option: str, tmp_path: Path) -> None:
    assert option in refusal(launch("true", **{field: value}), tmp_path)


@cases(
    ("bad", "words"),
    [
        (launch("true", image="busybox"), "has an image"),
        (launch(), "needs a command"),
        (launch(""), "needs a command"),
        (launch("echo", "a\0b"), "no command line"),
        (launch("echo", "\udfff\ud800"), "no command line"),
        (launch("true", env=(("A=B", "c"),)), "'A=B'"),
        (launch("true", env=(("", "c"),)), "name of an environment variable"),
        (launch("true", env=(("A", "c\0d"),)), "no command line"),
        (launch("true", ulimits=("nofile",)), "'nofile'"),
        (launch("true", ulimits=("nofile=-5",)), "'nofile=-5'"),
        (launch("true", ulimits=("nosuch=5",)), "'nosuch=5'"),
        (launch("true", ulimits=(f"nofile={10**30}",)), "nofile=1000"),
        (launch("true", user="no-such-user"), "no user 'no-such-user'"),
        (launch("true", user=f"{os.geteuid()}:no-such-group"), "no group 'no-such-group'"),
        (launch("true", user=""), "no user ''"),
    ],
)
def test_impossible_options_are_refused_with_the_reason(bad: Launch, words: str, tmp_path: Path) -> None:
    assert words in refusal(bad, tmp_path)


def test_a_job_has_the_umask_and_the_limits_of_its_submitter(tmp_path: Path) -> None:
    """They stay below the hard limits of the scheduler; a limit of the job's own comes first."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limits = (("nofile", hard + 1), ("cpu", 5000), ("core", 0), ("stack", 4096 * 1024), ("of the future", 1))
    harness = process_harness(tmp_path / "state")
    each = harness.launch(shell("umask; ulimit -Sn; ulimit -St; ulimit -Ht; ulimit -Sc; ulimit -Ss"))
    inherited = Inherited(0o027, limits)
    each = replace(each, spec=replace(each.spec, inherited=inherited, options=ContainerOptions(ulimits=("core=1536",))))
    runtime = harness.open()
    runtime.start(runtime.create(each).id)
    ended = harness.ended(runtime, each.name)
    cpu = resource.getrlimit(resource.RLIMIT_CPU)[1]
    told = output(runtime, ended.id, tmp_path / "log").decode().split()
    assert told == ["0027", str(hard), "5000", "unlimited" if cpu == -1 else str(cpu), "3", "4096"]


def test_what_a_plan_takes() -> None:
    # labels and an unlimited ulimit are accepted
    plan = plan_of(launch("true", labels=(("a", "b"),), ulimits=("memlock=-1",)), log_limit=1)
    assert b"rlimit=8:-1:-1\0" in plan
    # GPUs are named by UUID
    env = env_of(launch("true", gpus=(uuid(3), uuid(1))))
    assert env["CUDA_VISIBLE_DEVICES"] == env["NVIDIA_VISIBLE_DEVICES"] == f"{uuid(3)},{uuid(1)}"
    assert env["GPUTUI_GPUS"] == "2"
    # naming the own account changes nothing
    assert not account_of(None, None).is_other
    assert not account_of(f"{os.geteuid()}:{os.getegid()}", None).is_other


def test_a_job_gets_its_account_and_the_passed_variables_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOPSECRET", "x")
    monkeypatch.setenv("LC_ALL", "xx")
    passed = (("PATH", "/opt/bin:/bin"), ("LD_LIBRARY_PATH", "/opt/cuda/lib"), ("CUDA_VISIBLE_DEVICES", "0"))
    assert env_of(launch("true", env=passed)) == {
        "HOME": "/home/bob",
        "USER": "bob",
        "LOGNAME": "bob",
        "SHELL": "/bin/zsh",
        "PATH": "/opt/bin:/bin",
        "LD_LIBRARY_PATH": "/opt/cuda/lib",
        "PYTHONUNBUFFERED": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "NVIDIA_VISIBLE_DEVICES": "void",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "GPUTUI_ATTEMPT": f"{STORE}:5:2",
        "GPUTUI_JOB_ID": "5",
        "GPUTUI_GPUS": "0",
    }
    assert env_of(launch("true", env=(("PYTHONUNBUFFERED", ""),)))["PYTHONUNBUFFERED"] == ""
    assert env_of(launch("true"))["PATH"] == "/usr/local/bin:/usr/bin:/bin"


@cases(("user", "run_as"), [("0:0", None), (None, 0), (None, 1234), ("nobody", None)])
def test_only_root_runs_jobs_as_others(user: str | None, run_as: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getegid", lambda: 1000)
    with pytest.raises(RuntimeFault) as fault:
        account_of(user, run_as)
    assert fault.value.cause.code is CauseCode.BAD_SPEC
    assert "root" in fault.value.cause.text


@pytest.mark.needs("root")
def test_only_root_may_name_another_account() -> None:
    """This also holds if the state directory is the submitter's own: root must not act as a third user on its word."""
    nobody = pwd.getpwnam("nobody")
    own = account_of(None, nobody.pw_uid)
    assert (own.uid, own.gid, own.name) == (nobody.pw_uid, nobody.pw_gid, "nobody")
    assert account_of("nobody", nobody.pw_uid) == own
    assert account_of("nobody", 0) == own
    for other in ("root", "0", "daemon", "nobody:0", "nobody:daemon"):
        with pytest.raises(RuntimeFault) as fault:
            account_of(other, nobody.pw_uid)
        assert fault.value.cause.code is CauseCode.BAD_SPEC
        with pytest.raises(RuntimeFault):
            container_user(other, nobody.pw_uid, is_boxed=True)
    with pytest.raises(RuntimeFault, match="only operators may name another user"):
        container_user("root", nobody.pw_uid, is_boxed=True)
    assert container_user(None, nobody.pw_uid).user == f"{nobody.pw_uid}:{nobody.pw_gid}"
    assert container_user("root", nobody.pw_uid) == ContainerUser("root", ())


@cases("last", [1895401105, 2**32 - 2])
def test_ids_of_directory_services_have_ten_digits(last: int) -> None:
    found = container_user(f"{last}:{last - 1}", 0, (str(last),), is_boxed=True)
    assert (found.user, found.groups) == (f"{last}:{last - 1}", (str(last),))


@cases("wrong", ["4294967295", "4294967296", "18954011050", "-1"])
def test_no_id_is_the_one_by_which_the_kernel_changes_nothing(wrong: str) -> None:
    for user in (wrong, f"0:{wrong}"):
        with pytest.raises(RuntimeFault, match="this host has no"):
            container_user(user, 0, is_boxed=True)


def test_groups_may_have_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    known = grp.struct_group(("domain users", "x", 1895400513, []))
    monkeypatch.setattr(grp, "getgrnam", {known.gr_name: known}.__getitem__)
    found = container_user("0:domain users", 0, ["domain users"], is_boxed=True)
    assert (found.user, found.groups) == ("0:1895400513", ("1895400513",))


def test_a_job_runs_as_another_user(tmp_path: Path) -> None:
    """A job as another user is refused without root, which is all that is possible."""
    harness = process_harness(tmp_path / "state")
    nobody = pwd.getpwnam("nobody")
    each = harness.launch(shell("id -u; id -g; id -G; pwd"), user="nobody", workdir="/")
    runtime = harness.open()
    if os.geteuid() == 0:
        runtime.start(runtime.create(each).id)
        ended = harness.ended(runtime, each.name)
        gid = nobody.pw_gid
        assert output(runtime, ended.id, tmp_path / "log").decode() == f"{nobody.pw_uid}\n{gid}\n{gid}\n/\n"
    else:
        with pytest.raises(RuntimeFault):
            runtime.create(each)
    harness.clean()


@cases(
    ("options", "words"),
    [({"workdir": "/no/such/folder"}, "working directory"), ({"ulimits": ("nofile=20:10",)}, "ulimits")],
)
def test_late_errors_are_refused_at_the_start(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    harness = process_harness(tmp_path / "state")
    runtime = harness.open()
    created = runtime.create(harness.launch(("true",), **options))
    for _ in range(2):  # a scheduler that was killed over the first answer asks again
        with pytest.raises(RuntimeFault) as fault:
            runtime.start(created.id)
        assert fault.value.cause.code is CauseCode.BAD_SPEC
        assert words in fault.value.cause.text
    harness.clean()


def test_kept_files_are_private(tmp_path: Path) -> None:
    runtime = ProcessRuntime(STORE, tmp_path, RuntimeSettings(), SystemClock())
    runtime.create(launch("true", env=(("TOKEN", "secret"),)))
    folder = tmp_path / "attempts" / f"gputui-{STORE}-5-2"
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()}
    assert modes == dict.fromkeys(["launch.json", "plan", "state", "claim", "output.log"], 0o600)
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert b"secret" in (folder / "plan").read_bytes()
    assert b"secret" not in (folder / "launch.json").read_bytes()
