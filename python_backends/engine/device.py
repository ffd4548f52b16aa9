"""What the torch engine asks of its device: whether our kernels run there, and how something is sent without waiting for it.

torch's plain copies wait until the device has done everything before them: one slot operation would cost the step that is launched
ahead its lead. Out of pinned memory they need not; torch gives that memory to nobody else before it has been read. Called by all parts
of the torch engine that send something.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def runs_kernels(device: torch.device) -> bool:
    """Whether kernels in the Triton language run on `device`. The language's interpreter takes a CPU's tensors."""
    runs = device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
    return runs and importlib.util.find_spec("triton") is not None


def sent(values: NDArray[Any], device: torch.device) -> Tensor:
    """`values` on `device`, in the order of its work; on a CPU the array's own memory."""
    tensor = torch.from_numpy(values)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
