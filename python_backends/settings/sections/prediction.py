"""[prediction]: how lengths are predicted and learned."""

from __future__ import annotations

from dataclasses import dataclass

from python_backends.settings.setting import setting


@dataclass(frozen=True, slots=True)
class PredictionSettings:
    enabled: bool = setting(
        True,
        "predict how long answers will be, when requests compete and the policy uses it: ours, hrrn, sjf"
        " (docs/magnus.md); false, or another policy: no predictor, no learner, no log",
    )
    directory: str = setting(
        "run/prediction",
        "the request log and what was learned from it, in one directory for each checkpoint; relative to this"
        " folder",
    )
    encoder: str = setting(
        "packaged",
        "packaged (all-MiniLM-L6-v2) | a directory or a name in the local Hugging Face cache: LaBSE, as in"
        " the paper",
    )
    encoder_from: int = setting(
        200,
        "the encoder (400 MB) is loaded once the log has so many answers; before, recent answers alone"
        " predict",
        0,
        1 << 30,
    )
    processor_share: float = setting(
        0.03,
        "of the machine's processors, at most one of them, for encoding; beyond it recent answers predict",
        0.0,
        1.0,
    )
    sample_every_s: float = setting(
        5.0,
        "while slots and memory suffice for all requests, one request in this time is predicted, to learn"
        " from; 0: all",
        0.0,
        86_400.0,
    )
    relearn_s: float = setting(
        180.0, "how often the learner looks whether there is something to learn", 1.0, 86_400.0
    )
    max_logged: int = setting(
        50_000,
        "answers that the log keeps, the newest ones: features and lengths, 0.2 KB each",
        100,
        10_000_000,
    )
    keep_prompts: bool = setting(
        False, "true: write instructions and inputs into the log as well, in plain text"
    )
