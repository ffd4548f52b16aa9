"""Where the processes of instances run: on this host (`local`), or on the hosts of a Ray cluster
(`ray_fleet`, with a `keeper` for each). Called by the launcher; only `ray_fleet` knows Ray.
"""
