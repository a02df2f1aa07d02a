"""Callers: roles by the kernel's word, and what a process in a container may do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from gputui.api.http import Peer
from gputui.api.rights import AccountNames, Callers, whereabouts_of
from gputui.domain.access import Caller, Role
from gputui.domain.job import Job
from gputui.domain.settings import AccessSettings, PolicySettings, Settings
from tests.cases import cases
from tests.factories import NOW, job, running

OWNER, ALICE, BOB, EVE, LAB, WHEEL = 900, 1001, 1002, 1003, 500, 10
STORE = "abcdef012345"
OURS, THEIRS = "a" * 64, "b" * 64
SESSION = "0::/user.slice/user-1001.slice/session-4.scope"
NAMES = {0: "root", OWNER: "gputui", ALICE: "alice", BOB: "bob", EVE: "eve"}
UIDS = {name: uid for uid, name in NAMES.items()}
SETTINGS = Settings(
    access=AccessSettings(users=("alice", "@lab")), policy=PolicySettings(operators=("bob", "@wheel", "@gone"))
)


def accounts() -> AccountNames:
    groups = {"lab": LAB, "wheel": WHEEL}
    known = {"alice": (ALICE,), "bob": (BOB,), "root": (0,), "gputui": (OWNER,), "eve": (EVE, LAB)}
    return AccountNames(
        name_of=NAMES.__getitem__, uid_of=UIDS.__getitem__, gid_of=groups.__getitem__, groups_of=known.__getitem__
    )


def callers(jobs: Iterable[Job] = (), settings: Settings = SETTINGS, own: str = "0::/system.slice/x") -> Callers:
    return Callers(settings, OWNER, STORE, lambda: jobs, accounts(), whereabouts_of(own, STORE))


def ask(
    peer: Peer,
    headers: Mapping[str, str] | None = None,
    jobs: Iterable[Job] = (),
    own: str = "0::/system.slice/x",
    settings: Settings = SETTINGS,
) -> Caller:
    return callers(jobs, settings, own).caller_of(peer, headers or {})


def peer(uid: int, *groups: int, gid: int = 7000, cgroup: str = SESSION) -> Peer:
    return Peer(uid, gid, groups, 4711, cgroup)


def within(container: str) -> str:
    return f"0::/system.slice/docker-{container}.scope"


def job_of(uid: int | None, container: str = OURS) -> Job:
    made = running(7, submitted_uid=uid)
    return made.evolve(attempts=(replace(made.attempts[0], container_id=container),))


@cases(
    ("who", "role"),
    [
        (peer(0), Role.OPERATOR),
        (peer(OWNER), Role.OPERATOR),
        (peer(BOB), Role.OPERATOR),
        (peer(EVE, WHEEL), Role.OPERATOR),
        (peer(EVE, gid=WHEEL), Role.OPERATOR),
        (peer(ALICE), Role.USER),
        (peer(EVE, LAB), Role.USER),
        (peer(EVE, gid=LAB), Role.USER),
        (peer(EVE), Role.VIEWER),
        (peer(65_534), Role.VIEWER),
    ],
)
def test_roles_follow_from_uid_and_groups(who: Peer, role: Role) -> None:
    caller = ask(who)
    assert caller.role is role
    assert (caller.uid, caller.gid, caller.groups, caller.pid, caller.job) == (who.uid, who.gid, who.groups, 4711, None)
    assert caller.user == NAMES.get(who.uid, str(who.uid))


def test_a_star_lets_every_account_use_the_queue() -> None:
    assert ask(peer(EVE), settings=Settings(access=AccessSettings(users=("*",)))).role is Role.USER


@cases(("uid", "role"), [(EVE, Role.USER), (100_005, Role.VIEWER)])
def test_an_id_that_is_lent_to_a_user_is_no_account(uid: int, role: Role) -> None:
    inside = replace(peer(uid), is_mapped=True)
    assert ask(inside, settings=Settings(access=AccessSettings(users=("*",)))).role is role


@cases("uid", [0, OWNER, ALICE])
def test_who_runs_nobody_knows_where_may_only_look(uid: int) -> None:
    assert ask(peer(uid, cgroup="")).role is Role.VIEWER


@cases(
    ("word", "via"),
    [("mcp", "mcp"), ("a.b-c_1", "a.b-c_1"), ("", ""), ("two words", ""), ("x" * 33, ""), ("\x1b[31m", ""), ("-x", "")],
)
def test_the_program_that_asks_is_a_plain_word(word: str, via: str) -> None:
    assert ask(peer(ALICE), {"gputui-via": word}).via == via


def test_root_acts_for_others_under_sudo_and_nobody_else_does() -> None:
    caller = ask(peer(0), {"gputui-sudo-uid": str(ALICE), "gputui-via": "mcp"})
    assert (caller.uid, caller.user, caller.role, caller.via) == (0, "alice", Role.OPERATOR, "sudo mcp")
    caller = ask(peer(ALICE), {"gputui-sudo-uid": "0"})
    assert (caller.uid, caller.user, caller.role, caller.via) == (ALICE, "alice", Role.USER, "")


@cases("word", ["", "0", "-1", "alice", "1" * 11, "\N{SUPERSCRIPT TWO}"])
def test_what_is_no_uid_is_not_believed(word: str) -> None:
    assert ask(peer(0), {"gputui-sudo-uid": word}).user == "root"


@cases("uid", [0, ALICE])
@cases("sudo", [{}, {"gputui-sudo-uid": str(BOB)}])
def test_in_a_container_of_our_job_root_and_the_submitter_are_the_submitter(uid: int, sudo: Mapping[str, str]) -> None:
    caller = ask(peer(uid, WHEEL, cgroup=within(OURS)), sudo, [job(1), job_of(ALICE)])
    assert (caller.uid, caller.user, caller.role, caller.job, caller.via) == (ALICE, "alice", Role.USER, 7, "")
    assert WHEEL not in caller.groups


@cases("uid", [BOB, OWNER, EVE])
def test_in_a_container_of_our_job_another_uid_may_only_look(uid: int) -> None:
    assert ask(peer(uid, LAB, cgroup=within(OURS)), jobs=[job_of(ALICE)]).role is Role.VIEWER


@cases("submitter", [0, OWNER, BOB, None])
def test_a_container_of_an_operators_job_may_only_look(submitter: int | None) -> None:
    for uid in {0, submitter or 0}:
        assert ask(peer(uid, cgroup=within(OURS)), jobs=[job_of(submitter)]).role is Role.VIEWER


def test_containers_are_judged_by_their_attempt() -> None:
    made = job_of(ALICE)
    over = made.evolve(attempts=(replace(made.attempts[0], ended_at=NOW),))
    assert ask(peer(ALICE, cgroup=within(OURS)), jobs=[over]).role is Role.VIEWER
    own = within(THEIRS)
    assert ask(peer(0, cgroup=own), own=own).role is Role.OPERATOR
    assert ask(peer(0, cgroup=f"{own}/docker/{OURS}"), own=own).role is Role.VIEWER
    assert not whereabouts_of(f"0::/x/gputui-{STORE}-7-1.scope", STORE).attempts
    assert whereabouts_of(f"9:memory:/x/gputui-{STORE}-7-12\n0::/", STORE).attempts == {(7, 12)}
    assert ask(peer(ALICE, cgroup=f"0::/gputui/gputui-{STORE}-7-2"), jobs=[job_of(ALICE)]).role is Role.VIEWER


@cases(
    "cgroup",
    [
        within(THEIRS),
        f"0::/docker/{THEIRS}",
        f"12:memory:/docker/{THEIRS}\n0::/",
        f"0::/../docker-{THEIRS}.scope",
        f"0::/machine.slice/libpod-{THEIRS}.scope/container",
        f"0::/user.slice/user-1001.slice/user@1001.service/user.slice/libpod-{THEIRS}.scope",
        f"0::/kubepods.slice/kubepods-besteffort.slice/cri-containerd-{THEIRS}.scope",
        f"0::/system.slice/containerd.service/kubepods-burstable-pod1.slice:cri-containerd:{THEIRS}",
        "0::/kubepods/besteffort/pod1/x",
        "0::/lxc.payload.web/init.scope",
        "0::/lxc/web",
        "0::/machine.slice/machine-web.scope/payload",
    ],
)
@cases("uid", [0, OWNER, ALICE, BOB])
def test_in_any_other_container_everybody_may_only_look(uid: int, cgroup: str) -> None:
    caller = ask(peer(uid, LAB, cgroup=cgroup), {"gputui-sudo-uid": str(ALICE)}, [job_of(ALICE)])
    assert (caller.role, caller.uid, caller.job) == (Role.VIEWER, uid, None)


@cases(
    "cgroup",
    [
        "0::/",
        "0::/init.scope",
        "0::/system.slice/docker.service",
        "0::/system.slice/sshd.service",
        "0::/user.slice/user-0.slice/session-1.scope",
        "0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-docker\\x2ddesktop.scope",
        "4:memory:/process_api/4c61a5be7256a36daf46fc67bee2b088\n0::/",
        f"0::/gputui/gputui-{'z' * 12}-7-1",
    ],
)
def test_sessions_and_services_are_no_containers(cgroup: str) -> None:
    assert ask(peer(0, cgroup=cgroup)).role is Role.OPERATOR


@cases(("uid", "role", "known"), [(ALICE, Role.USER, 7), (0, Role.USER, 7), (EVE, Role.VIEWER, None)])
def test_a_host_job_is_its_submitter(uid: int, role: Role, known: int | None) -> None:
    cgroup = f"0::/gputui/gputui-{STORE}-7-1"
    caller = ask(peer(uid, LAB, cgroup=cgroup), jobs=[job_of(ALICE)])
    assert (caller.role, caller.job) == (role, known)


@cases("uid", [0, OWNER, BOB])
def test_a_host_job_of_an_operator_is_the_operator(uid: int) -> None:
    caller = ask(peer(uid, cgroup=f"0::/gputui/gputui-{STORE}-7-1"), jobs=[job_of(uid)])
    assert (caller.role, caller.uid, caller.job) == (Role.OPERATOR, uid, 7)


@cases("submitter", [OWNER, BOB])
def test_root_in_a_host_job_of_another_operator_may_only_look(submitter: int) -> None:
    assert ask(peer(0, cgroup=f"0::/gputui/gputui-{STORE}-7-1"), jobs=[job_of(submitter)]).role is Role.VIEWER
