"""[server]: the ports, and how long starting and ending may take."""

from __future__ import annotations

from dataclasses import dataclass

from python_backends.settings.setting import setting


@dataclass(frozen=True, slots=True)
class ServerSettings:
    address: str = setting(
        "127.0.0.1",
        "where HTTP, gRPC and metrics listen: an IP address of this host, localhost, or 0.0.0.0 (all of IPv4)"
        "; read SECURITY.md before you open it",
    )
    http_port: int = setting(8000, "of Triton's HTTP interface", 1, 65535)
    grpc_port: int = setting(8001, "of Triton's gRPC interface", 1, 65535)
    metrics_port: int = setting(8002, "of /metrics, for Prometheus", 1, 65535)
    drain_s: float = setting(30.0, "time for open requests to end after Ctrl-C", 0.0, 86_400.0)
    ready_s: float = setting(600.0, "longest time for loading", 1.0, 86_400.0)
    model_repository: str = setting(
        "model_repository", "directory of the models that Triton serves; relative to this folder"
    )
    trace_url: str = setting(
        "",
        "where OpenTelemetry spans are sent, such as http://127.0.0.1:4318/v1/traces; empty: no tracing"
        " (docs/tracing.md)",
    )
    statistics: bool = setting(
        False, "true: open the endpoint that counts each model's work; perf_analyzer needs it"
    )
    verbose: bool = setting(False, "true: show tritonserver's own log")
