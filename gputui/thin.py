"""Client of the commands that the process that owns the queue runs itself: it sends their words, and prints the answer.

It imports next to nothing, because importing what a command needs takes ten times as long as the command. Where nobody
owns the queue, and for all that is not for the owner, it returns None: then the command runs in this process.

Not for the owner are commands that need this user's files, terminal or processes (run, attach, exec, edit, logs,
ps, doctor, report, state, cluster, migrate, export, install, demo, the console), and what lasts (wait, top, serve).
What reads a file by an option (-f, --env-file, -v ./DIR:/DIR), or matches patterns, the owner refuses before it acts.
"""

from __future__ import annotations

import _socket
import os
import sys
import time

COMMANDS = frozenset(
    "submit queue show gpus explain cancel hold release suspend unsuspend requeue signal priority pause unpause drain "  # noqa: SIM905
    "resume history reserve tenant cron".split()
)
PATIENCE = 2
"""Seconds without an answer after which the user is told that it takes long."""
MOST_WORDS = 1000 * 1024
"""Bytes of a request, which the owner bounds too."""
_READING = frozenset({"queue", "show", "gpus", "explain", "history"})
"""Commands that change nothing: if the owner does not answer, they look themselves."""
_SUBMITTING = frozenset({"submit", "cron"})
_TAKEN = frozenset("PATH LD_LIBRARY_PATH PYTHONPATH VIRTUAL_ENV CUDA_HOME LANG LANGUAGE".split())  # noqa: SIM905
_READ = frozenset("TZ COLUMNS SUDO_UID".split())  # noqa: SIM905
"""Variables that commands read, besides GPUTUI_…, and those that host jobs take over, besides CONDA_… and LC_…."""
_LIMITS = "AS CORE CPU DATA FSIZE MEMLOCK NOFILE NPROC RSS STACK".split()  # noqa: SIM905
_ESCAPES = {number: f"\\u{number:04x}" for number in (*range(32), 34, 92)}
ROOT_STATE = "/var/lib/gputui"
SERVICE_SOCKET = "/run/gputui/api.sock"


_asked_at: list[float] = []
"""Time at which an owner was asked who did not answer, by the monotonic clock; empty: there was none."""


class Unanswered:
    """A request that was sent, and may have been carried out: the owner was killed, hangs, or has much to do."""

    def __init__(self, path: str, body: bytes, key: str, state: str | None, at: float) -> None:
        """`state` is the state directory that the command names, `at` when it was sent, by the monotonic clock."""
        self.path = path
        self.at = at
        self.state = state
        self.body = body
        self.key = key


def run(argv: list[str], version: str) -> int | Unanswered | None:
    """Run a command by the owner of the queue, and return its exit code; None: it is for this process."""
    if argv[-1:] == ["api-stdio"]:
        return _passed_on(argv)
    place = command_in(argv)
    environ = os.environ
    if place is None or "_GPUTUI_COMPLETE" in environ or environ.get("GPUTUI_DEBUG") or not _is_usual():
        return None
    try:
        body = message(argv, argv[place], version).encode()
    except (OSError, UnicodeEncodeError):  # no present directory, or words that are not text
        return None
    if len(body) > MOST_WORDS:
        return None
    key = "" if argv[place] in _READING else os.urandom(16).hex()
    state = argv[1] if place else None
    for path in sockets(state):
        if (link := _connected(path)) is not None:
            at = time.monotonic()
            found = _asked(link, body, key)
            if found and found[0] == 200:
                return printed(found[1])
            if not key or (found and found[0] not in (429, 500, 503)):
                _asked_at[:] = [] if found else [at]
                return None
            return Unanswered(path, body, key, state, at)
    return None


def waited() -> float:
    """Return for how many seconds this process has waited already for the answer of an owner."""
    return time.monotonic() - _asked_at[0] if _asked_at else 0.0


def command_in(argv: list[str] | tuple[str, ...]) -> int | None:
    """Return the place of the command in the words if the owner runs it; before it stands `--state DIR` at most."""
    place = 2 if len(argv) > 2 and argv[0] == "--state" else 0
    return place if len(argv) > place and argv[place] in COMMANDS else None


