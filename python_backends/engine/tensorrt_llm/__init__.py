"""What the TensorRT-LLM engine keeps of requests whose steps another engine plans."""
