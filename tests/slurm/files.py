"""Files of the test bed: Slurm's configuration, the stand-ins for GPUs, users, and the commands for clients."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from tests.runtime.rootfs import archive
from tests.slurm.accounts import write as write_accounts
from tests.slurm.release import unpacked, version

HEAD_ADDRESS = "10.77.0.254"
GPU_TYPE = "h200"
USERS = {"alice": 61001, "bob": 61002}
"""Users of the bed beside root, with their ids; alice may use Docker, bob may not."""
DOCKER_GROUP = 61009
_MOST_GPUS = 8
_CGROUPS_FROM = (23, 2)
"""First release whose slurmd wants cgroups of systemd's unless it is told not to."""
_MULTIFACTOR_FROM = (23, 11)
"""First release in which priorities are sums of weights by default: without any weight a nice value changes nothing."""

SLURM_CONF = """\
ClusterName=bed
SlurmctldHost=head({head})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={bed}/munge/socket
StateSaveLocation={bed}/head/state
SlurmctldPidFile={bed}/head/slurmctld.pid
SlurmctldLogFile={bed}/head/slurmctld.log
SlurmdPidFile={bed}/%n/slurmd.pid
SlurmdLogFile={bed}/%n/slurmd.log
SlurmdSpoolDir={bed}/%n/spool
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters={scheduler}
DefMemPerCPU=500
GresTypes=gpu
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
PropagateResourceLimits=NONE
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
MailProg=/bin/true
SlurmdTimeout={patience}
ReturnToService=2
MinJobAge={min_job_age}
JobCompType=jobcomp/filetxt
JobCompLoc={bed}/jobcomp.log
Include {bed}/epilog.conf
PartitionName=gpu Nodes=ALL Default=YES DefaultTime=60 MaxTime=INFINITE State=UP
"""
"""Nodes claim more cores and memory than this host has; their processes are found in /proc, without any cgroup."""

NVIDIA_SMI = """\
#!/bin/sh
# Stand-in for nvidia-smi: -L, and --query-gpu of fields as CSV. In a container it lists the GPUs that Docker gave it.
fields= only=
for word; do
  case $word in --query-gpu=*) fields=$(echo "${{word#*=}}" | tr , ' ');; esac
done
i=0
for uuid in {uuids}; do
  [ -n "$fields" ] || echo "GPU $i: NVIDIA H200 (UUID: $uuid)"
  line=
  for field in $fields; do
    case $field in
      index) value=$i;; uuid|gpu_uuid) value=$uuid;; name) value='NVIDIA H200';; memory.total) value=143771;;
      minor_number) value=$i;; *) value='[N/A]';;
    esac
    line="$line${{line:+, }}$value"
  done
  [ -z "$fields" ] || echo "$line"
  i=$((i + 1))
done
"""
_GIVEN = "$(echo ${NVIDIA_VISIBLE_DEVICES-} | tr , ' ' | sed 's/^none$\\|^void$//')"
"""UUIDs in a container: `--gpus` sets this variable."""
_CLIENT = """\
#!/bin/sh
# A command of Slurm for programs outside of the bed: it runs on the head, in the current directory.
exec {into} env -C "$PWD" SLURM_CONF={bed}/slurm.conf /usr/bin/${{0##*/}} "$@"
"""
_CLIENT_OF_USER = """\
#!/bin/sh
# The same as another user, who cannot enter the head again once there.
[ "$(id -u)" = 0 ] || PATH=/usr/bin:/bin exec ${{0##*/}} "$@"
exec {into} env -C "$PWD" HOME={home} PATH={folder}:/usr/bin:/bin SLURM_CONF={bed}/slurm.conf ${{0##*/}} "$@"
"""
CLIENTS = ("sacct", "sacctmgr", "salloc", "sbatch", "scancel", "scontrol", "sdiag", "sinfo", "sprio", "squeue", "srun")


def uuid(node: str, index: int) -> str:
    """Return the UUID of a GPU; it tells node and index."""
    return f"GPU-{int(node.removeprefix('gpu')):08d}-0000-0000-0000-{index:012d}"