def _passed_on(argv: list[str]) -> int | None:
    """Pass stdin and stdout on to the owner, for a console or program elsewhere; None: it is for this process."""
    place = 2 if argv[0] == "--state" else 0
    if len(argv) != place + 1 or "GPUTUI_CLUSTER" in os.environ or _config():
        return None
    for path in sockets(argv[1] if place else None):
        if (link := _connected(path)) is not None:
            for option in (_socket.SO_SNDTIMEO, _socket.SO_RCVTIMEO):
                link.setsockopt(_socket.SOL_SOCKET, option, bytes(16))
            pass_on(link)
            return 0
    return None


def pass_on(link: _socket.socket, source: int = 0, target: int = 1) -> None:
    """Pass on what comes from a descriptor, and the answers to another one, until either side ends."""
    import _thread

    def send() -> None:
        try:
            while data := os.read(source, 1 << 18):
                link.sendall(data)
            link.shutdown(_socket.SHUT_WR)  # the owner ends streams, and answers what was asked
        except OSError:
            pass

    _thread.start_new_thread(send, ())
    try:
        while data := link.recv(1 << 18):
            while data:
                data = data[os.write(target, data) :]
    except OSError:
        pass
    link.close()


def sockets(state: str | None) -> tuple[str, ...]:
    """Return where the owner may listen; `gputui.config.find_sockets` has the rules."""
    environ = os.environ
    if state is None:
        if told := environ.get("GPUTUI_SOCKET"):
            return (told,)
        state = environ.get("GPUTUI_STATE")
    if not state:
        if not os.geteuid():
            state = ROOT_STATE
        elif _is_there(SERVICE_SOCKET):
            return (SERVICE_SOCKET,)
        else:
            state = _user_directory("XDG_STATE_HOME", "~/.local/state") + "/gputui"
    state = os.path.join(os.getcwd(), os.path.expanduser(state))
    own = f"{state}/api.sock"
    return (own, SERVICE_SOCKET) if state == ROOT_STATE else (own,)


def _user_directory(variable: str, default: str) -> str:
    return os.path.expanduser(os.environ.get(variable, "").strip() or default)


