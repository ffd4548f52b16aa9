"""A real Prometheus over a running Gapless, with the project's own
configuration but for where to scrape and how often.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from python_backends.linux.free_ports import free_ports
from tests.support.server.serving import ROOT, wait_for

DEPLOY = ROOT / "deploy"


class Prometheus:
    def __init__(self, directory: Path, metrics_port: int) -> None:
        (port,) = free_ports(1)
        self._url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={_configuration(directory, metrics_port)}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=warn",
            ]
        )
        wait_for(lambda: self.get("query", query="up == 1")["result"], 60)

    def get(self, path: str, **parameters: str) -> Any:
        """The `data` of an answer of its HTTP API."""
        with urllib.request.urlopen(
            f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=30
        ) as answer:
            return json.load(answer)["data"]

    def values(self, query: str) -> dict[str, float]:
        """The present value of each series, by its labels."""
        result = self.get("query", query=query)["result"]
        return {json.dumps(series["metric"], sort_keys=True): float(series["value"][1]) for series in result}

    def has_seen(self, query: str, least: float) -> bool:
        """Whether all series of a query are there and have come so far."""
        values = self.values(query).values()
        return bool(values) and min(values) >= least

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)


def _configuration(directory: Path, metrics_port: int) -> Path:
    settings = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    settings["global"] = {"scrape_interval": "500ms", "evaluation_interval": "1s"}
    (job,) = settings["scrape_configs"] = settings["scrape_configs"][:1]  # of the metrics port
    del job["dns_sd_configs"]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{metrics_port}"]}]
    shutil.copy(DEPLOY / "alerts.yml", directory)
    written = directory / "prometheus.yml"
    written.write_text(yaml.safe_dump(settings))
    return written
