"""Recognises secrets by their names, and removes their values from text that is shown elsewhere."""

from __future__ import annotations

import re

from gputui.domain.job_spec import Pairs

SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|PRIVATE|AUTH|COOKIE|API_?KEY|ACCESS_?KEY|_KEY$", re.IGNORECASE
)
"""Names of environment variables whose values are secrets."""
_MASK = "***"
_SHORTEST = 4
"""Shorter values are not replaced: `1` or `yes` would be found in every line."""
_WRITTEN = re.compile(
    r"(?P<keep>://[^\s/:@]{0,100}:|\b(?:bearer|basic)\s+|"
    r"\b[\w-]{0,40}(?:token|secret|passw(?:or)?d|passphrase|credentials?|api[_-]?key|access[_-]?key)"
    r"[\"']?\s{0,3}[=:]\s{0,3}[\"']?)(?P<value>[^\s\"',;)@]{4,})",
    re.IGNORECASE,
)
"""Secrets as programs print them: `https://user:secret@host`, `Bearer secret`, `api_key=secret`."""


def without_secrets(text: str, env: Pairs = ()) -> str:
    """Return the text with secrets replaced.

    Values of variables of `env` with such names, and text that looks like a secret.
    """
    values = {value for name, value in env if len(value) >= _SHORTEST and SECRET_NAME.search(name)}
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, _MASK)
    return _WRITTEN.sub(lambda found: found["keep"] + _MASK, text)
