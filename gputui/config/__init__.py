"""The options every command shares, from the command line, the environment, the settings files and the defaults."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gputui.config.settings_file import load_merged
from gputui.domain.errors import InputError
from gputui.domain.job_spec import RUNTIMES
from gputui.domain.settings import Settings
from gputui.domain.text import plain, shown

SITE_CONFIG = Path("/etc/gputui/config.toml")
ROOT_STATE = Path("/var/lib/gputui")
SOCKET = "api.sock"
"""Name of the socket that the owner of a state directory serves in it."""
SERVICE_SOCKET = "/run/gputui/api.sock"
"""Socket of the machine's service for its users, which systemd listens at."""
NO_HOME = Path("/")
"""Home of a user without one."""
MAX_SIMULATED = 256
_PROBE = re.compile(r"sim:(\d{1,6})(?::([^\x00-\x1f\x7f@]{1,80}))?(?:@(\d{1,6}))?", re.ASCII)


class ProbeSpec(Struct, frozen=True):
    """Source of GPU readings."""

    simulated: int | None = None
    """Number of simulated GPUs; None: read the driver."""
    model: str | None = None
    """Model of the simulated GPUs."""
    machine: int = 0
    """Number of the simulated machine: those of each have UUIDs and readings of their own."""

    def __str__(self) -> str:
        if self.simulated is None:
            return "nvml"
        machine = f"@{self.machine}" if self.machine else ""
        return f"sim:{self.simulated}" + (f":{self.model}" if self.model else "") + machine


class Sockets(Struct, frozen=True):
    """Sockets at which the owner of a queue is asked."""

    paths: tuple[str, ...]
    """Sockets to try in turn: the next one if there is none of that name, or nobody listens there."""
    in_process: bool = True
    """True if a process may open the state directory itself where nobody owns it; False: the service alone has it."""


class Options(Struct, frozen=True):
    """Options that all commands share, resolved once from options, environment and settings file."""

    state: Path
    config: Path | None = None
    """The personal settings file: the named one or the default one; None: there is none."""
    probe: ProbeSpec = ProbeSpec()
    runtime: str = "docker"
    """Name of the runtime."""
    settings: Settings = Settings()
    site: Path | None = None
    """The site's settings file, whose policy, store, runtime and hooks take precedence; None: there is none."""
    ignored: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Settings that the site does not let a personal file or the environment change: the source, and the keys."""
    names_queue: bool = False
    """True if this process was told its queue: a state directory, or a cluster in the environment."""
    asked: Sockets | None = None
    """Sockets of the service, which alone has the queue; None: the owner of the state directory is asked."""

    serve_arguments: tuple[str, ...] = ()
    """Options of `gputui serve` for another process that takes over scheduling from this one."""

    @property
    def in_cluster(self) -> bool:
        """Return whether a cluster owns the queue, in place of this machine's scheduler."""
        return bool(self.settings.cluster.engine)

    @property
    def sockets(self) -> Sockets:
        return self.asked or Sockets(_own_sockets(str(self.state), self.settings.access.socket or SERVICE_SOCKET))

    def local(self) -> Options:
        cluster = replace(self.settings.cluster, engine="")
        return replace(self, settings=replace(self.settings, cluster=cluster))

    def arguments(self) -> list[str]:
        config = ["--config", str(self.config)] if self.config else []
        # with a directory named, the process would ask its owner, and not the service
        state = [] if self.asked else ["--state", str(self.state)]
        return [*state, *config, "--probe", str(self.probe), "--runtime", self.runtime]

    def program(self) -> tuple[str, ...]:
        return (sys.executable, "-P", "-m", "gputui", *self.arguments())


