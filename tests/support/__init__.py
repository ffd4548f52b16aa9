"""What tests need and is no test: tiny models and jobs, engines under the loop, a server and its clients.

Programs that tests and `make fuzz` start are here as well. Modules of `text/` and of `server/` are used by
tests of these folders, and by others.
"""
