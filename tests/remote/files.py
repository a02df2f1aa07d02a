"""Files of the two machines: the driver of the GPUs, NVIDIA's hook, TLS, and the docker command's context."""

from __future__ import annotations

import shutil
import subprocess
import uuid
from pathlib import Path

from tests.gpus import standin
from tests.remote.image import multiarch
from tests.slurm.files import NVIDIA_SMI

FAR = "gpuhost"
FAR_ADDRESS, NEAR_ADDRESS = "10.78.0.2", "10.78.0.1"
TLS_PORT = 2376
DRIVER = "/run/nvidia-driver"
"""Where the driver lies on the machine, and in containers that are given it: its library and its behaviour."""
_HOOK = """\
#!/bin/sh
# Does as NVIDIA's: the driver's library of the machine appears in containers that asked for "utility".
state=$(cat)
pid=$(echo "$state" | sed 's/.*"pid": *\\([0-9]*\\).*/\\1/')
config=$(echo "$state" | sed 's/.*"bundle": *"\\([^"]*\\)".*/\\1/')/config.json
root=$(sed 's/.*"root": *{{[^}}]*"path": *"\\([^"]*\\)".*/\\1/' "$config")
grep -Eq '"NVIDIA_DRIVER_CAPABILITIES=[^"]*(utility|all)' "$config" || exit 0
[ -d "$root/{libraries}" ] || exit 0
exec nsenter --target "$pid" --mount sh -ec '
  mkdir -p "$0{driver}"
  mount --bind {driver} "$0{driver}"
  touch "$0/{libraries}/libnvidia-ml.so.1"
  mount --bind {driver}/libnvidia-ml.so.1 "$0/{libraries}/libnvidia-ml.so.1"
' "$root"
"""
_BOTH = """
mkdir /run/bed
mount --bind {bed} /run/bed
for place in /tmp /var/tmp /var/lib /root /home /dev/shm {checkout}; do
  [ ! -d $place ] || mount -t tmpfs -o mode=1777 own $place
done
mkdir -p {bed}
mount --move /run/bed {bed}
rmdir /run/bed
mount --bind {bed}/{far}/boot_id /proc/sys/kernel/random/boot_id
mount --bind {bed}/{far}/srv /srv
mkdir -p {driver} /run/sshd
mount --bind {bed}/{far}/driver {driver}
mount -t overlay driver -o lowerdir={bed}/{far}/lib:/{libraries} /{libraries}
"""
"""Gives the machine its own disk where programs write, no checkout of this project, a boot of its own and a driver."""


def setup_of_far(bed: Path, checkout: Path) -> str:
    """Return the lines that make a node of the bed a machine of its own."""
    return _BOTH.format(bed=bed, far=FAR, checkout=checkout, driver=DRIVER, libraries=multiarch())


def gpu_uuid(index: int) -> str:
    """Return the UUID of a GPU of the other machine."""
    return f"GPU-fa000000-0000-4000-8000-{index:012d}"


def write_machines(bed: Path) -> None:
    """Write what both machines have before they start."""
    for folder in ("bin", "no-commands", "etc", f"{FAR}/bin", f"{FAR}/driver", f"{FAR}/lib", f"{FAR}/srv", "laptop"):
        (bed / folder).mkdir(parents=True)
    bed.chmod(0o755)
    (bed / "etc/hosts").write_text(f"127.0.0.1 localhost\n{FAR_ADDRESS} {FAR}\n{NEAR_ADDRESS} laptop\n")
    for name in ("subuid", "subgid"):
        (bed / "etc" / name).write_text("nobody:200000:65536\nnogroup:200000:65536\n")
    far = bed / FAR
    (far / "boot_id").write_text(f"{uuid.uuid4()}\n")
    library = standin.build(f'-DBEHAVIOUR="{DRIVER}/behaviour"') / "libnvidia-ml.so.1"
    for folder in ("driver", "lib"):
        shutil.copy(library, far / folder)
    _program(far / "bin/nvidia-container-runtime-hook", _HOOK.format(driver=DRIVER, libraries=multiarch()))


def nvidia_smi() -> str:
    """Return the program that lists the GPUs a container was given."""
    return NVIDIA_SMI.format(uuids="$(echo ${NVIDIA_VISIBLE_DEVICES-} | tr , ' ')")


def write_tls(folder: Path) -> None:
    """Write an authority, and by it the key of the engine's server and that of its clients."""
    new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    by = ["-CA", "ca.pem", "-CAkey", "ca-key.pem", "-addext", "basicConstraints=CA:FALSE"]
    folder.mkdir()
    _openssl(folder, *new, "-keyout", "ca-key.pem", "-out", "ca.pem", "-subj", "/CN=authority")
    names = ["-addext", f"subjectAltName=IP:{FAR_ADDRESS},DNS:{FAR}"]
    _openssl(folder, *new, "-keyout", "server-key.pem", "-out", "server.pem", "-subj", f"/CN={FAR}", *names, *by)
    _openssl(folder, *new, "-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=laptop", *by)


def _openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