def _is_there(path: str) -> bool:
    """Return whether the file exists, be it that this user may not see it."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _is_usual() -> bool:
    """Return whether all standard streams are open, and take UTF-8 as the owner writes it."""
    out, err = sys.stdout, sys.stderr
    if out is None or err is None or sys.stdin is None or sys.maxsize < 2**32:
        return False
    return out.encoding.lower() == err.encoding.lower() == "utf-8"


def message(argv: list[str], command: str, version: str) -> str:
    """Return the words, and what of its surroundings the command reads, as JSON."""
    ttys = sum(1 << number for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)) if stream.isatty())
    width, umask, limits = 0, 0, ""
    if ttys & 2:
        try:
            width = os.get_terminal_size(sys.stdout.fileno()).columns
        except OSError:
            width = 0
    if command in _SUBMITTING:
        import resource

        umask = os.umask(0o77)
        os.umask(umask)
        limits = ",".join(
            f'"{name.lower()}":{resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0]}' for name in _LIMITS
        )
    config = _config()
    environ = ",".join(f"{_text(name)}:{_text(value)}" for name, value in _environ(argv, command).items())
    return (
        f'{{"version":{_text(version)},"argv":[{",".join(map(_text, argv))}],"cwd":{_text(os.getcwd())},'
        f'"width":{width},"ttys":{ttys},"umask":{umask},"limits":{{{limits}}},"config":{_text(config)},'
        f'"environ":{{{environ}}}}}'
    )


def _config() -> str:
    """Return the personal settings file; empty: there is none."""
    config = os.environ.get("GPUTUI_CONFIG") or _user_directory("XDG_CONFIG_HOME", "~/.config") + "/gputui/config.toml"
    return config if "GPUTUI_CONFIG" in os.environ or _is_there(config) else ""


def _text(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'


def _environ(argv: list[str], command: str) -> dict[str, str]:
    """Return the variables that the command reads: of `submit` those that jobs take over, and that words name."""
    environ, found = os.environ, {}
    submits = command in _SUBMITTING
    everything = submits and "--env-all" in argv
    for name, value in environ.items():
        is_taken = submits and (name in _TAKEN or name.startswith(("CONDA_", "LC_")))
        if everything or is_taken or name in _READ or name.startswith("GPUTUI_"):
            found[name] = value
    for word in argv if submits else ():
        ends = [word, word[6:]] if word.startswith("--env=") else [word]
        if word[:1] == "-" and word[:2] != "--":  # -eNAME, -e=NAME, and -dieNAME
            ends += [word[place + 1 :].lstrip("=") for place, letter in enumerate(word) if letter == "e"]
        found |= {end: environ[end] for end in ends if end in environ}
    return found


def _connected(path: str) -> _socket.socket | None:
    """Return a connection to the owner; None if nobody listens, or somebody who may not know this user's secrets.

    It blocks, with the kernel's own limits of time: with Python's the connect would not wait for a full backlog.
    """
    link, place = None, -1
    try:
        place = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        limit = PATIENCE.to_bytes(8, sys.byteorder) + bytes(8)
        for option in (_socket.SO_SNDTIMEO, _socket.SO_RCVTIMEO):
            link.setsockopt(_socket.SOL_SOCKET, option, limit)
        link.connect(f"/proc/self/fd/{place}/{os.path.basename(path)}")  # a longer path fits into no address
        uid = int.from_bytes(link.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)[4:8], sys.byteorder)
        if uid in (0, os.geteuid(), os.fstat(place).st_uid):
            return link
    except OSError:
        pass
    finally:
        if place >= 0:
            os.close(place)
    if link is not None:
        link.close()
    return None


def _asked(link: _socket.socket, body: bytes, key: str) -> tuple[int, bytes] | None:
    """Send the request, and return status and body of its answer; None if none came whole."""
    head = f"POST /v1/cli HTTP/1.1\r\nHost: gputui\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    sudo = os.environ.get("SUDO_UID", "")
    if sudo.isdigit() and not os.geteuid():
        head += f"Gputui-Sudo-Uid: {sudo}\r\n"
    head += f"Idempotency-Key: {key}\r\n" if key else ""
    answer, found = b"", None
    try:
        link.sendall(f"{head}Connection: close\r\n\r\n".encode() + body)
        while not (found := _whole(answer)) and (data := link.recv(1 << 18)):
            answer += data
    except OSError:
        found = None
    link.close()
    return found


def _whole(answer: bytes) -> tuple[int, bytes] | None:
    """Return status and body of an answer; None if it has not come whole."""
    head, end, body = answer.partition(b"\r\n\r\n")
    if not end or not head.startswith(b"HTTP/1."):
        return None
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length" and len(body) >= int(value):
            return int(head[9:12]), body[: int(value)]
    return None


def printed(result: bytes) -> int:
    """Print what a command has said, and return its exit code; `CommandResult.encoded` is the form.

    Where standard output cannot be written to, a piece of kind 3 says what was done; else that is an error.
    """
    first, _, rest = result.partition(b"\n")
    code, why, is_mute = int(first), "", False
    while rest:
        line, _, rest = rest.partition(b"\n")
        kind, size = map(int, line.split())
        data, rest = rest[:size], rest[size:]
        if kind == 2:
            _written(2, data)
        elif kind == 1 and not is_mute:
            why = _written(1, data)
            is_mute = bool(why)
        elif kind == 3 and why:
            told = f"gputui: {data.decode()}; this could not be printed on standard output: {why}\n"
            _written(2, told.encode())
            why = ""
        if why == "broken pipe" and not rest.startswith(b"3 "):
            return 0  # the reader has ended, as `head` does
    if why:
        _written(2, f"gputui: error: standard output cannot be written to: {why}\n".encode())
        return code or 1
    return code


def _written(descriptor: int, data: bytes) -> str:
    """Write all of it; return why not, in a few words."""
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""
