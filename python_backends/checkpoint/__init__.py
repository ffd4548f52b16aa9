"""The files of a checkpoint as any part of Gapless reads them: without torch, without a tokenizer."""
