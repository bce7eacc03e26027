"""A file of measurements in the user's cache directory, which can be made again at any time."""

import hashlib
import json
import os
from pathlib import Path

from pyrannc import files, log


class KeptFile:
    """Values that were measured in one environment; one rank reads and writes them.

    Args:
        what: What they are, in the file's name and in it: "costs".
        kind: The file's format and its version.
        is_value: Whether one of the values is what belongs there.
        folder: ``"off"`` keeps nothing, empty stands for the user's cache directory.
        environment: What they depend on.
    """

    def __init__(self, what, kind, is_value, folder, environment):
        self._what, self._kind, self._is_value = what, kind, is_value
        self._environment = environment
        base = None
        if folder != "off":
            base = Path(folder) if folder else user_folder()
        self._path = base and base / f"{what}-{digest(json.dumps(environment))}.json"

    def read(self) -> dict:
        """Those that are there; a file of something else is ignored, with a line of the log."""
        if self._path is None:
            return {}
        try:
            text = self._path.read_text(encoding="utf-8")
            return values(
                json.loads(text), self._what, self._kind, self._is_value, self._environment
            )
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:  # of which bytes that are no text are one
            log.warn("profile", f"{self._path} is ignored and will be written anew: {error}")
            return {}

    def write(self, found: dict) -> None:
        """A folder that cannot be written is a line of the log."""
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            text = json.dumps(content(found, self._what, self._kind, self._environment))
            files.write_whole(self._path, text, mode=0o600)
        except OSError as error:
            log.warn("profile", f"measured {self._what} are not kept for the next run: {error}")


def content(found, what, kind, environment) -> dict:
    """Of a file with the values ``found``."""
    form, version = kind
    return {"format": form, "version": version, "environment": environment, what: found}


def values(read, what, kind, is_value, environment) -> dict:
    """The values of a file's content.

    Raises:
        ValueError: It is not what content() gives.
    """
    form, version = kind
    if not isinstance(read, dict) or read.get("format") != form:
        raise ValueError(f"it is no {form}")
    if read.get("version") != version:
        raise ValueError(f"its version is {read.get('version')}, not {version}")
    if read.get("environment") != environment:
        raise ValueError("it is of another machine or job")
    found = read.get(what)
    if not isinstance(found, dict) or not all(map(is_value, found.values())):
        raise ValueError(f"its {what} are malformed")
    return found


def user_folder() -> Path | None:
    """Where this user's programs keep what can be computed again; none for a user without one."""
    base = os.environ.get("XDG_CACHE_HOME")
    if not base and files.home() is None:
        return None
    return (Path(base) if base else files.home() / ".cache") / "rannc"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
