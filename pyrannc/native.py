"""Loads the C++ extension, after a look at whether it fits the torch that is installed."""

import importlib
import platform


def major_minor(version: str) -> str:
    """``"2.13"`` of ``"2.13.0+cpu"``."""
    return ".".join(version.split(".")[:2])


def load():
    """Imports ``pyrannc._C``.

    Raises:
        ImportError: The extension is not built, or was built against another torch or for another
            Python; one line with the command that mends it.
    """
    import torch  # its libraries must be loaded before ours

    rebuild = "rebuild with: pip install --no-build-isolation -e ."
    try:
        from pyrannc._build_info import TORCH_VERSION
    except ImportError:
        raise ImportError(f"the C++ extension of pyrannc is not built; {rebuild}") from None
    if major_minor(TORCH_VERSION) != major_minor(torch.__version__):
        raise ImportError(
            f"pyrannc was built against torch {TORCH_VERSION}, but torch {torch.__version__} is "
            f"installed; {rebuild}"
        )
    extension = importlib.import_module("pyrannc._C")
    if extension.__file__ is None:  # the folder of signatures: no extension has this Python's name
        raise ImportError(
            f"the C++ extension of pyrannc is not built for Python {platform.python_version()}; "
            f"{rebuild}"
        )
    return extension