def resolve(
    *,
    state: str | None = None,
    config: str | None = None,
    probe: str | None = None,
    runtime: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Options:
    """Return the options of this process: as given, else from GPUTUI_…, else the defaults."""
    site = site_config(environ)
    path: Path | None
    if named := config or environ.get("GPUTUI_CONFIG"):
        path = typed_path(named, "--config", is_kept=True)
        with suppress(OSError):
            path = None if site is not None and path.samefile(site) else path
    else:
        path = user_directory("XDG_CONFIG_HOME", "~/.config") / "gputui/config.toml"
        path = path if _exists(path) else None
    loaded = load_merged(site, path, environ)
    if given := state or environ.get("GPUTUI_STATE"):
        directory = typed_path(given, "--state", is_kept=True)
    else:
        is_served = bool(environ.get("GPUTUI_SOCKET")) or _exists(Path(loaded.settings.access.socket or SERVICE_SOCKET))
        directory = _usual_state(is_served)
    source = probe or environ.get("GPUTUI_PROBE")
    readings = parse_probe(source) if source else ProbeSpec()
    chosen = runtime or environ.get("GPUTUI_RUNTIME") or "docker"
    if chosen not in RUNTIMES:
        raise InputError(f"{shown(chosen)} is not a runtime", where="--runtime", hint=" or ".join(RUNTIMES))
    asked = find_sockets(
        str(directory),
        is_option=bool(state),
        is_named=bool(given),
        environ=environ,
        service=loaded.settings.access.socket,
    )
    return Options(
        state=directory,
        config=path,
        site=site,
        probe=readings,
        runtime=chosen,
        settings=loaded.settings,
        ignored=loaded.ignored,
        names_queue=bool(given or environ.get("GPUTUI_CLUSTER")),
        asked=None if asked.in_process else asked,
    )


def _exists(path: Path) -> bool:
    """Return whether the file exists; one in an unsearchable directory counts as existing, and is refused later."""
    try:
        return path.exists()
    except PermissionError:
        return True


def find_sockets(
    state: str,
    *,
    is_option: bool,
    is_named: bool,
    environ: Mapping[str, str],
    service: str | None = None,
    uid: int | None = None,
    exists: Callable[[Path], bool] = _exists,
) -> Sockets:
    """Return where the owner of a queue is asked. The first of these rules decides:

    1. `--state DIR` (`is_option`): at DIR/api.sock.
    2. GPUTUI_SOCKET: there alone.
    3. GPUTUI_STATE (`is_named`): at api.sock in that directory.
    4. root: at /var/lib/gputui/api.sock.
    5. The service's socket exists, be it that this user may not open it: there alone.
    6. At api.sock in the user's own state directory.

    /var/lib/gputui, by whatever rule, is asked for at the service's socket too: plain users cannot open the directory.
    `service` is the setting `access.socket`, in place of /run/gputui/api.sock. `gputui.thin` follows the same rules
    without the setting. `uid` is the effective user's.
    """
    place = service or SERVICE_SOCKET
    if not is_option:
        if told := environ.get("GPUTUI_SOCKET"):
            return Sockets((told,), in_process=False)
        if not is_named and (os.geteuid() if uid is None else uid) and exists(Path(place)):
            return Sockets((place,), in_process=False)
    return Sockets(_own_sockets(state, place))


def _own_sockets(state: str, service: str) -> tuple[str, ...]:
    own = f"{state}/{SOCKET}"
    return (own, service) if state == str(ROOT_STATE) else (own,)


def parse_probe(text: str) -> ProbeSpec:
    if text == "nvml":
        return ProbeSpec()
    match = _PROBE.fullmatch(text)
    if not match or not 1 <= int(match[1]) <= MAX_SIMULATED:
        hint = f"write nvml, sim:8 or sim:8:H100, with 1 to {MAX_SIMULATED} GPUs"
        raise InputError(f"{shown(text)} is not a probe", where="--probe", hint=hint)
    return ProbeSpec(int(match[1]), match[2], int(match[3] or 0))


def _usual_state(is_served: bool) -> Path:
    """Return the state directory of a user who names none; where a service has the queue, none need be possible."""
    if os.geteuid() == 0:
        return ROOT_STATE
    found = user_directory("XDG_STATE_HOME", "~/.local/state")
    if not is_served and found == NO_HOME / ".local/state" and not os.access(NO_HOME, os.W_OK):
        what = f"the user {os.geteuid()} has no home directory that could have a queue"
        raise InputError(what, where="--state", hint="name one: --state DIR, or GPUTUI_STATE=DIR")
    return typed_path(str(found / "gputui"), "--state", is_kept=True)


def site_config(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the site's settings file; None where there is none.

    GPUTUI_SITE_CONFIG counts only where `/etc/gputui/config.toml` does not exist, so that no user can escape the site's
    policy with it.
    """
    if _exists(SITE_CONFIG):
        return SITE_CONFIG
    given = environ.get("GPUTUI_SITE_CONFIG")
    return typed_path(given, "GPUTUI_SITE_CONFIG", is_kept=True) if given else None


def user_directory(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable, "").strip() or default).expanduser()


def present_directory() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def ensure_home() -> None:
    """Set HOME to the root directory for a user without HOME and without an account, as container engines do."""
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = str(NO_HOME)


def typed_path(text: str, where: str, *, is_kept: bool = False) -> Path:
    """Return the absolute path that a user typed; raises InputError for `~NAME` of no user.

    One that `is_kept` in our files must be text, of a length and characters that a file may name.
    """
    try:
        path = Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise InputError(f"{shown(text)} begins with a user who does not exist", where=where) from error
    except FileNotFoundError as error:
        raise InputError("the present directory has been deleted", where=where, hint="name it from / on") from error
    if not is_kept:
        return path
    if any("\ud800" <= letter <= "\udfff" for letter in str(path)):  # JSON could not name it, nor could the journal
        what = f"{plain(str(path), 200)} is not UTF-8 text"
        raise InputError(what, where=where, hint="rename it, or name another one")
    if not text.isprintable() or len(text) > 4096:
        raise InputError("not a path", where=where, hint="it has control characters or is too long")
    return path
