from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    end_id: Any = None
    pad_id: Any = None
    max_tokens: int = 32
    bad: Any = None
    bad_token_ids: Any = None
    stop: Any = None
    stop_token_ids: Any = None
    include_stop_str_in_output: bool = False
    embedding_bias: Any = None
    logits_processor: Any = None
    apply_batched_logits_processor: bool = False
    n: int = 1
    best_of: Any = None
    use_beam_search: bool = False
    top_k: Any = None
    top_p: Any = None
    top_p_min: Any = None
    top_p_reset_ids: Any = None
    top_p_decay: Any = None
    seed: Any = None
    temperature: Any = None
    min_tokens: Any = None
    beam_search_diversity_rate: Any = None
    repetition_penalty: Any = None
    presence_penalty: Any = None
    frequency_penalty: Any = None
    length_penalty: Any = None
    early_stopping: Any = None
    no_repeat_ngram_size: Any = None
    min_p: Any = None
    beam_width_array: Any = None
    logprobs: Any = None
    prompt_logprobs: Any = None
    return_context_logits: bool = False
    return_generation_logits: bool = False
    exclude_input_from_output: bool = True
    return_encoder_output: bool = False
    return_perf_metrics: bool = False
    additional_model_outputs: Any = None
    lookahead_config: Any = None
    guided_decoding: Any = None
    ignore_eos: bool = False
    detokenize: bool = True
    add_special_tokens: bool = True
    truncate_prompt_tokens: Any = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True

    def __post_init__(self) -> None:
        if self.end_id is not None and (self.stop is not None or self.bad is not None):
            raise RuntimeError("stop and bad are not processed by a tokenizer: please call the setup method")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if self.temperature is not None and self.temperature <= 0:
            raise ValueError(f"temperature must be above 0, got {self.temperature}")
