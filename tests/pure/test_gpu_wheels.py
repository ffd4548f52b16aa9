"""The wheels for a GPU machine: what is left out of them, and that they are wheels afterwards."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

import pytest

from build.gpu_wheels import is_wanted, slim

RECORD = "server-1.dist-info/RECORD"


@pytest.mark.parametrize(
    ("name", "is_kept"),
    [
        ("pytriton/tritonserver/bin/tritonserver", True),
        ("pytriton/tritonserver/backends/python/libtriton_python.so", True),
        ("pytriton/tritonserver/python_backend_stubs/3.12/triton_python_backend_stub", True),
        ("pytriton/tritonserver/python_backend_stubs/3.10/triton_python_backend_stub", False),
        ("pytriton/client/client.py", False),
        ("nvidia_pytriton.libs/libcurl.so", True),
        ("nvidia_pytriton.libs/libpython3.12.so.1.0", False),
        ("numpy/core/numeric.py", True),
        ("numpy/core/tests/test_numeric.py", False),
        (RECORD, True),
    ],
)
def test_what_one_python_needs_of_the_server_is_kept(name: str, is_kept: bool) -> None:
    assert is_wanted(name, "3.12") == is_kept


def test_a_smaller_wheel_lists_exactly_what_it_has(tmp_path: Path) -> None:
    program, other = "pytriton/tritonserver/bin/tritonserver", "pytriton/client/client.py"
    with zipfile.ZipFile(tmp_path / "whole.whl", "w") as wheel:
        wheel.writestr(program, b"runs")
        wheel.writestr(other, b"not needed")
        wheel.writestr(RECORD, f"{program},sha256=old,1\n{other},sha256=old,1\n{RECORD},,\n")
    slim(tmp_path / "whole.whl", tmp_path / "slim.whl", "3.12")
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"runs").digest()).rstrip(b"=").decode()
    with zipfile.ZipFile(tmp_path / "slim.whl") as wheel:
        assert sorted(wheel.namelist()) == sorted([program, RECORD])
        assert wheel.read(program) == b"runs"
        assert wheel.read(RECORD).decode() == f"{program},sha256={digest},4\n{RECORD},,\n"
