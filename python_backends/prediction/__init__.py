"""Predicts how long answers will be: features, forest, history, request log and learning. If it fails,
requests are still answered.
"""
