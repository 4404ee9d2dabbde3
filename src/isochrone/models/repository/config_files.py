"""Where a model's directory has its configuration."""

from __future__ import annotations

CONFIG_FILE = "config.pbtxt"
#: Holds the configurations that ``--model-config-name`` chooses among.
CONFIGS = "configs"


def config_files(config_name: str) -> tuple[str, ...]:
    """By ``--model-config-name``, or "" for none: the first that exists counts, and the last is the usual one."""
    return (f"{CONFIGS}/{config_name}.pbtxt", CONFIG_FILE) if config_name else (CONFIG_FILE,)
