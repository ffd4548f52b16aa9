"""A checkpoint in one GGUF file, as llama.cpp's tools write it: `file.GgufSource` answers like a directory.

The header holds what config.json and the tokenizer's files hold elsewhere, under llama.cpp's names. Read
there and translated: `header`, `metadata`, `architectures`, `configuration` and `rotary` (to config.json),
`tokenizer` and `splits`, `tensors`.
"""
