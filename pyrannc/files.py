"""Files that are there as a whole or not at all, and where a user's own are."""

import errno
import os
import secrets
import tempfile
from pathlib import Path


def write_whole(path: str | os.PathLike, text: str, mode: int = 0o666) -> None:
    """Writes ``text`` beside ``path`` and renames it; interrupted, the old file stays."""
    target = Path(path)
    partial = _beside(target)
    try:
        partial.touch(mode)
        partial.write_text(text, encoding="utf-8")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def write_safely(path: str | os.PathLike, text: str) -> None:
    """As :func:`write_whole`, and on the disk when it returns, also if the power fails."""
    target = Path(path)
    partial = _beside(target)
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        partial.unlink(missing_ok=True)


def check_writable(path: str | os.PathLike) -> None:
    """Raises OSError where :func:`write_whole` would; changes nothing."""
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    partial = _beside(target)
    try:
        partial.touch()
    finally:
        partial.unlink(missing_ok=True)


def check_appendable(path: str | os.PathLike) -> None:
    """Raises OSError where lines could not be added to ``path``; changes nothing."""
    if os.path.exists(path):
        with open(path, "a"):
            return
    check_writable(path)


def check_folder(path: str | os.PathLike) -> None:
    """Raises OSError where files could not be written into the folder, which need not be there yet;
    changes nothing."""
    there = Path(path).absolute()
    while not there.exists():
        there = there.parent
    with tempfile.TemporaryFile(dir=there):
        pass


def home() -> Path | None:
    """The user's folder; none in a container that knows only the user's number."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def _beside(target):
    # Processes of two containers that share a folder may have the same number.
    return target.with_name(f"{target.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
