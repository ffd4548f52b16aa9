"""The fields of a request: type in Triton, allowed values and meaning of each one.

The door reads requests with this table. Tests compare it with the inputs of the models `ensemble` and
`tokenizer`, with the table of the client and with docs/parameters.md. The value of a field with `sampling` is
copied to that attribute of `Sampling`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from python_backends.guides.guides import MAX_GUIDE_BYTES

MAX_INT = (1 << 31) - 1
# limits that come from the model or the settings
VOCABULARY, LAST_TOKEN, TOP_LOG_PROBS = "vocabulary", "last token id", "most log-probabilities"


@dataclass(frozen=True, slots=True)
class Field:
    dtype: str  # Triton's name of the type
    meaning: str
    default: Any = None  # the value of an absent field
    least: float = 0
    most: float | str = MAX_INT
    also: tuple[int, ...] = ()  # more values, outside of the range
    is_list: bool = False
    sampling: str = ""
    only: Any = None  # the one value that is taken, of a list each one's: anything else is not supported


# inputs of TensorRT-LLM's ensemble, which its clients send although they ask for nothing by them
TENSORRT_LLM_INPUTS: dict[str, Field] = {
    "num_return_sequences": Field("INT32", "each request gets one answer", only=1),
    "length_penalty": Field("FP32", "only beam search reads it: changes nothing", None, -MAX_INT),
    "len_penalty": Field("FP32", "the same", None, -MAX_INT),
    "early_stopping": Field("BOOL", "only beam search reads it: changes nothing"),
    "beam_search_diversity_rate": Field("FP32", "only beam search reads it: changes nothing", None, -MAX_INT),
    "no_repeat_ngram_size": Field("INT32", "there is no ban on repeated words", only=0),
    "return_context_logits": Field("BOOL", "logits are not returned", only=False),
    "return_generation_logits": Field("BOOL", "logits are not returned", only=False),
    "return_perf_metrics": Field("BOOL", "times are on /metrics alone", only=False),
    "return_kv_cache_reuse_stats": Field("BOOL", "numbers of blocks are on /metrics alone", only=False),
    "num_draft_tokens": Field("INT32", "there is no draft model", only=0),
    "use_draft_logits": Field("BOOL", "there is no draft model", only=False),
    "decoder_text_input": Field("STRING", "no model here has an encoder", only=""),
    "image_url_input": Field("STRING", "pictures are not read", only=""),
    "prompt_vocab_size": Field("INT32", "there are no tables of prompt embeddings", only=0),
    "embedding_bias_words": Field("STRING", "there are no biases of words", is_list=True, only=""),
    "embedding_bias_weights": Field("FP32", "there are no biases of words", is_list=True, only=0.0),
}
FIELDS: dict[str, Field] = {
    # the prompt
    "text_input": Field("STRING", "plain text"),
    "messages": Field("STRING", "a chat as JSON, rendered with the model's template"),
    "tools": Field("STRING", "functions that the template may tell the model of, as JSON"),
    "chat_template_kwargs": Field("STRING", "more values for the template, as JSON"),
    "continue_final_message": Field("BOOL", "true: the answer goes on with the last message", False),
    "input_ids": Field("INT32", "the token ids of the whole prompt", most=LAST_TOKEN, is_list=True),
    "text_input_is_rendered": Field(
        "BOOL", "true: text_input is a whole prompt, and special tokens in it are meant as such"
    ),
    "delivered_ids": Field(
        "INT32", "the first tokens of the answer, which goes on after them", (), 0, LAST_TOKEN, is_list=True
    ),
    "instruction": Field("STRING", "what the text asks for: for predicting the answer's length", most=4096),
    # the length of the answer
    "max_tokens": Field(
        "INT32",
        "longest answer, in tokens; -1: until the context ends; 0: the prompt alone is returned",
        least=1,
        also=(-1, 0),
    ),
    "min_tokens": Field("INT32", "shortest answer, in tokens", 0, sampling="min_tokens"),
    # how tokens are chosen
    "temperature": Field(
        "FP32", "0: the most probable token; larger: more varied", 0.0, 0.0, 100.0, sampling="temperature"
    ),
    "top_k": Field(
        "INT32", "the most probable tokens are kept, this many; 0: all", 0, 0, VOCABULARY, sampling="top_k"
    ),
    "top_p": Field(
        "FP32",
        "the most probable tokens with this probability together are kept",
        1.0,
        0.0,
        1.0,
        sampling="top_p",
    ),
    "min_p": Field(
        "FP32", "tokens with this share of the largest probability are kept", 0.0, 0.0, 1.0, sampling="min_p"
    ),
    "seed": Field("UINT64", "the same seed gives the same text", None, 0, (1 << 64) - 1),
    # how the answer is sent
    "stream": Field("BOOL", "pieces as they come", False),
    # what ends the answer
    "stop_words": Field("STRING", "the answer ends before any of these", (), is_list=True),
    "bad_words": Field("STRING", "the answer has none of these", (), is_list=True),
    "stop_token_ids": Field("INT32", "token ids that end the answer", (), 0, LAST_TOKEN, is_list=True),
    "end_id": Field("INT32", "one more token id that ends the answer; -1: none", None, -1, LAST_TOKEN),
    "pad_id": Field("INT32", "accepted for older clients; changes nothing", None, -MAX_INT - 1),
    # penalties; presence and frequency in the range of OpenAI and vLLM, repetition in numbers that are exact
    # in float32
    "repetition_penalty": Field(
        "FP32", "above 1: earlier tokens get less probable", 1.0, 0.0625, 16.0, sampling="repetition_penalty"
    ),
    "presence_penalty": Field(
        "FP32", "taken off the logits of the answer's tokens", 0.0, -2.0, 2.0, sampling="presence_penalty"
    ),
    "frequency_penalty": Field(
        "FP32", "the same, once for each time", 0.0, -2.0, 2.0, sampling="frequency_penalty"
    ),
    # what the answer must look like
    "guided_decoding_guide_type": Field("STRING", "what kind of guide the answer follows", "", most=64),
    "guided_decoding_guide": Field(
        "STRING", "the guide: a schema, a regular expression, a grammar …", "", most=MAX_GUIDE_BYTES
    ),
    # biases, in OpenAI's range
    "logit_bias_ids": Field(
        "INT32", "token ids to whose logits something is added", (), 0, LAST_TOKEN, is_list=True
    ),
    "logit_bias_values": Field("FP32", "what is added to each of them", (), -100.0, 100.0, is_list=True),
    # what the answer contains
    "beam_width": Field("INT32", "there is no beam search", only=1),
    "exclude_input_in_output": Field("BOOL", "false: the input goes before the answer", True),
    "return_log_probs": Field(
        "BOOL", "adds the log-probabilities of the answer's tokens", False, sampling="log_probs"
    ),
    "num_top_log_probs": Field(
        "INT32",
        "adds the most probable tokens, this number of them",
        0,
        0,
        TOP_LOG_PROBS,
        sampling="num_top_log_probs",
    ),
    "return_prompt_log_probs": Field("BOOL", "adds the log-probabilities of the prompt's tokens", False),
    "return_num_input_tokens": Field("BOOL", "adds the length of the prompt, in tokens", False),
    "return_num_output_tokens": Field("BOOL", "adds the number of tokens of each response", False),
    "return_output_ids": Field("BOOL", "adds the token ids of each response", False),
    # which adapter is used, and the priority
    "lora_name": Field("STRING", "the adapter to answer with, or name@version", "", most=256),
    "lora_task_id": Field("UINT64", "the same, of an adapter whose name is a number", most=(1 << 64) - 1),
    "request_priority": Field("INT32", "larger goes first", 0, -MAX_INT, MAX_INT),
    **TENSORRT_LLM_INPUTS,
}
# and the one that is no tensor: Triton's own parameter
ALL_FIELDS = {
    **FIELDS,
    "timeout": Field("", "microseconds; the answer ends with what there is", 0, 0, 10**15),
}
KNOWN = frozenset(ALL_FIELDS)
# read by no one: with any other value of `only`, a request is refused
NEUTRAL = frozenset(name for name, field in FIELDS.items() if field.only is not None)
SUPPORTED = tuple(name for name in ALL_FIELDS if name not in NEUTRAL)
# names in TensorRT-LLM's inner model and elsewhere, which are not similar enough to ours
OTHER_NAMES = {
    "random_seed": "seed",
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    "min_length": "min_tokens",
    "request_output_len": "max_tokens",
    "streaming": "stream",
    "stop_words_list": "stop_words",
    "bad_words_list": "bad_words",
    "prompt": "text_input",
    "query": "text_input",
}
