"""Slurm's accounts on the head of a test bed: MariaDB and slurmdbd, with an account, its users and their limits."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.slurm.machine import Machine
from tests.slurm.release import unpacked

CONFIGURATION = """\
AuthType=auth/munge
AuthInfo=socket={bed}/munge/socket
DbdHost=head
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StorageUser=slurm
StorageLoc=slurm
PidFile={bed}/head/slurmdbd.pid
LogFile={bed}/head/slurmdbd.log
"""
SLURM_CONF = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=head
AccountingStoragePass={bed}/munge/socket
AccountingStorageTRES=gres/gpu,gres/gpu:{gpu_type}
AccountingStorageEnforce=limits,qos
AccountingStoreFlags=job_comment
"""
"""Part of slurm.conf. Without that flag accounts have no comments, by which jobs submitted from here are known."""
ACCOUNT, CLUSTER = "lab", "bed"


def lacking() -> str | None:
    """Return the reason why there can be no accounts; None if there can."""
    missing = [name for name in ("slurmdbd", "mariadbd") if _program(name) is None]
    return f"not installed: {', '.join(missing)}; tests/slurm/unpack_slurm.sh DIR" if missing else None


def write(bed: Path, gpu_type: str) -> str:
    """Write slurmdbd.conf; return the lines of slurm.conf."""
    plugins = f"PluginDir={unpacked()}/plugins\n" if unpacked() else ""
    path = bed / "slurmdbd.conf"
    path.write_text(plugins + CONFIGURATION.format(bed=bed))
    path.chmod(0o600)  # slurmdbd insists
    return SLURM_CONF.format(bed=bed, gpu_type=gpu_type)


class Accounts:
    """MariaDB and slurmdbd."""

    def __init__(
        self, head: Machine, environ: dict[str, str], wait: Callable[[Callable[[], object], str], None]
    ) -> None:
        self._head = head
        self._wait = wait
        self._environ = environ
        self._data = head.folder / "mariadb"
        self._daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start both, and wait until they answer."""
        program = _program("mariadbd")
        assert program is not None
        share = _share()
        self._data.mkdir()
        options = [f"--datadir={self._data}", f"--lc-messages-dir={share}", "--skip-log-bin", "--user=root"]
        options += ["--innodb-log-file-size=8M", "--innodb-buffer-pool-size=32M", "--innodb-flush-log-at-trx-commit=0"]
        options.append("--loose-innodb-snapshot-isolation=OFF")  # which Slurm does not bear
        tables = [path.read_text() for kind in ("tables", "tables_data") for path in share.glob(f"*_system_{kind}.sql")]
        script = "\n".join(("create database mysql;", "use mysql;", *tables))
        words = [str(program), "--no-defaults", "--bootstrap", *options]
        subprocess.run(words, input=script, text=True, check=True, capture_output=True)
        options += [f"--socket={self._data}/socket", "--bind-address=127.0.0.1", "--skip-grant-tables"]
        self._head.start(str(program), "--no-defaults", *options, environ=self._environ)
        self._wait((self._data / "socket").exists, "MariaDB answers")  # else slurmdbd pauses before it tries again
        self._daemon = self._head.start("slurmdbd", "-D", environ=self._environ)
        self._wait(self._answers, "slurmdbd answers")

    def _answers(self) -> bool:
        return self._manage("show", "cluster", check=False).returncode == 0

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Keep slurmdbd from answering for a while."""
        assert self._daemon is not None
        self._daemon.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._daemon.send_signal(signal.SIGCONT)

    def fill(self, users: tuple[str, ...]) -> None:
        """Make an account with users in it."""
        self._manage("add", "cluster", CLUSTER)
        self._manage("add", "account", ACCOUNT)
        for user in users:
            self._manage("add", "user", user, f"account={ACCOUNT}")

    def _manage(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self._head.run("sacctmgr", "--immediate", *words, environ=self._environ, check=check)


def _program(name: str) -> Path | None:
    release = unpacked()
    if release is not None:
        return release / "sbin" / name if (release / "sbin" / name).exists() else None
    found = shutil.which(name, path="/usr/local/sbin:/usr/sbin")
    return Path(found) if found else None


def _share() -> Path:
    """Return the directory with the tables that MariaDB begins with."""
    release = unpacked()
    places = [release / "share"] if release else [Path("/usr/share/mariadb"), Path("/usr/share/mysql")]
    return next(place for place in places if list(place.glob("*_system_tables.sql")))
