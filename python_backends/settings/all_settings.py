"""All settings of one server, in sections. Frozen: they are checked once and do not change."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from python_backends.settings.folders import ROOT, WRITTEN
from python_backends.settings.sections.adapters import AdapterSettings
from python_backends.settings.sections.cluster import ClusterSettings
from python_backends.settings.sections.engine import EngineSettings
from python_backends.settings.sections.finetuning import FinetuningSettings
from python_backends.settings.sections.front import FrontSettings
from python_backends.settings.sections.limits import LimitSettings
from python_backends.settings.sections.model import ModelSettings
from python_backends.settings.sections.prediction import NO_ENCODER, PredictionSettings
from python_backends.settings.sections.scheduling import SchedulingSettings
from python_backends.settings.sections.server import ServerSettings
from python_backends.settings.sections.streams import StreamSettings
from python_backends.settings.sections.tensorrt_llm import TensorRTLLMSettings

AUTO, BUNDLED = "auto", "bundled"  # for model.directory, besides paths and names on the hub
BUNDLED_DIRECTORY = "models/bundled"
TITLES = {  # of sections that most servers do not need
    "tensorrt_llm": 'engine.kind = "tensorrt_llm" only: docs/tensorrt_llm.md',
}


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one server."""

    model: ModelSettings = field(default_factory=ModelSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    tensorrt_llm: TensorRTLLMSettings = field(default_factory=TensorRTLLMSettings)
    scheduling: SchedulingSettings = field(default_factory=SchedulingSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    prediction: PredictionSettings = field(default_factory=PredictionSettings)
    adapters: AdapterSettings = field(default_factory=AdapterSettings)
    finetuning: FinetuningSettings = field(default_factory=FinetuningSettings)
    streams: StreamSettings = field(default_factory=StreamSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    front: FrontSettings = field(default_factory=FrontSettings)

    @property
    def predicts_lengths(self) -> bool:
        """Whether lengths are predicted and learned: if the policy uses them."""
        return self.prediction.enabled and self.scheduling.uses_lengths

    @property
    def encodes_texts(self) -> bool:
        """Whether the length predictor runs: if an encoder is named."""
        return self.predicts_lengths and self.prediction.encoder != NO_ENCODER

    @property
    def exports_states(self) -> bool:
        """Whether engines give hidden states: if lengths are predicted from them."""
        return self.predicts_lengths and self.prediction.states

    @property
    def packages_of_others(self) -> set[str]:
        """The packages in which the settings of the form module:NAME are found."""
        named = (self.engine.kind, self.scheduling.policy, self.cluster.policy)
        return {re.split(r"[.:]", name)[0] for name in named if ":" in name}

    @property
    def steps_ahead(self) -> int:
        """Steps that are launched before the tokens of the running one are read: one on a GPU. On a CPU
        planning would take processors from the engine, and training stands between the steps.
        """
        return int(self.model.device != "cpu" and self.engine.cuda_graphs != "off")

    @property
    def model_directory(self) -> Path:
        """The small model's, unless a path is named; `commands.model` finds what is named otherwise."""
        directory = self.model.directory
        return ROOT / (BUNDLED_DIRECTORY if directory in (AUTO, BUNDLED) else directory)

    @property
    def adapters_directory(self) -> Path | None:
        """None: there are no adapters."""
        return ROOT / self.adapters.directory if self.adapters.directory else None

    @property
    def finetuning_directory(self) -> Path:
        """Of the jobs of all models."""
        return WRITTEN / self.finetuning.directory

    @property
    def prediction_directory(self) -> Path:
        """Of the request logs of all models."""
        return WRITTEN / self.prediction.directory
