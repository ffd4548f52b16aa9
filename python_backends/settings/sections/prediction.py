"""[prediction]: how the lengths of answers are predicted and learned."""

from __future__ import annotations

from dataclasses import dataclass

from python_backends.settings.setting import setting

NO_ENCODER, PACKAGED = "none", "packaged"


@dataclass(frozen=True, slots=True)
class PredictionSettings:
    enabled: bool = setting(
        True,
        "predict the lengths of answers, if the policy uses lengths: ours, hrrn (docs/prediction.md); false,"
        " or another policy: no learner, no log",
    )
    directory: str = setting(
        "run/prediction",
        "the request log and what was learned from it, in one directory for each checkpoint; relative to"
        " this folder",
    )
    encoder: str = setting(
        NO_ENCODER,
        "Magnus's features and forest besides, in a process of their own: packaged (all-MiniLM-L6-v2) | a"
        " directory or a name in the local Hugging Face cache, such as LaBSE (the paper's) | none",
    )
    relearn_s: float = setting(
        180.0, "how often the learner checks whether there are new answers to learn from", 1.0, 86_400.0
    )
    states: bool = setting(
        True,
        "the torch engine gives hidden states, at the end of each prompt and while its answer is"
        " written, from which the length of the answer is predicted; false: from the prompt's tokens alone",
    )
    keep_prompts: bool = setting(False, "true: the log has instructions and inputs as well, in plain text")
