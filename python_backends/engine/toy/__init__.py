"""The toy engine: tokens computed from its KV blocks by arithmetic,
for tests of everything around an engine.
"""
