"""Builds the C++ extension with CMake; everything else stands in pyproject.toml.

With PYRANNC_WHEEL=1 the version names the release of torch that the wheel is for: 0.8.0+torch2.13.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
WHEEL_BUILD = "build-wheel"  # beside `build`: from there paths look the same to ccache


class CMakeBuild(build_ext):
    """Configures and builds with CMake.

    An editable install builds in `build/`, to which `make test` adds the C++ tests, and leaves the
    extension next to the Python sources. A wheel is built in a folder of its own and leaves the
    source tree as it is.
    """

    def run(self):
        self.in_source_tree = self.editable_mode or self.inplace  # the base class clears `inplace`
        super().run()

    def build_extension(self, extension):
        target = Path(self.get_ext_fullpath(extension.name)).resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        package = ROOT / "pyrannc" if self.in_source_tree else target.parent
        build = ROOT / ("build" if self.in_source_tree else WHEEL_BUILD)
        configure = ["cmake", "-S", ROOT, "-B", build, "-G", "Ninja"]
        # A wheel goes to machines on which nothing of the build is installed.
        configure += [f"-DRANNC_PORTABLE={'OFF' if self.in_source_tree else 'ON'}"]
        configure += [f"-DPython3_EXECUTABLE={sys.executable}", f"-DRANNC_PACKAGE={package}"]
        options = os.environ.get("PYRANNC_CMAKE_OPTIONS", "-DRANNC_TESTS=OFF").split()
        subprocess.run([*configure, *options], check=True)
        subprocess.run(["cmake", "--build", build, "--target", "_C", "rannc-plan"], check=True)

        library = package / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"
        if library != target:
            shutil.copy2(library, target)


def local_version():
    if os.environ.get("PYRANNC_WHEEL") != "1":
        return ""
    import torch

    return "+torch" + re.match(r"\d+\.\d+", torch.__version__).group()


setup(
    ext_modules=[Extension("pyrannc._C", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
    options={
        "build": {"build_base": WHEEL_BUILD},
        "egg_info": {"tag_build": local_version()},
    },
)
