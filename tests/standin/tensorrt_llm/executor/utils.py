from __future__ import annotations


class RequestError(RuntimeError):
    """One request has failed."""


class EngineDeadError(RuntimeError):
    def __init__(self, root_cause: BaseException | None = None) -> None:
        super().__init__(f"the engine is dead: {root_cause!r}")
        self.root_cause = root_cause
