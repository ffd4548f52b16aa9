"""Keeps clients from calling the models inside the ensemble.

Triton lets a client call every model by its name, and a call by a client cannot be distinguished from a call
by the ensemble. But with `--model-namespacing`, Triton refuses a name that two model repositories have, while
an ensemble finds the model of its own repository. So a second repository gets a namesake of each inner model.
A namesake is an ensemble: it has no process, and cannot be called either.
"""

from __future__ import annotations

from pathlib import Path

from python_backends.launcher.run_files import write_if_changed
from python_backends.launcher.stubs import STUBS

_CONFIG = """\
# The namesake of a model inside the ensemble. Two models of one name cannot be called by that name.
name: "{name}"
platform: "ensemble"
max_batch_size: 64
input [ {{ name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [ {{ name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }} ]
ensemble_scheduling {{
  step [ {{
    model_name: "ensemble"
    model_version: -1
    input_map {{ key: "text_input" value: "text_input" }}
    output_map {{ key: "text_output" value: "text_output" }}
  }} ]
}}
"""


def write_namesakes(directory: Path) -> Path:
    """Writes a model repository with a namesake of each of STUBS to `directory`. Returns `directory`."""
    for name in STUBS:
        (directory / name / "1").mkdir(parents=True, exist_ok=True)
        write_if_changed(directory / name / "config.pbtxt", _CONFIG.format(name=name).encode())
    return directory
