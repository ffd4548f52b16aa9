"""The messages of Tinker's SDK that are protobuf: as many fields of them as are read or written here."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "gapless.tinker"
KINDS = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    "string": KINDS.TYPE_STRING,
    "bytes": KINDS.TYPE_BYTES,
    "int32": KINDS.TYPE_INT32,
    "int64": KINDS.TYPE_INT64,
    "bool": KINDS.TYPE_BOOL,
    "double": KINDS.TYPE_DOUBLE,
}
# name → its fields: number, name, kind; * for several. Enumerations are numbers, maps lists of entries
MESSAGES = {
    "Tensor": ((1, "dense", "bytes"), (2, "sparse_csr", "bytes"), (3, "dtype", "int32")),
    "NamedTensor": ((1, "key", "string"), (2, "value", "Tensor")),
    "EncodedText": ((1, "tokens", "bytes"),),
    "Chunk": ((1, "encoded_text", "EncodedText"), (2, "image", "bytes"), (3, "dmel", "bytes")),
    "Datum": ((1, "model_input", "*Chunk"), (2, "loss_fn_inputs", "*NamedTensor")),
    "ForwardBackwardRequest": (
        (1, "model_id", "string"),
        (2, "seq_id", "int32"),
        (3, "data", "*Datum"),
        (4, "loss_fn", "string"),
        (5, "loss_fn_config", "*NamedNumber"),
        (6, "forward_only", "bool"),
    ),
    "NamedNumber": ((1, "key", "string"), (2, "value", "double")),
    "BatchedTensor": (
        (1, "data", "bytes"),
        (2, "offsets", "bytes"),
        (3, "dtype", "int32"),
        (4, "trailing_shape", "*int64"),
    ),
    "NamedBatch": ((1, "key", "string"), (2, "value", "BatchedTensor")),
    "ArrayRecord": ((1, "type_tag", "string"), (2, "fields", "*NamedBatch"), (3, "num_datums", "int64")),
    "ForwardBackwardOutput": (
        (1, "loss_fn_output_type", "string"),
        (2, "loss_fn_outputs", "*ArrayRecord"),
        (3, "metrics", "*NamedNumber"),
    ),
    "SampledSequence": ((1, "stop_reason", "int32"), (2, "tokens", "bytes"), (3, "logprobs", "bytes")),
    "SampleResponse": (
        (1, "sequences", "*SampledSequence"),
        (2, "prompt_logprobs", "bytes"),
        (4, "prompt_cache_hit_tokens", "int32"),
    ),
}
FLOAT32, INT64 = 1, 2  # dtype
STOP, LENGTH = 0, 1  # stop_reason


def _field(number: int, name: str, kind: str) -> descriptor_pb2.FieldDescriptorProto:
    field = KINDS(number=number, name=name)
    field.label = KINDS.LABEL_REPEATED if kind.startswith("*") else KINDS.LABEL_OPTIONAL
    kind = kind.removeprefix("*")
    if kind in SCALARS:
        field.type = SCALARS[kind]
    else:
        field.type, field.type_name = KINDS.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    return field


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="gapless_tinker.proto", package=PACKAGE, syntax="proto3")
    for name, fields in MESSAGES.items():
        file.message_type.add(name=name, field=[_field(*field) for field in fields])
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = (pool.FindMessageTypeByName(f"{PACKAGE}.{name}") for name in MESSAGES)
    return {each.name: message_factory.GetMessageClass(each) for each in found}


_CLASSES = _classes()
ForwardBackwardRequest: Any = _CLASSES["ForwardBackwardRequest"]
ForwardBackwardOutput: Any = _CLASSES["ForwardBackwardOutput"]
SampleResponse: Any = _CLASSES["SampleResponse"]
