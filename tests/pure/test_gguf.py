"""GGUF files as checkpoints: what their headers, metadata and tokenizers say, and how broken ones are
refused.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from python_backends.checkpoint.digests import fingerprint
from python_backends.checkpoint.gguf.header import read_header
from python_backends.checkpoint.gguf.splits import WORDS
from python_backends.checkpoint.opening import open_source
from python_backends.checkpoint.source import CheckpointError
from python_backends.nouns.request import Finish, Request, TokenWindow
from python_backends.settings import LimitSettings
from python_backends.text.checkpoint import read_checkpoint
from python_backends.text.detokenize.detokenizer import Detokenizer
from python_backends.text.door.door import open_door
from tests.support.gguf_files import EMBEDDING, KEY, LLAMA, blocks, byte_level, sentence_piece, write

FIELDS = LLAMA | byte_level()
PLAIN = (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16)
DEQUANTISED = (*PLAIN, *gguf.quants._type_traits)  # the types that the package can dequantise


def refusal(path: Path, ask: Callable[[Any], object] = lambda source: source.config) -> str:
    with pytest.raises(CheckpointError) as refused:
        ask(open_source(path))
    said = str(refused.value)
    assert said.startswith(str(path))
    assert "\n" not in said
    return said


def test_a_file_and_a_directory_that_has_one_are_the_same_checkpoint(tmp_path: Path) -> None:
    file = write(tmp_path / "small.gguf", FIELDS)
    (tmp_path / "mmproj-small.gguf").write_bytes(b"sees images")
    one, other = open_source(file), open_source(tmp_path)
    assert one.config == other.config
    assert one.digest() == other.digest()
    assert one.config["architectures"] == ["LlamaForCausalLM"]
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    assert open_source(tmp_path).config == one.config
    (tmp_path / "model.safetensors").touch()
    assert open_source(tmp_path).config == {"model_type": "qwen2"}


def test_of_several_files_one_has_to_be_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / f"{name}.gguf", FIELDS)
    assert "has 2 GGUF files, name one of them: a.gguf, b.gguf" in refusal(tmp_path)


def test_the_header_is_that_which_the_package_reads(tmp_path: Path) -> None:
    listed = {"test.numbers": [1, -2, 3], "test.reals": [0.5, 0.25], "test.flags": [True, False]}
    path = write(tmp_path / "a.gguf", FIELDS | listed, EMBEDDING | {"b": np.ones((3, 5, 7), np.float16)})
    ours, theirs = read_header(path), gguf.GGUFReader(path)
    fields = {key: each.contents() for key, each in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == fields
    assert {name: (each.shape, each.kind, each.begin) for name, each in ours.tensors.items()} == {
        each.name: (tuple(reversed(each.shape.tolist())), each.tensor_type, each.data_offset)
        for each in theirs.tensors
    }


@pytest.mark.parametrize("kind", gguf.GGMLQuantizationType, ids=lambda kind: kind.name)
def test_every_type_is_read_as_the_package_dequantises_it_or_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: gguf.GGMLQuantizationType
) -> None:
    """All at once, and some rows at a time, of which the last ones are fewer."""
    monkeypatch.setattr("python_backends.checkpoint.rows.NUMBERS", 2 * 512)
    given = {"before": np.ones(3, np.float32), "a": blocks(kind, 5, 512)}
    path = write(tmp_path / "a.gguf", FIELDS, EMBEDDING | given)
    source = open_source(path)
    assert (source.tensors["a"].shape, source.tensors["a"].dtype) == ((5, 512), kind.name)
    if kind not in DEQUANTISED:
        for ask in (source.read, lambda name: list(source.rows(name))):
            with pytest.raises(CheckpointError, match=rf"a\.gguf: tensor a is of {kind.name}: \w"):
                ask("a")
        return
    with np.errstate(all="ignore"):  # random blocks have infinite scales
        wanted = gguf.dequantize(
            next(each.data for each in gguf.GGUFReader(path).tensors if each.name == "a"), kind
        )
        whole, pieces = source.read("a").numpy(), [rows.numpy() for rows in source.rows("a")]
    assert [len(rows) for rows in pieces] == [2, 2, 1]
    assert whole.dtype == np.float32
    for found in (whole, np.concatenate(pieces)):
        assert np.array_equal(found, wanted, equal_nan=True)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda content: b"", "can't be read"),
        (lambda content: b"version https://git-lfs", "is not a GGUF file"),
        (lambda content: content[:100], "it is cut off or broken"),
        (lambda content: content[:-5000], "ends before tensor token_embd.weight does"),
        (lambda content: content[:4] + struct.pack("<I", 1) + content[8:], "is of version 1 of GGUF"),
        (lambda content: content[:4] + struct.pack(">I", 3) + content[8:], "big-endian"),
        (lambda content: content[:16] + struct.pack("<Q", 1 << 60) + content[24:], "cut off or broken"),
        (lambda content: content[:24] + struct.pack("<Q", 1 << 60) + content[32:], "cut off or broken"),
        (
            lambda content: content.replace(b"llama.block_count", b"llama.\xff\xffock_count"),
            "is not in UTF-8",
        ),
        (lambda content: content.replace(b"llama.block_count", b"llama.head_count!"), "is not known of"),
        (
            lambda content: content.replace(
                b"llama.block_count" + struct.pack("<I", 4), b"llama.block_count" + struct.pack("<I", 99)
            ),
            "unknown type 99",
        ),
    ],
)
def test_a_broken_file_is_named_in_one_line(
    tmp_path: Path, spoil: Callable[[bytes], bytes], says: str
) -> None:
    path = write(tmp_path / "a.gguf", FIELDS)
    path.write_bytes(spoil(path.read_bytes()))
    assert says in refusal(path, lambda source: (source.config, source.tensors))
    assert len(open_source(path).digest()) == 16


def test_tensors_that_do_not_follow_each_other_are_refused_by_name(tmp_path: Path) -> None:
    """A wrong type or place would give other numbers."""
    path = write(tmp_path / "a.gguf", FIELDS, EMBEDDING | {"b": np.ones((4, 64), np.float32)})
    content, header = path.read_bytes(), read_header(path)
    at = content.index(b"token_embd.weight") + len("token_embd.weight") + 4 + 2 * 8  # of its type
    types = {0: 1, 1: 2}  # float32 read as float16, as Q4_0
    for place, values in ((at, types.values()), (at + 4, (32, 3, 1 << 40))):
        for value in values:
            spoiled = content[:place] + struct.pack("<I" if place == at else "<Q", value)
            path.write_bytes(spoiled + content[len(spoiled) :])
            said = refusal(path, lambda source: source.tensors)
            assert "begins at byte" in said or "ends before tensor token_embd.weight" in said
    assert header.tensors["b"].begin > header.tensors["token_embd.weight"].begin


def test_a_pipe_and_a_link_to_itself_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.gguf")
    assert "is no regular file" in refusal(tmp_path / "a.gguf")
    (tmp_path / "b.gguf").symlink_to(tmp_path / "b.gguf")
    assert "can't be read" in refusal(tmp_path / "b.gguf")


def test_a_file_that_is_cut_anywhere_in_its_header_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", FIELDS)
    content, length = path.read_bytes(), read_header(path).num_bytes
    for end in [*range(0, 900, 7), *range(900, length, 997)]:
        path.write_bytes(content[:end])
        refusal(path)


def test_fields_that_change_nothing_are_passed_over(tmp_path: Path) -> None:
    """Those of norms that the architecture has not, and what is not in use."""
    fields = {
        "llama.attention.layer_norm_epsilon": 1e-5,
        "llama.attention.sliding_window": 0,
        "llama.final_logit_softcapping": 0.0,
        "llama.rope.scaling.attn_factor": 1.0,
    }
    plain, more = (write(tmp_path / f"{n}.gguf", FIELDS | each) for n, each in enumerate(({}, fields)))
    assert open_source(more).config == open_source(plain).config


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"general.architecture": "mamba"}, "general.architecture = 'mamba': llama, qwen2"),
        ({"llama.expert_count": 8}, "llama.expert_used_count is missing"),
        (
            {"llama.expert_count": 8, "llama.expert_used_count": 2, "llama.expert_shared_count": 1},
            "llama.expert_shared_count = 1: is not known of the architecture llama",
        ),
        ({"llama.expert_used_count": 2}, "llama.expert_used_count = 2: is not known"),
        ({"llama.attention.sliding_window": 8}, "llama.attention.sliding_window = 8: is not known"),
        ({"llama.attention.sliding_window_pattern": 2}, "sliding_window_pattern = 2: is not known"),
        ({"llama.attn_logit_softcapping": 50.0}, "llama.attn_logit_softcapping = 50.0: is not known"),
        ({"llama.final_logit_softcapping": 30.0}, "llama.final_logit_softcapping = 30.0: is not known"),
        ({"llama.rope.freq_base_swa": 1e4}, "llama.rope.freq_base_swa = 10000.0: is not known"),
        ({"llama.rope.scaling.attn_factor": 0.5}, "llama.rope.scaling.attn_factor = 0.5: must be 1"),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 64,
                "llama.rope.scaling.attn_factor": 0.5,
            },
            "llama.rope.scaling.attn_factor = 0.5: must be 1",
        ),
        ({"llama.block_count": None}, "llama.block_count is missing"),
        ({"llama.block_count": "two"}, "llama.block_count = 'two': must be one whole number"),
        ({"llama.attention.head_count": [4, 2]}, "head_count = list of 2: must be one whole number"),
        ({"llama.attention.head_count": 0}, "must be at least 1"),
        ({"llama.attention.value_length": 16}, "value_length = 16: must be that of the keys, 8"),
        ({"llama.rope.dimension_count": 4}, "rope.dimension_count = 4: must be the size of a head, 8"),
        ({"llama.rope.scaling.type": "longrope"}, "'longrope': none, linear and yarn are served"),
        ({"llama.rope.scaling.yarn_beta_fast": 8.0}, "yarn_beta_fast = 8.0: is not known"),
        ({"split.count": 3}, "split.count = 3: is a part of a model"),
        ({"general.alignment": 33}, "general.alignment = 33: must be a power of two"),
    ],
)
def test_what_is_not_served_is_refused_by_its_field(
    tmp_path: Path, changed: dict[str, Any], says: str
) -> None:
    if "general.alignment" in changed:
        path = write(tmp_path / "a.gguf", FIELDS | {"general.alignment": 32})
        path.write_bytes(
            path.read_bytes().replace(b"general.alignment\4\0\0\0\x20", b"general.alignment\4\0\0\0\x21")
        )
    else:
        fields = {key: value for key, value in (FIELDS | changed).items() if value is not None}
        path = write(tmp_path / "a.gguf", fields)
    assert says in refusal(path)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({f"{KEY}.model": "bert"}, "tokenizer.ggml.model = 'bert': gpt2, llama are served"),
        ({f"{KEY}.pre": "default"}, "tokenizer.ggml.pre = 'default': gpt-2, phi-2"),
        ({f"{KEY}.pre": None}, "tokenizer.ggml.pre is missing"),
        ({f"{KEY}.tokens": ["a", "b", "a"]}, "'a' is there twice"),
        ({f"{KEY}.token_type": [1]}, "must have 504 values"),
        ({f"{KEY}.merges": ["a never"]}, "'a never': not of three tokens"),
        ({f"{KEY}.merges": ["alone"]}, "'alone': not of three tokens"),
        ({f"{KEY}.eos_token_id": 504}, "eos_token_id = 504: there are 504 tokens"),
    ],
)
def test_a_tokenizer_that_is_not_known_is_refused_by_its_field(
    tmp_path: Path, changed: dict[str, Any], says: str
) -> None:
    fields = {key: value for key, value in (FIELDS | changed).items() if value is not None}
    path = write(tmp_path / "a.gguf", fields)
    assert says in refusal(path, lambda source: source.tokenizer())


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("gpt-2", ["it", "'s", "\u01201234567", "\u0120Don", "'t", "!\u010a"]),
        ("a.x-4.0", ["it", "'s", "\u01201234567", "\u0120Don", "'t", "!\u010a"]),
        ("mellum", ["it", "'s", "\u01201234567", "\u0120Don", "'t", "!\u010a"]),
        ("smollm", ["it", "'s", "\u0120", *"1234567", "\u0120Don", "'t", "!\u010a"]),
        ("llama-bpe", ["it", "'s", "\u0120", "123", "456", "7", "\u0120Don", "'t", "!\u010a"]),
        ("midm-2.0", ["it", "'s", "\u0120", "123", "456", "7", "\u0120Don", "'t", "!\u010a"]),
        ("kormo", ["it", "'s", "\u0120", *"1234567", "\u0120Don", "'t", "!\u010a"]),
        ("qwen2", ["it", "'s", "\u0120", *"1234567", "\u0120Don", "'t", "!\u010a"]),
        ("tekken", ["it", "'s", "\u0120", *"1234567", "\u0120Don", "'t", "!\u010a"]),
        ("gpt-4o", ["it's", "\u0120", "123", "456", "7", "\u0120Don't", "!\u010a"]),
    ],
)
def test_a_text_is_cut_into_words_as_the_file_names_it(pre: str, words: list[str]) -> None:
    cut = WORDS[pre].pre_tokenizer().pre_tokenize_str("it's 1234567 Don't!\n")
    found = [word for word, _ in cut]
    if pre in ("gpt-2", "a.x-4.0", "mellum", "smollm"):
        words = [*words[:-1], "!", "\u010a"]
    assert found == words


def test_special_tokens_are_those_of_the_file_and_the_end_of_a_turn_ends_answers(tmp_path: Path) -> None:
    changed = {f"{KEY}.eos_token_id": FIELDS[f"{KEY}.bos_token_id"], f"{KEY}.add_bos_token": True}
    path = write(tmp_path / "a.gguf", FIELDS | changed)
    checkpoint = read_checkpoint(path)
    assert checkpoint.special_tokens == {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
    assert [checkpoint.tokenizer.id_to_token(each) for each in checkpoint.eos_ids] == [
        "<|endoftext|>",
        "<|im_end|>",
    ]
    assert (checkpoint.template_file, checkpoint.num_rows, checkpoint.max_model_tokens) == (path, 512, 128)
    assert checkpoint.tokenizer.encode("<think>").tokens == ["<|endoftext|>", "<think>"]


def test_the_end_of_a_text_ends_answers_though_the_file_names_the_end_of_a_turn_alone(tmp_path: Path) -> None:
    changed = {f"{KEY}.bos_token_id": FIELDS[f"{KEY}.eos_token_id"], "tokenizer.chat_template": ""}
    checkpoint = read_checkpoint(write(tmp_path / "a.gguf", FIELDS | changed))
    ends = [checkpoint.tokenizer.id_to_token(each) for each in checkpoint.eos_ids]
    assert ends == ["<|endoftext|>", "<|im_end|>"]


def test_an_id_that_means_none_names_no_token(tmp_path: Path) -> None:
    none = 2**32 - 1  # what a converter wrote for -1
    path = write(tmp_path / "a.gguf", FIELDS | {f"{KEY}.padding_token_id": none, f"{KEY}.eos_token_id": none})
    checkpoint = read_checkpoint(path)
    assert set(checkpoint.named_tokens) == {"bos_token"}
    assert max(checkpoint.eos_ids) < len(FIELDS[f"{KEY}.tokens"])


def test_bytes_of_a_sentence_piece_vocabulary_spell_what_it_lacks(tmp_path: Path) -> None:
    tokenizer = open_source(write(tmp_path / "a.gguf", LLAMA | sentence_piece())).tokenizer()
    assert tokenizer.encode("the and\n\n\u00e9<turn>").tokens == [
        "<s>",
        "\u2581the",
        "\u2581and",
        "\n\n",
        "\u2581",
        "<0xC3>",
        "<0xA9>",
        "<turn>",
    ]
    plain = sentence_piece(add_space_prefix=False, add_bos_token=False, add_eos_token=True)
    tokenizer = open_source(write(tmp_path / "b.gguf", LLAMA | plain)).tokenizer()
    assert tokenizer.encode("the").tokens == ["th", "e", "</s>"]


def test_a_text_that_spells_a_byte_or_a_control_token_does_not_become_one(tmp_path: Path) -> None:
    fields = sentence_piece()
    fields[f"{KEY}.tokens"] += ["<0x0", "A>", "<tu", "rn>"]
    fields[f"{KEY}.token_type"] += [1] * 4
    fields[f"{KEY}.scores"] += [0.0] * 4
    tokenizer = open_source(write(tmp_path / "a.gguf", LLAMA | fields)).tokenizer()
    tokenizer.encode_special_tokens = True
    assert not {"<0x0A>", "<turn>"} & set(tokenizer.encode("<0x0A><turn>").tokens)


def test_another_tensor_or_another_field_is_another_checkpoint(tmp_path: Path) -> None:
    other = {"token_embd.weight": np.ones((512, 32), np.float32)}
    files = [
        write(tmp_path / "a.gguf", FIELDS),
        write(tmp_path / "b.gguf", FIELDS, other),
        write(tmp_path / "c.gguf", FIELDS | {"llama.rope.freq_base": 5000.0}),
    ]
    assert len({fingerprint(open_source(file)) for file in files}) == 3
    assert len({open_source(file).digest() for file in files}) == 3


def test_the_door_and_the_detokenizer_work_from_a_file(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write(tmp_path / "a.gguf", FIELDS))
    asked = {"messages": '[{"role": "user", "content": "Say <|im_end|>, please."}]'}
    request = open_door(checkpoint, LimitSettings()).answer(asked)
    assert isinstance(request, Request)
    tokens = [checkpoint.tokenizer.id_to_token(each) for each in request.prompt]
    assert [token for token in tokens if token in checkpoint.special_tokens] == [
        "<|im_start|>",
        "<|im_end|>",
        "<|im_start|>",
    ]
    answer = checkpoint.tokenizer.encode("A na\u00efve answer.").ids
    window = TokenWindow(request_id=1, tokens=np.array(answer, np.int32), finish=Finish.STOP)
    assert Detokenizer(checkpoint).piece(window).text == "A na\u00efve answer."
