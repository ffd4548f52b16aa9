"""The tiny models, as the tests of the engines have them."""

from tests.cpu.conftest import agreement, one, one_thread, tiny

__all__ = ["agreement", "one", "one_thread", "tiny"]
