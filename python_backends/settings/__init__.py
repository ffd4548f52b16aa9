"""All settings, each declared once in `sections/` with default, range and meaning.

Any room may read them; they do not change after the start.
"""

from python_backends.settings.all_settings import AUTO, BUNDLED, BUNDLED_DIRECTORY, Settings
from python_backends.settings.folders import IS_CHECKOUT, IS_INSTALLED, ROOT, WRITTEN, configuration
from python_backends.settings.reading import add_arguments, dump, load, of_command_line, read_settings
from python_backends.settings.sections.adapters import AdapterSettings
from python_backends.settings.sections.cluster import ClusterSettings
from python_backends.settings.sections.engine import EngineSettings
from python_backends.settings.sections.finetuning import TRAINS, FinetuningSettings
from python_backends.settings.sections.front import FrontSettings
from python_backends.settings.sections.limits import LimitSettings
from python_backends.settings.sections.model import ModelSettings
from python_backends.settings.sections.prediction import PredictionSettings
from python_backends.settings.sections.scheduling import SchedulingSettings
from python_backends.settings.sections.server import ServerSettings
from python_backends.settings.sections.streams import StreamSettings
from python_backends.settings.sections.tensorrt_llm import TensorRTLLMSettings
from python_backends.settings.setting import SettingsError

__all__ = [
    "AUTO",
    "BUNDLED",
    "BUNDLED_DIRECTORY",
    "IS_CHECKOUT",
    "IS_INSTALLED",
    "ROOT",
    "TRAINS",
    "WRITTEN",
    "AdapterSettings",
    "ClusterSettings",
    "EngineSettings",
    "FinetuningSettings",
    "FrontSettings",
    "LimitSettings",
    "ModelSettings",
    "PredictionSettings",
    "SchedulingSettings",
    "ServerSettings",
    "Settings",
    "SettingsError",
    "StreamSettings",
    "TensorRTLLMSettings",
    "add_arguments",
    "configuration",
    "dump",
    "load",
    "of_command_line",
    "read_settings",
]
