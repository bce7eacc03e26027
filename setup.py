"""Builds the C++ extension with CMake; everything else stands in pyproject.toml."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


class CMakeBuild(build_ext):
    """Configures and builds `build/`, where `make test` finds the C++ tests, too."""

    def build_extension(self, extension):
        build = ROOT / "build"
        options = os.environ.get("PYRANNC_CMAKE_OPTIONS", "-DRANNC_TESTS=OFF").split()
        configure = ["cmake", "-S", ROOT, "-B", build, "-G", "Ninja"]
        subprocess.run([*configure, f"-DPython3_EXECUTABLE={sys.executable}", *options], check=True)
        subprocess.run(["cmake", "--build", build], check=True)

        # CMake writes next to the Python sources, which is all that an editable install needs.
        library = ROOT / "pyrannc" / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"
        target = Path(self.get_ext_fullpath(extension.name)).resolve()
        if target != library:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(library, target)
            shutil.copy2(library.parent / "_build_info.py", target.parent / "_build_info.py")


setup(ext_modules=[Extension("pyrannc._C", sources=[])], cmdclass={"build_ext": CMakeBuild})
