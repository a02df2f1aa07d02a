"""Real Prometheus that scrapes one metrics port."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gputui.cli.offered_files import rules_text
from tests.metrics.test_serve import PATIENCE


class Prometheus:
    """Prometheus in a process of its own; `scrape` are further fields of its scrape configuration."""

    def __init__(
        self, directory: Path, port: int, scrape: Mapping[str, object] | None = None, interval: str = "250ms"
    ) -> None:
        rules = directory / "rules.yml"
        rules.write_text(rules_text())
        target = {"job_name": "gputui", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}], **(scrape or {})}
        config = {
            "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "scrape_configs": [target],
        }
        path = directory / "prometheus.json"
        path.write_text(json.dumps(config))  # JSON is YAML
        subprocess.run(["promtool", "check", "config", str(path)], check=True, capture_output=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        words = [
            f"--config.file={path}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
        ]
        self._log = (directory / "prometheus.log").open("w")
        self.process = subprocess.Popen(["prometheus", *words], stderr=self._log, stdout=self._log)

    def ask(self, expression: str, at: float | None = None) -> list[dict[str, Any]]:
        """Return the result of a query for one time, now by default; empty while Prometheus starts."""
        words = {"query": expression} | ({} if at is None else {"time": f"{at:.3f}"})
        url = f"http://127.0.0.1:{self._port}/api/v1/query?{urllib.parse.urlencode(words)}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # not ready yet
                return []
            raise AssertionError(f"{expression}: {error.read().decode()}") from error
        except urllib.error.URLError:
            return []
        return [each for each in result if "values" in each or each["value"][1] != "NaN"]

    @property
    def log(self) -> str:
        """Return the end of its log."""
        return Path(self._log.name).read_text()[-2000:]

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE)
        self._log.close()
