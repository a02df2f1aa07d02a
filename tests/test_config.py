"""Options and settings: reading, and errors that name file, key and expected value."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputui import config as options
from gputui import thin
from gputui.config import Options, ProbeSpec, parse_probe, resolve, settings_file
from gputui.domain.cluster import Engine, parse_engine
from gputui.domain.errors import InputError
from gputui.domain.settings import (
    AllowSettings,
    ClusterSettings,
    PolicySettings,
    ServerSettings,
    Settings,
    TenantSettings,
)
from tests.cases import cases
from tests.factories import load_settings


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the settings files of this machine and of the user who runs the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg-state"))
    monkeypatch.setattr(options, "SITE_CONFIG", tmp_path / "site.toml")


def read(tmp_path: Path, content: str | bytes, **environ: str) -> Settings:
    file = tmp_path / "config.toml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_settings(file, environ)


def test_a_personal_file_sets_what_the_site_leaves(tmp_path: Path) -> None:
    assert resolve(environ={}).settings == Settings()
    own = own_file(tmp_path, "[store]\nkeep_finished = 2")
    made = resolve(environ={"GPUTUI_POLICY_PATIENCE": "1h"})
    assert (made.config, made.site, made.ignored) == (own, None, ())
    assert (made.settings.store.keep_finished, made.settings.policy.patience) == (2, timedelta(hours=1))


def test_a_file_sets_the_keys_that_it_names(tmp_path: Path) -> None:
    made = read(
        tmp_path,
        """
        [scheduler]
        tick_interval = "1m30s"
        stop_grace = 0
        memory_floor = "512m"
        host_jobs = false
        hand_over = "never"
        ignore_processes = ["Xorg"]
        [store]
        group = "gpu"
        keep_finished = 5
        [runtime]
        docker_host = "ssh://gpu1"
        pids_limit = 4096
        log_max_size = 1048576
        [gpus]
        sample_interval = "0.5s"
        """,
    )
    assert made.scheduler.tick_interval == timedelta(seconds=90)
    assert made.scheduler.stop_grace == timedelta(0)
    assert made.scheduler.memory_floor == 512 * 1024**2
    assert (made.scheduler.host_jobs, made.scheduler.hand_over) == (False, "never")
    assert made.scheduler.ignore_processes == ("Xorg",)
    assert (made.store.group, made.store.keep_finished) == ("gpu", 5)
    assert (made.runtime.docker_host, made.runtime.pids_limit, made.runtime.log_max_size) == ("ssh://gpu1", 4096, 2**20)
    assert made.gpus.sample_interval == timedelta(seconds=0.5)
    assert made.scheduler.reconcile_interval == Settings().scheduler.reconcile_interval


BAD = [
    ("[schedular]", "schedular"), ("scheduler = 3", "scheduler"), ("tick_interval = 3", "tick_interval"),
    ("[scheduler]\ntick = 3", "scheduler.tick"), ('[scheduler]\ntick_interval = "soon"', "scheduler.tick_interval"),
    ("[scheduler]\ntick_interval = true", "scheduler.tick_interval"),
    ("[scheduler]\ntick_interval = 0", "scheduler.tick_interval"),
    ("[scheduler]\ntick_interval = -1", "scheduler.tick_interval"),
    ("[scheduler]\ntick_interval = nan", "scheduler.tick_interval"),
    ("[scheduler]\ntick_interval = 90", "scheduler.tick_interval"),
    ('[scheduler]\ntick_interval = "1.5"', "scheduler.tick_interval"),
    ('[scheduler]\nmemory_floor = "lots"', "scheduler.memory_floor"),
    ("[scheduler]\nmemory_floor = -1", "scheduler.memory_floor"),
    ("[scheduler]\ninfrastructure_retries = -1", "scheduler.infrastructure_retries"),
    ('[scheduler]\ninfrastructure_retries = "3"', "scheduler.infrastructure_retries"),
    ("[scheduler]\nhost_jobs = 1", "scheduler.host_jobs"),
    ('[scheduler]\nhand_over = "maybe"', "scheduler.hand_over"), ('[console]\nwhat_if = "never"', "console.what_if"),
    ("[scheduler]\nhand_over = 3", "scheduler.hand_over"),
    ('[scheduler]\nignore_processes = "Xorg"', "scheduler.ignore_processes"),
    ("[scheduler]\nignore_processes = [1]", "scheduler.ignore_processes"),
    ('[store]\ngroup = "a\\u0000b"', "store.group"), ("[store]\nkeep_finished = 1.5", "store.keep_finished"),
    ("[runtime]\npids_limit = 0", "runtime.pids_limit"),
    ("[runtime]\nlog_max_files = 99999999999", "runtime.log_max_files"),
    ('[hooks]\nwebhook = "example.org"', "hooks.webhook"),
    ('[hooks]\nmail_events = ["job_failed", "job_lost"]', "hooks.mail_events"),
    ('[console]\ncolumns = ["colour"]', "console.columns"), ('[report]\nweekly = "someday 08:00"', "report.weekly"),
    ("[report]\ngpu_hour = -1.0", "report.gpu_hour"), ('[metrics]\nlisten = "gpu1"', "metrics.listen"),
    ('[metrics]\nlisten = "::1:9877"', "metrics.listen"), ('[metrics]\nlisten = "gpu1:70000"', "metrics.listen"),
    ('[cluster]\nprobe_command = "ssh gpu1 gputui probe"', "cluster.probe_command"), ("servers = 3", "servers"),
    ('[servers]\nname = "gpu1"', "servers"), ('[[servers]]\nname = "gpu1"\nadress = "ssh://gpu1"', "servers.adress"),
    ('[[servers]]\naddress = "ssh://gpu1"', "servers.name"), ('[[servers]]\nname = "gpu 1"', "servers.name"),
    ('[[servers]]\nname = "gpu1"\n[[servers]]\nname = "gpu1"', "servers.name"),
    ('[[servers]]\nname = "gpu1"\naddress = "http://gpu1"', "servers.address"), ("[scheduler", ""),
    ("a = 1\na = 2", ""), (b"\xff", ""), ('a = "\0"', ""), ("x = " + "[" * 5000, ""), ("x = 1" + "0" * 5000, ""),
    (b"#" * (1024**2 + 1), ""),
]  # fmt: skip


@cases(("content", "key"), BAD)
def test_bad_files_are_refused_by_file_and_key(tmp_path: Path, content: str | bytes, key: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, content)
    assert str(caught.value).startswith(f"{tmp_path}/config.toml: {key}")


@cases("path", ["missing.toml", "."])
def test_a_file_that_was_named_must_be_readable(tmp_path: Path, path: str) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        resolve(config=str(tmp_path / path), environ={})


def test_the_environment_goes_over_the_file(tmp_path: Path) -> None:
    made = read(
        tmp_path,
        '[scheduler]\ntick_interval = "9s"\nhost_jobs = true',
        GPUTUI_SCHEDULER_TICK_INTERVAL="3s",
        GPUTUI_SCHEDULER_HOST_JOBS="no",
        GPUTUI_SCHEDULER_IGNORE_PROCESSES="Xorg, dcgm",
        GPUTUI_STORE_KEEP_FINISHED="7",
        GPUTUI_SCHEDULER_MEMORY_FLOOR="1g",
        GPUTUI_RUNTIME_DOCKER_HOST="tcp://gpu1:2376",
        GPUTUI_REPORT_GPU_HOUR="1.75",
        GPUTUI_REPORT_WEEKLY="Mon 08:00",
        GPUTUI_CONSOLE_KEYS="hold=h,H release=r",
        GPUTUI_RUNTIME="process",
        GPUTUI_SOMETHING_ELSE="x",
    )
    assert made.scheduler.tick_interval == timedelta(seconds=3)
    assert (made.scheduler.host_jobs, made.scheduler.ignore_processes) == (False, ("Xorg", "dcgm"))
    assert (made.store.keep_finished, made.scheduler.memory_floor) == (7, 1024**3)
    assert made.runtime.docker_host == "tcp://gpu1:2376"
    assert (made.report.gpu_hour, made.report.weekly) == (1.75, "Mon 08:00")
    assert made.console.keys == {"hold": ("h", "H"), "release": ("r",)}


@cases(
    ("name", "text"),
    [
        ("GPUTUI_SCHEDULER_HOST_JOBS", "perhaps"),
        ("GPUTUI_SCHEDULER_TICK_INTERVAL", "-1"),
        ("GPUTUI_STORE_KEEP_FINISHED", "1.5"),
        ("GPUTUI_SCHEDULER_HAND_OVER", ""),
        ("GPUTUI_SCHEDULER_MEMORY_FLOOR", "much"),
        ("GPUTUI_REPORT_KWH", "-0.3"),
        ("GPUTUI_HOOKS_MAIL_EVENTS", "job_failed,job_lost"),
    ],
)
def test_bad_variables_are_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(InputError) as caught:
        load_settings(None, {name: text})
    assert caught.value.where == name


def test_options_override_the_environment() -> None:
    environ = {"GPUTUI_STATE": "/var/a", "GPUTUI_PROBE": "sim:2", "GPUTUI_RUNTIME": "process"}
    assert resolve(environ=environ) == Options(Path("/var/a"), None, ProbeSpec(2), "process", names_queue=True)
    given = resolve(state="/var/b", probe="nvml", runtime="docker", environ=environ)
    assert given == Options(Path("/var/b"), None, ProbeSpec(), "docker", names_queue=True)


def test_the_state_directory_of_root_and_of_a_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert resolve(environ={}).state == Path("/var/lib/gputui")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert resolve(environ={}).state == tmp_path / "xdg-state" / "gputui"


@cases(
    ("path", "says"),
    [(os.fsdecode(b"/srv/b\xfcro"), "is not UTF-8 text"), ("~no-such-user/x", "begins with a user who does not exist")],
)
def test_a_state_directory_that_cannot_be_named_is_refused(path: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as refused:
        resolve(state=path)
    assert refused.value.where == "--state"


@cases(
    ("environ", "is_named"),
    [
        ({}, False),
        ({"GPUTUI_STATE": "/var/a"}, True),
        ({"GPUTUI_CLUSTER": "slurm"}, True),
        ({"GPUTUI_CLUSTER": ""}, False),
    ],
)
def test_the_servers_of_the_settings_give_way_to_a_queue_that_is_named(environ: dict[str, str], is_named: bool) -> None:
    assert resolve(environ=environ).names_queue is is_named
    assert resolve(state="/var/b", environ=environ).names_queue


@cases(
    ("text", "engine"),
    [
        ("", None),
        ("slurm", Engine("slurm")),
        ("slurm+ssh://login1", Engine("slurm", "login1")),
        ("slurm+ssh://ann@login1.example.org:2222", Engine("slurm", "ann@login1.example.org", 2222)),
    ],
)
def test_the_cluster_is_an_engine_and_a_login_node(text: str, engine: Engine | None) -> None:
    assert load_settings(None, {"GPUTUI_CLUSTER": text}).cluster.engine == text
    assert parse_engine(text) == engine


@cases(
    "text",
    ["pbs", "slurm+ssh://", "slurm+ssh://-oProxyCommand=x", "slurm+ssh://-l@h", "slurm+ssh://h:0", "slurm+ssh://h/x"],
)
def test_other_clusters_are_refused_by_name(text: str) -> None:
    with pytest.raises(InputError, match="is not a cluster") as caught:
        load_settings(None, {"GPUTUI_CLUSTER": text})
    assert caught.value.where == "GPUTUI_CLUSTER"


def test_the_variable_of_the_cluster_goes_before_the_file_and_is_never_refused(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text('[cluster]\nengine = "slurm+ssh://login1"\npartition = "gpu"\n')
    made = resolve(environ={"GPUTUI_CLUSTER": "", "GPUTUI_CLUSTER_DEFAULT_TIME": "1h"})
    assert made.settings.cluster == ClusterSettings(partition="gpu", default_time=timedelta(hours=1))
    assert made.ignored == ()


SITE = """
overridable = ["store.lock_timeout", "gpus"]
[policy]
max_time = "2h"
[store]
keep_finished = 1
[console]
theme = "nord"
toast = "failed"
[console.keys]
hold = "H"
release = "R"
"""


def own_file(tmp_path: Path, content: str) -> Path:
    own = tmp_path / "xdg" / "gputui" / "config.toml"
    own.parent.mkdir(parents=True)
    own.write_text(content)
    return own


def test_a_personal_file_changes_console_settings_and_permitted_keys(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(SITE.replace("store.lock_timeout", "store.history_after"))
    own = own_file(
        tmp_path,
        """
        [console]
        theme = "gputui-light"
        keys = { hold = "h" }
        [gpus]
        sample_interval = "3s"
        [store]
        history_after = "1d"
        keep_finished = 2
        [policy]
        max_time = "9d"
        [hooks]
        webhook = "http://example.org/"
        """,
    )
    made = resolve(environ={"GPUTUI_POLICY_MAX_TIME": "9d", "GPUTUI_CONSOLE_BELL": "all"})
    got = made.settings
    assert (got.console.theme, got.console.toast, got.console.bell) == ("gputui-light", "failed", "all")
    assert got.console.keys == {"hold": ("h",), "release": ("R",)}
    assert (got.gpus.sample_interval, got.store.history_after) == (timedelta(seconds=3), timedelta(days=1))
    assert (got.policy.max_time, got.store.keep_finished, got.hooks.webhook) == (timedelta(hours=2), 1, None)
    refused = ("store.keep_finished", "policy.max_time", "hooks.webhook")
    assert made.ignored == ((str(own), refused), ("environment", ("policy.max_time",)))


def test_the_servers_of_a_personal_file_replace_those_of_the_site(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text('[[servers]]\nname = "gpu1"\n[[servers]]\nname = "gpu2"\n')
    assert [server.name for server in resolve(environ={}).settings.servers] == ["gpu1", "gpu2"]
    own_file(tmp_path, '[[servers]]\nname = "mine"\naddress = "ssh://alice@gpu9"\n')
    made = resolve(environ={})
    assert made.settings.servers == (ServerSettings("mine", "ssh://alice@gpu9"),)
    assert made.ignored == ()


def test_a_named_file_replaces_the_personal_one_but_not_that_of_the_site(tmp_path: Path) -> None:
    site, named = tmp_path / "site.toml", tmp_path / "named.toml"
    site.write_text(SITE.replace('"store.lock_timeout", ', ""))
    named.write_text('[policy]\nmax_time = "9d"\n[console]\ntheme = "gputui-16"')
    made = resolve(environ={"GPUTUI_CONFIG": str(named)})
    assert (made.settings.policy.max_time, made.settings.console.theme) == (timedelta(hours=2), "gputui-16")
    assert made.ignored == ((str(named), ("policy.max_time",)),)
    itself = resolve(config=str(site), environ={})
    assert (itself.config, itself.ignored, itself.settings.store.keep_finished) == (None, (), 1)


def test_the_environment_names_a_site_file_only_without_an_installed_one(tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("[store]\nkeep_finished = 7")
    assert resolve(environ={"GPUTUI_SITE_CONFIG": str(other)}).settings.store.keep_finished == 7
    (tmp_path / "site.toml").write_text("[store]\nkeep_finished = 1")
    made = resolve(environ={"GPUTUI_SITE_CONFIG": str(other)})
    assert (made.site, made.settings.store.keep_finished) == (tmp_path / "site.toml", 1)


def test_overridable_names_settings(tmp_path: Path) -> None:
    for text in ('"policy.max_time"', "[3]", '["nothing"]', '["policy.nothing"]'):
        (tmp_path / "site.toml").write_text(f"overridable = {text}")
        with pytest.raises(InputError, match="overridable"):
            resolve(environ={})


def test_a_personal_file_makes_nothing_overridable(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text("[store]\nkeep_finished = 1")
    own = own_file(tmp_path, 'overridable = ["store"]\n[store]\nkeep_finished = 2')
    made = resolve(environ={})
    assert made.settings.store.keep_finished == 1
    assert made.ignored == ((str(own), ("overridable", "store.keep_finished")),)


def test_an_unreadable_site_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "site.toml").mkdir()
    with pytest.raises(InputError, match=r"site\.toml: cannot be read"):
        resolve(environ={})


HOOKS = '[hooks]\non_job_end = ["/bin/true"]\n'


@cases(("mode", "directory"), [(0o664, 0o755), (0o646, 0o755), (0o644, 0o775), (0o644, 0o757)])
def test_hooks_that_others_may_write_are_refused(tmp_path: Path, mode: int, directory: int) -> None:
    place = tmp_path / "etc"
    place.mkdir()
    file = place / "config.toml"
    file.write_text(HOOKS)
    assert resolve(config=str(file), environ={}).settings.hooks.on_job_end == ("/bin/true",)
    file.chmod(mode)
    place.chmod(directory)
    with pytest.raises(InputError, match="can be changed by others") as raised:
        resolve(config=str(file), environ={})
    wrong = file if mode != 0o644 else place
    assert raised.value.hint == f"chmod go-w {wrong}"
    file.write_text("[store]\nkeep_finished = 3")
    assert resolve(config=str(file), environ={}).settings.store.keep_finished == 3


def test_a_sticky_directory_is_trusted(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(HOOKS)
    tmp_path.chmod(0o1777)
    assert resolve(config=str(file), environ={}).settings.hooks.on_job_end


def test_hooks_of_another_user_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.toml"
    file.write_text(HOOKS)
    os.chown(file, 54321, -1) if os.geteuid() == 0 else monkeypatch.setattr(os, "geteuid", lambda: 54322)
    with pytest.raises(InputError, match="belongs to"):
        resolve(config=str(file), environ={"GPUTUI_STATE": "/x"})


@cases(
    ("text", "spec"), [("nvml", ProbeSpec()), ("sim:8", ProbeSpec(8)), ("sim:2:H100 80GB", ProbeSpec(2, "H100 80GB"))]
)
def test_a_probe_is_formatted_and_read_back(text: str, spec: ProbeSpec) -> None:
    assert parse_probe(text) == spec
    assert str(spec) == text


@cases("text", ["", "sim", "sim:", "sim:x", "sim:-1", "sim:0", "sim:99999", "sim:1:", "NVML", "sim:1:\x1b[2J"])
def test_invalid_probes_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--probe") as caught:
        parse_probe(text)
    assert "\x1b" not in str(caught.value)


@cases("option", [{"state": "a\0b"}, {"state": "x" * 5000}, {"runtime": "podman"}, {"config": "\x1b"}])
def test_bad_options_are_refused_by_name(option: dict[str, str]) -> None:
    with pytest.raises(InputError, match="--" + next(iter(option))):
        resolve(**option, environ={})


@cases(("given", "environ"), [({"state": "/var/a"}, {}), ({}, {"GPUTUI_SOCKET": "/srv/s"})])
def test_another_process_gets_the_same_options(tmp_path: Path, given: dict[str, str], environ: dict[str, str]) -> None:
    """Also the shell in a job of who asks a service: with a directory it would look into a queue of his own."""
    file = tmp_path / "config.toml"
    file.write_text("[store]\nkeep_finished = 1")
    made = resolve(**given, config=str(file), probe="sim:2:H100", runtime="process", environ=environ)
    told = made.arguments()
    again = resolve(**dict(zip((name[2:] for name in told[::2]), told[1::2], strict=True)), environ=environ)
    assert again == made


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.binary(max_size=200) | st.text(max_size=200).map(lambda text: f"[scheduler]\n{text}".encode(errors="replace"))
)
def test_any_file_gives_settings_or_an_input_error(tmp_path: Path, content: bytes) -> None:
    try:
        read(tmp_path, content)
    except InputError as error:
        assert str(error).startswith(str(tmp_path))  # noqa: PT017 - only some files are refused


VALUES = st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers() | st.text(), max_size=3)
KEYS = st.sampled_from(["tick_interval", "memory_floor", "host_jobs", "hand_over", "ignore_processes", "no_such"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(table=st.dictionaries(KEYS, VALUES, max_size=3))
def test_any_table_gives_settings_or_an_input_error(table: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    status = Path("/").stat()
    monkeypatch.setattr(settings_file, "read_toml", lambda path, where: ({"scheduler": table}, status))
    try:
        load_settings(Path("config.toml"), {})
    except InputError as error:
        assert str(error.where).startswith("config.toml: scheduler")  # noqa: PT017 - only some are refused


@cases(
    ("content", "meant"),
    [
        ('share = "all"', ("all",)),
        ('share = ["0", "MIG-a"]', ("0", "MIG-a")),
        ("share = [6, 7]", ("6", "7")),
        ("share = 6", ("6",)),
        ("share_jobs = 4", ()),
    ],
)
def test_the_gpus_that_may_be_shared(tmp_path: Path, content: str, meant: tuple[str, ...]) -> None:
    assert read(tmp_path, f"[policy]\n{content}").policy.share == meant
    assert read(tmp_path, "", GPUTUI_POLICY_SHARE="all").policy.share == ("all",)


def test_gpus_may_be_given_as_numbers(tmp_path: Path) -> None:
    found = read(tmp_path, "[policy]\nprefer = [0, 1]\nleft_free = [7]\n").policy
    assert (found.prefer, found.left_free) == (("0", "1"), ("7",))
    times = "start = 2026-03-02T14:00:00Z\nend = 2026-03-02T15:00:00Z"
    windows = read(tmp_path, f'[[policy.reservations]]\nname = "a"\ngpus = [3, "4"]\n{times}\n').policy.reservations
    assert windows[0].gpus == ("3", "4")
    with pytest.raises(InputError, match="prefer"):
        read(tmp_path, "[policy]\nprefer = [true]\n")


@cases("name", ["low", "normal", "high"])
def test_former_default_limits_are_refused_with_their_replacement(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, f'[policy]\nlimit_{name} = "8h"\n')
    assert "this setting no longer exists" in str(caught.value)
    assert "planned as the longest allowed" in (caught.value.hint or "")


@cases(
    "line",
    [
        "class_weight = 1000.0",
        "age_weight = 1",
        "age_cap = 5",
        "duration_weight = 0",
        "duration_cap = 3",
        "fair_weight = 2",
    ],
)
def test_former_weights_are_refused_with_their_replacement(tmp_path: Path, line: str) -> None:
    key, _, value = line.partition(" = ")
    with pytest.raises(InputError, match=f"policy.{key}: this setting no longer exists") as caught:
        read(tmp_path, f"[policy]\n{line}\n")
    assert "now" in (caught.value.hint or "")
    with pytest.raises(InputError, match="this setting no longer exists"):
        read(tmp_path, "", **{f"GPUTUI_POLICY_{key.upper()}": value})


def test_former_settings_of_a_file_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, '[policy]\nage_weight = 1\nlimit_low = "8h"\nage_cap = 5\nclass_weight = 2\n')
    told = str(caught.value)
    assert told.count("\n") == 0
    assert "policy.age_weight, policy.age_cap, policy.limit_low, policy.class_weight: these settings no longer" in told
    assert all(words in told for words in ("remove them: ", "policy.max_time", "newcomer_credit", "promote_after"))
    with pytest.raises(InputError, match="these settings no longer exist"):
        read(tmp_path, "", GPUTUI_POLICY_AGE_WEIGHT="1", GPUTUI_POLICY_AGE_CAP="5")
    former = "[console]\nfold_ended_after = 300\npower_high = 90\nmemory_full = 97\ntemperature_limit = 100\n"
    assert read(tmp_path, former) == read(tmp_path, "")
    with pytest.raises(InputError, match="GPUTUI_POLICY_SHARE_JOBS: expected a whole number"):
        read(tmp_path, "", GPUTUI_POLICY_SHARE_JOBS="three")


def test_all_durations_without_a_unit_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(
            tmp_path, '[scheduler]\nstop_grace = "10"\nidle_gpus_after = 0\ntick_interval = 2\n[hooks]\ntimeout = 1.5\n'
        )
    assert caught.value.where == f"{tmp_path}/config.toml: scheduler.stop_grace, scheduler.tick_interval, hooks.timeout"
    assert "these durations have no unit" in str(caught.value)
    assert 'write stop_grace = "10s", tick_interval = "2s", timeout = "1.5s"' in (caught.value.hint or "")
    with pytest.raises(InputError, match="GPUTUI_SCHEDULER_STOP_GRACE: '10' has no unit"):
        read(tmp_path, "", GPUTUI_SCHEDULER_STOP_GRACE="10")


def test_the_policy_is_a_table_of_its_own(tmp_path: Path) -> None:
    policy = read(
        tmp_path,
        """
        [policy]
        newcomer_credit = 0
        promote_after = "5d"
        max_time = "8h"
        patience = 0
        standing_priority = 80
        left_free = ["7"]
        [[policy.tenants]]
        name = "vision"
        weight = 2.5
        gpus = 4
        [[policy.reservations]]
        name = "course"
        start = 2026-03-02T14:00:00Z
        end = 2026-03-02T18:00:00+01:00
        count = 6
        tenant = "bob"
        """,
        GPUTUI_POLICY_AGE_UNIT="12h",
    ).policy
    days = timedelta(days=1)
    assert (policy.newcomer_credit, policy.promote_after, policy.age_unit) == (0 * days, 5 * days, days / 2)
    assert (policy.max_time, policy.patience, policy.standing_priority) == (timedelta(hours=8), timedelta(0), 80)
    assert policy.tenants == (TenantSettings("vision", 2.5, gpus=4),)
    [window] = policy.reservations
    assert (window.start, window.end) == (datetime(2026, 3, 2, 14, tzinfo=UTC), datetime(2026, 3, 2, 17, tzinfo=UTC))
    assert (window.count, window.tenant, window.priority) == (6, "bob", None)


@cases(
    ("content", "where"),
    [
        ("age_unit = 0", "policy.age_unit"),
        ("half_life = 0", "policy.half_life"),
        ('newcomer_credit = "much"', "policy.newcomer_credit"),
        ("[[policy.tenants]]\nweight = 2", "policy.tenants"),
        ('[[policy.tenants]]\nname = "a"\nweight = -2', "policy.tenants.weight"),
        ('[[policy.tenants]]\nname = "a"\n[[policy.tenants]]\nname = "a"', "policy.tenants.name: 'a' is there twice"),
        ('[[policy.tenants]]\nname = "a\\nb"', "policy.tenants.name: 'a\\nb' has control characters"),
        ('[[policy.tenants]]\nname = " "', "policy.tenants.name: ' ' is blank"),
        ("standing_priority = 101", "policy.standing_priority: expected 0 to 100"),
        ("[report]\ngpu_hour = -1", "report.gpu_hour: expected 0 to"),
        ('[[policy.tenants]]\nname = "a"\nmax_gpus = 4', "policy.tenants.max_gpus: unknown key (known: name,"),
        ('[[policy.tenants]]\nname = "a"\n[policy.tenants.caps]\ngpus = 4', "policy.tenants.caps: unknown key"),
        (
            "[[policy.reservations]]\nname = 'x'\nstart = 2026-03-02T14:00:00Z\nend = 2026-03-02T15:00:00Z\ngpu = 1",
            "policy.reservations.gpu: unknown key",
        ),
        ("[[policy.reservations]]\nname = 'x'\nstart = 2026-03-02T14:00:00\nend = 2026-03-02T15:00:00", "offset"),
        (
            "[[policy.reservations]]\nname = 'x'\nstart = 2026-03-02T14:00:00Z\nend = 2026-03-02T13:00:00Z",
            "ends before",
        ),
        ("[[policy.reservations]]\nname = 'x'\nstart = 5\nend = 6", "policy.reservations"),
    ],
)
def test_an_impossible_policy_is_refused(tmp_path: Path, content: str, where: str) -> None:
    with pytest.raises(InputError) as raised:
        read(tmp_path, f"[policy]\n{content}\n")
    assert where in str(raised.value)


@cases(
    ("key", "text", "value"),
    [
        ("patience", "90m", timedelta(minutes=90)),
        ("max_time", "None", None),
        ("max_time", "2d", timedelta(days=2)),
        ("preemption", "on", True),
    ],
)
def test_the_text_of_a_value_is_read_as_its_key_demands(key: str, text: str, value: object) -> None:
    assert settings_file.value_of_text(PolicySettings, key, text, "--set") == value


@cases(("key", "hint"), [("patiense", "did you mean patience?"), ("colour", "known: patience, age")])
def test_a_wrong_key_is_refused_with_those_that_are_offered(key: str, hint: str) -> None:
    with pytest.raises(InputError) as refused:
        settings_file.value_of_text(PolicySettings, key, "1", "--set", ("patience", "age"))
    assert (refused.value.where, refused.value.hint) == ("--set", hint)


def test_options_of_docker_run_are_allowed_one_by_one(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        '[policy]\noperators = ["alice", "@wheel"]\n'
        '[policy.allow]\nprivileged = false\nnetwork = true\nmounts = ["/data", "/scratch"]\n'
    )
    policy = load_settings(file, {}).policy
    assert policy.operators == ("alice", "@wheel")
    assert policy.allow == AllowSettings({"privileged": False, "network": True}, ("/data", "/scratch"))
    environ = {"GPUTUI_POLICY_ALLOW": "privileged=false mounts=/data"}
    assert load_settings(None, environ).policy.allow == AllowSettings({"privileged": False}, ("/data",))


@cases(
    ("content", "key"),
    [
        ("allow = 1", "policy.allow"),
        ("[policy.allow]\nprivilaged = false", "policy.allow.privilaged"),
        ('[policy.allow]\nprivileged = "no"', "policy.allow.privileged"),
        ('[policy.allow]\nmounts = ["data"]', "policy.allow.mounts"),
        ('[policy.allow]\nnamed_volumes = ["/data"]', "policy.allow.named_volumes"),
    ],
)
def test_invalid_tables_are_refused_by_key(tmp_path: Path, content: str, key: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"[policy]\n{content}\n")
    with pytest.raises(InputError) as caught:
        load_settings(file, {})
    assert (caught.value.where or "").endswith(key)


RUN = "/run/gputui/api.sock"
HOME_QUEUE = "/home/alice/.local/state/gputui"
SHARED_QUEUE = "/var/lib/gputui"


@cases(
    ("uid", "state", "option", "environ", "service", "paths", "in_process"),
    [
        (7, HOME_QUEUE, False, {}, False, (f"{HOME_QUEUE}/api.sock",), True),
        (7, HOME_QUEUE, False, {}, True, (RUN,), False),
        (7, "/srv/q", True, {"GPUTUI_SOCKET": "/tmp/x"}, True, ("/srv/q/api.sock",), True),
        (7, "/srv/q", False, {"GPUTUI_SOCKET": "/tmp/x", "GPUTUI_STATE": "/srv/q"}, True, ("/tmp/x",), False),
        (7, "/srv/q", False, {"GPUTUI_STATE": "/srv/q"}, True, ("/srv/q/api.sock",), True),
        (7, SHARED_QUEUE, False, {"GPUTUI_STATE": SHARED_QUEUE}, True, (f"{SHARED_QUEUE}/api.sock", RUN), True),
        (0, SHARED_QUEUE, False, {}, True, (f"{SHARED_QUEUE}/api.sock", RUN), True),
        (0, SHARED_QUEUE, False, {}, False, (f"{SHARED_QUEUE}/api.sock", RUN), True),
        (0, "/srv/q", True, {}, True, ("/srv/q/api.sock",), True),
    ],
)
def test_a_command_finds_the_owner_of_its_queue(
    uid: int, state: str, option: bool, environ: dict[str, str], service: bool, paths: tuple[str, ...], in_process: bool
) -> None:
    is_named = option or "GPUTUI_STATE" in environ
    found = options.find_sockets(
        state,
        is_option=option,
        is_named=is_named,
        environ=environ,
        uid=uid,
        exists=lambda path: service and str(path) == RUN,
    )
    assert found == options.Sockets(paths, in_process=in_process)


def test_the_settings_place_the_services_socket_elsewhere() -> None:
    found = options.find_sockets(
        HOME_QUEUE,
        is_option=False,
        is_named=False,
        environ={},
        service="/srv/api.sock",
        uid=7,
        exists=lambda path: True,
    )
    assert found == options.Sockets(("/srv/api.sock",), in_process=False)


def test_options_say_where_the_owner_is_asked(tmp_path: Path) -> None:
    own = f"{tmp_path}/queue"
    assert resolve(state=own, environ={}).sockets.paths == (f"{own}/api.sock",)
    assert resolve(environ={"GPUTUI_SOCKET": "/tmp/x", "GPUTUI_STATE": own}).sockets.paths == ("/tmp/x",)
    assert Options(Path(own)).sockets.paths == (f"{own}/api.sock",)


@cases("uid", [0, 1000])
@cases("is_served", [True, False])
@cases("option", [None, "queue", "/srv/q", "~/q", "ROOT"])
@cases("environ", [{}, {"GPUTUI_SOCKET": "/srv/s"}, {"GPUTUI_STATE": "ROOT"}, {"GPUTUI_STATE": "/q"}])
def test_the_thin_client_asks_where_the_options_say(
    uid: int,
    is_served: bool,
    option: str | None,
    environ: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root, service = tmp_path / "root", tmp_path / "service.sock"
    monkeypatch.setattr(options, "ROOT_STATE", root)
    monkeypatch.setattr(thin, "ROOT_STATE", str(root))
    for each in (options, thin):
        monkeypatch.setattr(each, "SERVICE_SOCKET", str(service))
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    if is_served:
        service.touch()
    state = str(root) if option == "ROOT" else option
    for name, value in environ.items():
        monkeypatch.setenv(name, str(root) if value == "ROOT" else value)
    assert thin.sockets(state) == resolve(state=state).sockets.paths
