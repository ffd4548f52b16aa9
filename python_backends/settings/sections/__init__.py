"""The sections of gapless.toml, one file each. Others use them through `python_backends.settings`."""
