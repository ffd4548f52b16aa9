"""LoRA adapters in the torch engine: PEFT's files, their weights in the order of the engine's products, and
the rows of a step that have one. `peft_files` and `modules` are used by training and its exports as well.
"""
