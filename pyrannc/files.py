"""Files that are there as a whole or not at all."""

import os
from pathlib import Path


def write_whole(path: str | os.PathLike, text: str) -> None:
    """Writes ``text`` beside ``path`` and renames it; interrupted, the old file stays."""
    target = Path(path)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
