"""Loading the extension: a torch that does not fit, and an extension that is not there."""

import platform
import sys
from types import SimpleNamespace

import pytest
import torch

import pyrannc
from pyrannc import native

REBUILD = "pip install --no-build-isolation -e ."


@pytest.fixture
def built_against(monkeypatch):
    """Sets the torch version that the extension seems to be built against."""

    def build(version):
        info = SimpleNamespace(TORCH_VERSION=version)
        monkeypatch.setitem(sys.modules, "pyrannc._build_info", info)

    return build


def test_another_torch_is_one_line_with_both_versions_and_the_command(built_against):
    built_against("2.1.2+cu121")  # shares three characters with 2.13
    with pytest.raises(ImportError) as raised:
        native.load()
    message = str(raised.value)
    assert "2.1.2+cu121" in message and torch.__version__ in message
    assert message.endswith(REBUILD) and "\n" not in message


def test_a_patch_release_and_another_device_of_the_same_torch_are_no_mismatch(built_against):
    built_against(native.major_minor(torch.__version__) + ".77+cu999")
    assert native.load().__name__ == "pyrannc._C"


def test_minor_versions_are_compared_as_a_whole():
    # 2.1 and 2.13 share their first three characters.
    assert native.major_minor("2.1.3") == "2.1"
    assert native.major_minor("2.13.0+cpu") == "2.13"


def test_without_the_extension_the_command_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyrannc._build_info", None)  # as if not there
    with pytest.raises(ImportError) as raised:
        native.load()
    message = str(raised.value)
    assert "not built" in message and message.endswith(REBUILD) and "\n" not in message


def test_an_extension_for_another_python_is_one_line_with_the_command(
    built_against, monkeypatch, tmp_path
):
    # Its file has another Python's name, so the import found the folder of signatures and went on:
    # "cannot import name 'util' from 'pyrannc._C' (unknown location)".
    built_against(torch.__version__)
    (tmp_path / "_C").mkdir()
    monkeypatch.setattr(pyrannc, "_C", None)
    monkeypatch.setattr(pyrannc, "__path__", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "pyrannc._C")
    with pytest.raises(ImportError) as raised:
        native.load()
    message = str(raised.value)
    assert platform.python_version() in message
    assert message.endswith(REBUILD) and "\n" not in message
