"""From the host to the device, in the order of the device's work, without waiting for it.

torch's plain copies wait until the device has done everything before them: one slot operation would cost the step that is launched
ahead its lead. Out of pinned memory they need not; torch gives that memory to nobody else before it has been read. Called by all parts
of the torch engine that send something.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def sent(values: NDArray[Any], device: torch.device) -> Tensor:
    """`values` on `device`; on a CPU the array's own memory."""
    tensor = torch.from_numpy(values)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
