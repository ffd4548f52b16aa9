"""The names of the files in a run directory by which the processes of a server find each other."""

from __future__ import annotations

SETTINGS = "settings.json"  # the settings in effect
KEY = "key"  # signs messages between processes: only a process that can read it may send them
NETWORK = "network.json"  # where processes on other hosts are
CONTROL = "control.sock"  # the scheduler model's control socket
MARK = "launcher"  # a directory without this file is not a run directory
