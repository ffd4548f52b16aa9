"""Whether our kernels run on a device: a small one is tried. Owns
nothing; called by the torch engine at its start.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path

import numpy as np
import torch


def kernel_obstacle(device: torch.device) -> str:
    """Why kernels in the Triton language do not run on `device`; "" where they do. Runs a small one, once
    compiled it takes 1 ms.

    The language compiles a part of itself in C when the first kernel is launched on a GPU. Its interpreter
    takes a CPU's tensors.
    """
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return "they need a GPU"
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    try:
        written = _write_one(device)
    # whatever the language, the compiler or the driver raise: the engine goes on without kernels
    except Exception as error:
        return "; ".join([f"{type(error).__name__}: {error}", *_missing_for_c()])
    return "" if written == [0.0, 0.5] else f"a kernel that should write 0.5 wrote {written}"


def _write_one(device: torch.device) -> list[float]:
    """What a tensor [2] of zeros holds once the kernel that writes slot
    operations has put 0.5 into its second place.
    """
    from python_backends.engine.slots.write_kernel import write  # brings Triton's language

    numbers = torch.zeros(2, dtype=torch.int64, device=device)
    target = torch.zeros(2, dtype=torch.float32, device=device)
    bits = int(np.float32(0.5).view(np.int32))
    write(torch.tensor([[3], [1], [bits]], device=device), (numbers, numbers, numbers, target))
    found: list[float] = target.tolist()
    return found


def _missing_for_c() -> list[str]:
    """What the Triton language needs to compile its part in C and this host does not have."""
    missing = []
    compilers = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]
    if not any(map(shutil.which, compilers)):
        missing.append("there is no C compiler (gcc, clang or the one that CC names)")
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").is_file():
        missing.append(f"there is no {headers / 'Python.h'} (python3-dev)")
    return missing
