"""What a checkpoint is: where it lies, what its files say, its tensors by name. Importing it brings no torch.

`opening.open_source` gives the `Source` of a path; everything else is read from that.
"""
