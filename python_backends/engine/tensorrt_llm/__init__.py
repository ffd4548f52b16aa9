"""The TensorRT-LLM engine. TensorRT-LLM plans the steps itself; this
room keeps what is known of its requests.
"""