def write_cluster(
    bed: Path, nodes: dict[str, str], gpus: int, settings: Mapping[str, object], *, accounts: bool = False
) -> None:
    """Write what all machines share; `nodes` maps names to addresses."""
    for folder in ("munge", "head/state", "bin", "no-commands", "home", "etc/docker"):
        (bed / folder).mkdir(parents=True)
    for path in (bed, bed / "munge"):
        path.chmod(0o755)
    (bed / "key").write_bytes(os.urandom(128))
    (bed / "key").chmod(0o400)
    lines = [SLURM_CONF.format(bed=bed, head=HEAD_ADDRESS, **settings)]
    devices = []
    for node, address in nodes.items():
        shape = "Sockets=1 CoresPerSocket=16 ThreadsPerCore=1 RealMemory=64000"
        lines.append(f"NodeName={node} NodeAddr={address} {shape} Gres=gpu:{GPU_TYPE}:{gpus}\n")
        devices.append(f"NodeName={node} Name=gpu Type={GPU_TYPE} File={bed}/{node}/dev/nvidia[0-{gpus - 1}]\n")
        _write_node(bed / node, node, gpus)
    if (release := unpacked()) is not None:
        lines.insert(0, f"PluginDir={release}/plugins\n")
    if accounts:
        lines.append(write_accounts(bed, GPU_TYPE))
    if version() >= _CGROUPS_FROM:
        (bed / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
    if version() >= _MULTIFACTOR_FROM:
        lines.append("PriorityWeightPartition=1000000\n")
    (bed / "slurm.conf").write_text("".join(lines))
    (bed / "gres.conf").write_text("".join(devices))
    write_epilog(bed, None)
    hosts = {"localhost": "127.0.0.1", "head": HEAD_ADDRESS} | nodes
    (bed / "etc/hosts").write_text("".join(f"{address} {name}\n" for name, address in hosts.items()))
    (bed / "image.tar").write_bytes(archive({"bin/nvidia-smi": NVIDIA_SMI.format(uuids=_GIVEN)}, more="sed"))
    _write_users(bed)


def write_epilog(bed: Path, program: Path | None) -> None:
    """Write the part of Slurm's configuration that tells what nodes run after a job."""
    (bed / "epilog.conf").write_text("MessageTimeout=10\n" + (f"Epilog={program}\n" if program else ""))  # never empty


def _write_node(folder: Path, node: str, gpus: int) -> None:
    for name in ("dev", "spool", "bin"):
        (folder / name).mkdir(parents=True)
    for index in range(gpus):
        os.mknod(folder / "dev" / f"nvidia{index}", 0o666 | stat.S_IFCHR, os.makedev(195, index))
    uuids = " ".join(uuid(node, index) for index in range(gpus))
    _program(folder / "bin" / "nvidia-smi", NVIDIA_SMI.format(uuids=uuids))
    _program(folder / "bin" / "nvidia-container-runtime-hook", "#!/bin/sh\nexit 0\n")  # or Docker refuses --gpus


def _write_users(bed: Path) -> None:
    """Write the accounts of the machines: root, nobody, and the bed's own users with their homes."""
    accounts = {"root": 0, "nobody": 65534} | USERS
    homes = {"root": "/root", "nobody": "/nonexistent"} | {name: f"{bed}/home/{name}" for name in USERS}
    people = [f"{name}:x:{number}:{number}::{homes[name]}:/bin/sh\n" for name, number in accounts.items()]
    groups = [f"{name}:x:{number}:\n" for name, number in accounts.items()]
    (bed / "etc/passwd").write_text("".join(people))
    (bed / "etc/group").write_text("".join(groups) + f"bed-docker:x:{DOCKER_GROUP}:alice\n")
    for name, number in {"root": 0, **USERS}.items():
        (bed / "home" / name).mkdir(mode=0o755)
        os.chown(bed / "home" / name, number, number)


def write_clients(bed: Path, into: list[str]) -> None:
    """Write Slurm's commands for programs outside of the bed."""
    for name in CLIENTS:
        _program(bed / "bin" / name, _CLIENT.format(into=" ".join(into), bed=bed))


def write_clients_of(bed: Path, user: str, into: list[str], home: Path) -> Path:
    """Write Slurm's commands and `sh` for programs outside of the bed that act as a user; return their folder."""
    folder = bed / f"bin-{user}"
    folder.mkdir(exist_ok=True)
    for name in (*CLIENTS, "sh"):
        _program(folder / name, _CLIENT_OF_USER.format(into=" ".join(into), bed=bed, home=home, folder=folder))
    return folder


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
