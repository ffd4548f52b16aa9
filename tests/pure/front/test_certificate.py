"""The certificate of https: files that can't be used, and files that are renewed."""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import subprocess
from pathlib import Path

import pytest

from front.certificate import Renewal, tls_files
from python_backends.settings import FrontSettings, SettingsError


def made(folder: Path) -> tuple[str, str]:
    """A new certificate and its key, PEM."""
    folder.mkdir()
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += ["-subj", "/CN=localhost", "-keyout", str(folder / "key"), "-out", str(folder / "certificate")]
    subprocess.run(command, check=True, capture_output=True)
    return (folder / "certificate").read_text(), (folder / "key").read_text()


def served(context: ssl.SSLContext) -> str:
    """The certificate that a new client gets, PEM."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname, asking.verify_mode = False, ssl.CERT_NONE
    client, server = asking.wrap_bio(back, there), context.wrap_bio(there, back, server_side=True)
    for side in (client, server, client):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return ssl.DER_cert_to_PEM_cert(client.getpeercert(True) or b"")


def test_files_that_can_not_be_used_are_named(tmp_path: Path) -> None:
    empty, missing = tmp_path / "empty.pem", tmp_path / "missing.pem"
    empty.touch()
    for files, said in (
        ({"tls_key": str(empty)}, f"front.tls_key = '{empty}': needs front.tls_certificate"),
        ({"tls_certificate": str(missing)}, f"front.tls_certificate = '{missing}': can't be read: No such"),
        (
            {"tls_certificate": str(empty), "tls_key": str(missing)},
            f"front.tls_key = '{missing}': can't be read: No such",
        ),
        ({"tls_certificate": str(empty)}, f"front.tls_certificate = '{empty}': must be a certificate"),
    ):
        with pytest.raises(SettingsError, match=f"^{re.escape(said)}"):
            tls_files(FrontSettings(**files))
    assert tls_files(FrontSettings()) == (None, None)


def test_a_renewed_certificate_is_served_when_its_key_is_there_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = made(tmp_path / "old"), made(tmp_path / "new")
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    certificate.write_text(old[0])
    key.write_text(old[1])
    os.utime(certificate, ns=(0, 0))  # a file system may have coarse times
    os.utime(key, ns=(0, 0))
    front = FrontSettings(tls_certificate=str(certificate), tls_key=str(key))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    renewal = Renewal(front, context)
    renewal.look()
    assert not caplog.messages
    certificate.write_text(new[0])
    renewal.look()
    assert served(context) == old[0]
    (line,) = caplog.messages
    assert "must be a certificate with its key" in line
    key.write_text(new[1])
    renewal.look()
    assert served(context) == new[0]
    certificate.unlink()
    renewal.look()
    assert served(context) == new[0]
