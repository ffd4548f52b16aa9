"""/v1/feedback: better answers to prompts. They are kept, and an adapter learns them; the fine-tuning jobs of
the server train it.
"""
