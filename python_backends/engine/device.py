"""What the torch engine asks of its device: which one it is, how much memory it has, how something is sent
without waiting.

torch's plain copies wait until the device has done everything before them, so one slot operation would make
the next launch wait for the running step. Copies out of pinned memory do not wait; torch does not reuse that
memory before it has been read. Called by all parts of the torch engine that send something.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from python_backends.settings import SettingsError


def take_device(name: str) -> torch.device:
    """The device `name` (model.device). A GPU becomes the current one of this thread: events, graphs and
    kernels go there.

    Raises SettingsError where there is no such device.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SettingsError(f"model.device = {name!r}: must be cpu, cuda or cuda:N") from error
    if device.type == "cpu":
        return device
    index, count = device.index or 0, torch.cuda.device_count()
    if device.type != "cuda" or index >= count:
        raise SettingsError(f"model.device = {name!r}: must be cpu, cuda or cuda:N; {_found(count)}")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _found(count: int) -> str:
    """What torch has found of GPUs, and why there may be none."""
    if torch.version.cuda is None:
        return "torch is the build for CPUs here: `DEVICE=cuda build/set-up` installs the one for GPUs"
    said = f"torch finds {count} GPUs (CUDA) here"
    return said if count else f"{said}: it needs a driver for CUDA {torch.version.cuda}, see nvidia-smi"


class DeviceMemory:
    """The memory of a GPU, as torch's allocator and the driver count it, in bytes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def give_back(self) -> int:
        """Returns memory that torch keeps and does not use to the driver.
        Bytes that are free on the device then.
        """
        gc.collect()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self._device)
        return int(free)

    def peak_of(self, work: Callable[[], None]) -> int:
        """Runs `work`. The most bytes that it had allocated at once, beyond what was allocated before."""
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        work()
        torch.cuda.synchronize(self._device)
        return int(torch.cuda.max_memory_allocated(self._device) - before)


def device_memory(device: torch.device) -> DeviceMemory | None:
    """None on a CPU, whose memory is not measured."""
    return DeviceMemory(device) if device.type == "cuda" else None


def to_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """`values` on `device`, in the order of its work; on a CPU the array's own memory."""
    tensor = torch.from_numpy(values)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def host_copy(tensor: Tensor) -> Tensor:
    """A copy of a GPU's `tensor` in pinned memory, complete once the device has come so far."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def on_the_way(tensor: Tensor) -> Callable[[], Tensor]:
    """Starts the way of `tensor` to the host. What is returned waits until it is there, and gives it; on a
    CPU it is `tensor`.
    """
    if tensor.device.type == "cpu":
        return lambda: tensor
    host = host_copy(tensor)
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record(torch.cuda.current_stream(tensor.device))

    def arrive() -> Tensor:
        done.synchronize()
        return host

    return arrive


def send(values: NDArray[Any], to: Tensor) -> None:
    """`values` into the memory of `to`, in the order of its device's work."""
    tensor = torch.from_numpy(values)
    to.copy_(tensor if to.device.type == "cpu" else tensor.pin_memory(), non_blocking=True)
