"""Explains why ssh could not connect, from its own messages."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gputui.domain.errors import RuntimeUnavailableError
from gputui.runtime.ssh_target import Target

_KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|host key .*has changed",
        "the host key of {host} has changed: another machine answers, or it was installed anew",
        "if that is expected: `{forget}`, then `{command}` once, and compare the new key",
    ),
    (
        r"Host key verification failed|host key is known",
        "{host} is no known host: its key was never accepted",
        "`{command}` once, and compare its key",
    ),
    (
        r"Permission denied",
        "{host} refused the login: {line}",
        "`{command}` must work without a password: `ssh-copy-id`, or `ssh-add` for a key with a passphrase",
    ),
    (
        r"Too many authentication failures",
        "{host} refused the login: {line}",
        "name the key: IdentityFile and IdentitiesOnly in ~/.ssh/config",
    ),
    (r"Could not resolve hostname", "{line}", "check the name in the address, and Host and HostName in ~/.ssh/config"),
    (
        r"Connection refused",
        "nothing answers there: {line}",
        "is sshd running on {host}, and is the Port in ~/.ssh/config right?",
    ),
    (
        r"timed out|took too long|No route to host|unreachable|not responding",
        "{host} does not answer: {line}",
        "is it up, and is the network? Try `{command}`",
    ),
    (
        r"Broken pipe|Connection (closed|reset)|kex_exchange_identification",
        "the connection to {host} was cut: {line}",
        "it is made again by itself; is the network up, and sshd on {host}?",
    ),
    (
        r"administratively prohibited|forwarding (is )?(disabled|request failed)",
        "sshd on {host} forbids forwarding to a socket",
        "set AllowStreamLocalForwarding yes in its sshd_config",
    ),
    (
        r"open failed",
        "the Docker socket {socket} on {host} cannot be opened: it is not there, or the login may not use it",
        "`{command} docker ps` must work; name another socket in the address: ssh://{host}/run/user/UID/docker.sock",
    ),
)
_FORGET = re.compile(r"ssh-keygen -f .* -R .*")


def explain(target: Target, lines: Sequence[str]) -> RuntimeUnavailableError:
    """Return the error for the messages of an ssh process, with the command that fixes it."""
    told = [line.strip() for line in lines if line.strip()]
    forget = next((found[0] for line in told if (found := _FORGET.search(line))), f"ssh-keygen -R {target.host}")
    for pattern, sentence, hint in _KNOWN:
        line = next((line for line in reversed(told) if re.search(pattern, line)), None)
        if line is not None:
            facts = {"host": target.host, "socket": target.socket, "command": target.command}
            facts |= {"line": line, "forget": forget.strip()}
            return RuntimeUnavailableError(f"ssh: {sentence.format(**facts)}", hint=hint.format(**facts))
    last = told[-1] if told else "it ended without a word"
    return RuntimeUnavailableError(f"ssh to {target.host} failed: {last}", hint=f"try `{target.command}`")
