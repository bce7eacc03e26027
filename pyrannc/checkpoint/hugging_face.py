"""Hugging Face's layout: ``from_pretrained`` reads the weights of a checkpoint."""

from pathlib import Path

from pyrannc import files


def write_config(model, folder: Path) -> None:
    """``config.json`` of a model of transformers; of others nothing."""
    config = getattr(model, "config", None)
    if hasattr(config, "to_json_string") and hasattr(config, "save_pretrained"):
        named = getattr(config, "architectures", None)
        config.architectures = [type(model).__name__]
        try:
            files.write_safely(folder / "config.json", config.to_json_string())
        finally:
            config.architectures = named
