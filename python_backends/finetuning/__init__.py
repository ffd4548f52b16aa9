"""Training of LoRA adapters: data, packs, pruning, jobs, saved states, and the trainer that works without a
server (`python -m commands.finetune`). The products and gradients are the engine's
(`engine/torch/training`).
"""
