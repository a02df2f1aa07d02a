"""The project's tasks: `.venv/bin/nox -l` lists them, `.venv/bin/nox -s check test` runs what the gate runs.

Tasks run in the environment that nox is installed in (`pip install -e '.[dev]'`), except `smoke`, which makes
environments of its own. The gate, .ci/run, calls these tasks and has no steps of its own but the set-up.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

import nox

ROOT = Path(__file__).parent
TEST = "python3 -m venv .venv && .venv/bin/pip install -q -e '.[test]' && .venv/bin/pytest -n auto -q"
"""The README's test command."""
MOST_BYTES = 2 * 1024**2
"""Bytes that the wheel and the source archive may have."""
ODD = {"UMASK": "077", "PLACE": "my gpütui"}
"""Umask and directory of the part of the test line that is run on a bare machine."""
ON_BARE = (
    "tests/cli/test_explain.py",  # who is not root
    "tests/cli/test_ps.py",
    "tests/engine/test_running_jobs.py",
    "tests/runtime/test_process_plan.py",
    "tests/engine/test_leadership.py",  # mounts
    "tests/store/test_refusals.py",
    "tests/gpus/test_node_probes.py",  # no compiler
    "tests/metrics/test_server.py",  # no openssl
    "tests/kubernetes/test_contract.py::TestKubernetes::test_the_processes_of_a_job",  # no ps
    "tests/e2e/test_web.py::test_a_server_that_is_killed_takes_its_consoles_along",
    "tests/runtime/test_docker_credentials.py",  # no Docker
    "tests/cli/test_install.py",  # blanks in paths
    "tests/cli/test_streams.py",
    "tests/servers/test_actions.py",
    "tests/metrics/test_job_mapping.py",  # umask
    "tests/store/test_file_access.py",
)
"""Tests of each kind that a machine or a user has failed."""
WITHOUT_DATA = ("commands", "plan", "store", "log_flood", "telemetry", "thin")
"""Benchmarks that need neither traces nor other programs."""

APART = {"audit.py"}
"""Scripts of `scripts/` that are tasks of their own: this one asks others."""
UNLIKE = {"PYTHONHASHSEED": "1", "TZ": "Asia/Kathmandu", "LC_ALL": "C"}
"""Surroundings of the second build, beside another directory, other times and a umask of 077."""

nox.options.default_venv_backend = "none"
nox.options.sessions = ["check", "test"]


def tool(session: nox.Session, name: str, *arguments: str, **environ: str) -> None:
    """Run a program of the environment that nox is installed in."""
    session.run(str(Path(sys.executable).parent / name), *arguments, external=True, env=environ)


@nox.session
def check(session: nox.Session) -> None:
    """Check format, lint, types, import layers, and that generated files are up to date."""
    tool(session, "ruff", "format", "--check", ".")
    tool(session, "ruff", "check", ".")
    tool(session, "mypy")
    tool(session, "lint-imports")
    for script in sorted((ROOT / "scripts").glob("[a-z]*.py")):
        if script.name in APART:
            continue
        if "--check" in script.read_text():
            tool(session, "python", str(script), "--check")
        else:
            tool(session, "python", str(script))
    session.run("git", "diff", "--exit-code", "--", "docs", external=True)
    site(session)


