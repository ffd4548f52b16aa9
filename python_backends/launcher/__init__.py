"""Serves: starts the instance and tritonserver as siblings, watches both, heals
what dies, and ends without leaving anything behind.
"""
