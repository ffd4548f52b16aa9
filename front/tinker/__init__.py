"""/api/v1: Tinker's interface to training whose steps a client decides, and to sampling from what was
trained. A model in training is a job (`python_backends.finetuning.asks`); a sample is a request as any other.
"""