def built(session: nox.Session, place: Path) -> Path:
    """Build the source archive, and from that the wheel, twice; return the wheel.

    Neither archive may be large, and the second of each, of a copy in other surroundings, must be equal to the first.
    """
    shutil.rmtree(place, ignore_errors=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    session.install("-q", "build", *project["build-system"]["requires"])
    again, copy = Path(session.create_tmp(), "again"), Path(session.create_tmp(), "ein anderer Ort")
    for directory in (again, copy):
        shutil.rmtree(directory, ignore_errors=True)
    others = ("--cached", "--others", "--exclude-standard", "--", ".", ":!tests", ":!screenshots")
    for name in git(session, "-c", "core.quotePath=false", "ls-files", *others):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    environ = epoch(session)
    words = ("python", "-m", "build", "--no-isolation", "--outdir")
    session.run(*words, str(place), str(ROOT), silent=True, env=environ)
    shell = ("bash", "-c", 'umask 077 && chmod -R go= "$0" && exec "$@"', str(copy))
    session.run(*shell, *words, str(again), str(copy), silent=True, env={**environ, **UNLIKE}, external=True)
    archives = sorted(place.iterdir())
    for archive in archives:
        size = archive.stat().st_size
        session.log(f"{archive.name}: {size / 1024**2:.2f} MiB, SHA-256 {sha256(archive)}")
        if size > MOST_BYTES:
            session.error(f"{archive.name} has more than {MOST_BYTES} bytes")
        if sha256(archive) != sha256(again / archive.name):
            session.error(f"{archive.name} differs when it is built again: compare it with {again / archive.name}")
    return next(archive for archive in archives if archive.suffix == ".whl")


def git(session: nox.Session, *words: str) -> list[str]:
    """Return the lines that git prints in the checkout."""
    return str(session.run("git", "-C", str(ROOT), *words, silent=True, external=True, log=False)).splitlines()


def epoch(session: nox.Session) -> dict[str, str]:
    """Return an environment in which what is built has the time of the commit."""
    return {"SOURCE_DATE_EPOCH": git(session, "log", "-1", "--format=%ct")[0]}


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@nox.session(venv_backend="venv")
@nox.parametrize("versions", ["lowest", "newest"])
def smoke(session: nox.Session, versions: str) -> None:
    """Build the archives, and run a little of everything from the wheel, on the lowest and on the newest versions."""
    place = Path(session.create_tmp())
    wheel = built(session, place / "dist")
    constraints = place / "constraints.txt"
    constraints.write_text("")
    if versions == "lowest":
        found = session.run("python", "tests/smoke/lowest.py", silent=True)
        constraints.write_text(str(found))
    session.install("-q", "-c", str(constraints), f"{wheel}[kubernetes,mcp,otel,report,web]")
    session.chdir(place)  # or the checkout would be imported instead of what is installed
    session.run("python", str(ROOT / "tests" / "smoke" / "run.py"))


@nox.session
def audit(session: nox.Session) -> None:
    """Ask for published advisories about the dependencies; `-- --require` fails where none can be reached."""
    tool(session, "python", "scripts/audit.py", *session.posargs)


@nox.session(venv_backend="venv")
def dist(session: nox.Session) -> None:
    """Build what a release uploads into `dist/`, with the bill of materials and SHA-256 sums; all must be committed."""
    if changed := git(session, "status", "--porcelain"):
        session.error(f"not committed, so it belongs to no release: {', '.join(line[3:] for line in changed)}")
    place = ROOT / "dist"
    version = built(session, place).name.split("-")[1]
    archives = sorted(place.iterdir())
    if f"v{version}" not in git(session, "tag", "--points-at", "HEAD"):
        session.warn(f"this commit has no tag v{version}, so it is no release: do not upload it")
    session.install("-q", "twine")
    session.run("python", "-m", "twine", "check", "--strict", *map(str, archives))
    words = (sys.executable, str(ROOT / "scripts" / "sbom.py"))
    bill = place / f"gputui-{version}.cdx.json"
    bill.write_text(str(session.run(*words, silent=True, external=True, env=epoch(session))))
    sums = [f"{sha256(file)}  {file.name}\n" for file in (*archives, bill)]
    (place / "SHA256SUMS").write_text("".join(sums))
    session.log("\n" + "".join(sums))


@nox.session
def test(session: nox.Session) -> None:
    """Run the tests as the README does; arguments after `--` go to pytest."""
    session.run("bash", "-c", " ".join([TEST, *map(shlex.quote, session.posargs)]), external=True)


@nox.session
def bare(session: nox.Session) -> None:
    """Run a part of the test line as an ordinary user of a bare Debian, or what is named after `--`: `tests` is all."""
    session.run("tests/bare/run.sh", *(session.posargs or ON_BARE), external=True, env=ODD)


@nox.session(name="test-long")
def test_long(session: nox.Session) -> None:
    """Run the long lane: kills, full disks, thousands of jobs under load; takes an hour or more."""
    session.run("tests/bare/run.sh", external=True)
    arguments = session.posargs or ("--torture", "20")
    tool(session, "pytest", "-q", "-s", *arguments, GPUTUI_TEST_LANE="long")


@nox.session
def gpu(session: nox.Session) -> None:
    """On a machine with an NVIDIA driver: compare gputui with nvidia-smi, in about four minutes; needs no Docker."""
    tool(session, "python", "tests/real_gpu/run.py", *session.posargs)


@nox.session
def pictures(session: nox.Session) -> None:
    """Draw the pictures of the tests and the screenshots anew; look at the differences before you commit them."""
    tests = sorted(path for path in (ROOT / "tests" / "tui").glob("test_*.py") if "snap_compare" in path.read_text())
    tool(session, "pytest", "-q", "--snapshot-update", *(session.posargs or map(str, tests)))
    tool(session, "python", "scripts/screenshots.py")


@nox.session
def bench(session: nox.Session) -> None:
    """Run the benchmarks that need no data, or the one named after `--` with its arguments."""
    if session.posargs:
        name, *arguments = session.posargs
        tool(session, "python", "-m", f"bench.{name}", *arguments)
        return
    for name in WITHOUT_DATA:
        tool(session, "python", "-m", f"bench.{name}")


@nox.session
def site(session: nox.Session) -> None:
    """Build the documentation site into `site/`; a link that leads nowhere is an error."""
    tool(session, "mkdocs", "build", "--quiet", "--strict", NO_MKDOCS_2_WARNING="1")


@nox.session
def docs(session: nox.Session) -> None:
    """Write the generated parts of the documents."""
    tool(session, "python", "scripts/cli.py")
    tool(session, "python", "scripts/keys.py")
    tool(session, "python", "scripts/observe.py")
    tool(session, "python", "scripts/cluster.py")
    tool(session, "python", "scripts/api.py")
    tool(session, "python", "scripts/man.py")
    tool(session, "python", "scripts/rooms.py")
    tool(session, "python", "scripts/schemas.py")
    tool(session, "python", "scripts/licences.py")
