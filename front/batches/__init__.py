"""/v1/batches: files of requests, answered in the time that serving leaves. One front process answers them
for all that share `front.directory` and the model; if it dies, another goes on where it was.
"""
