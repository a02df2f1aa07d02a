"""Certificates for ports of metrics."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.needs import need


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Yield a certificate for localhost, and its key."""
    need("openssl")
    made = tmp_path_factory.mktemp("certificate")
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost -addext"
    names = ["subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(["openssl", *words.split(), *names], cwd=made, check=True, capture_output=True)
    (made / "key.pem").chmod(0o600)
    return made / "cert.pem", made / "key.pem"
