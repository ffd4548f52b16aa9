"""Where the ports are opened: `server.address`, how each program writes it, and for whom. Called by the
server and the command line.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Mapping

from python_backends.settings import ServerSettings, Settings, SettingsError

ALL_IPV4 = "0.0.0.0"
LOOPBACK = "127.0.0.1"
USUAL_PORT = ServerSettings().grpc_port  # that of clients that are told none
API_KEY = "GAPLESS_API_KEY"  # in the environment
_OF_THE_PORT = (errno.EADDRINUSE, errno.EACCES)


def ip_of(address: str) -> str:
    """Returns the IP address that `server.address` means. Raises SettingsError."""
    what = f"server.address = {address!r}"
    try:
        found = ipaddress.ip_address(LOOPBACK if address == "localhost" else address)
    except ValueError:
        raise SettingsError(
            f"{what}: must be localhost or an IP address of this host, such as 127.0.0.1, ::1 or 0.0.0.0"
        ) from None
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped or found.scope_id:
            raise SettingsError(
                f"{what}: must be an IPv6 address without a zone and without an IPv4 one in it"
            )
        if found.is_unspecified:
            raise SettingsError(
                f"{what}: must be one IPv6 address of this host, or 0.0.0.0 for all of IPv4: with :: gRPC"
                " listens on IPv4, too, and HTTP doesn't"
            )
    return str(found)


def is_loopback(address: str) -> bool:
    """Whether only this host reaches `server.address`. Raises SettingsError."""
    return ipaddress.ip_address(ip_of(address)).is_loopback


def in_url(ip: str) -> str:
    return f"[{ip}]" if ":" in ip else ip


def asked_at(settings: ServerSettings) -> str:
    """What clients on this host are told, for gRPC; empty where it is what they ask without being told."""
    host = in_url(ip_of(settings.address))
    is_usual = settings.grpc_port == USUAL_PORT and host in (LOOPBACK, ALL_IPV4)
    return "" if is_usual else f"{LOOPBACK if host == ALL_IPV4 else host}:{settings.grpc_port}"


def of_triton_http(ip: str) -> str:
    """As tritonserver's HTTP and metrics take it."""
    return f"ipv6:{ip}" if ":" in ip else ip


def check_key(settings: Settings, environment: Mapping[str, str]) -> None:
    """Raises SettingsError if other hosts could reach the front and nothing asks for a key, or if the key of
    `environment` is blank.
    """
    check_not_blank(environment.get(API_KEY, ""))
    front, address = settings.front, settings.server.address
    if is_loopback(address) or not front.port or front.without_key:
        return
    if not front.api_keys and not environment.get(API_KEY):
        raise SettingsError(
            f"server.address = {address!r}: other hosts reach it, and there is no key for port"
            f" {front.port}: set {API_KEY} or front.api_keys, or front.port = 0, or front.without_key = true"
        )


def check_not_blank(key: str) -> None:
    """Of the environment. Raises SettingsError."""
    if key and not key.strip():
        raise SettingsError(f"{API_KEY}: must not be blank; without a key, leave it out")


def check_ports(settings: ServerSettings, front_port: int = 0) -> None:
    """Raises SettingsError if one of the ports can't be opened, or is in use: that process would answer the
    clients. Also if two of them are equal.
    """
    ip = ip_of(settings.address)
    ports = {f"server.{name}": getattr(settings, name) for name in ("http_port", "grpc_port", "metrics_port")}
    named: dict[int, str] = {}
    for name, port in (ports | ({"front.port": front_port} if front_port else {})).items():
        if named.setdefault(port, name) != name:
            raise SettingsError(f"{named[port]} and {name} are both {port}: each needs a port of its own")
        try:
            _bind(ip, port)
        except OSError as error:
            what = f"{name} = {port}" if error.errno in _OF_THE_PORT else f"server.address = {ip}"
            raise SettingsError(f"{what}: {error.strerror or error} on {ip}") from error


def _bind(ip: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((ip, port))
