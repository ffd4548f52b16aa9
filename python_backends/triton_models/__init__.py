"""The entry points of the Triton models: tensors to nouns and back.
`triton_python_backend_utils` is known in this room only.
"""
