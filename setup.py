"""Build the native kernels: plain C, optional. Without a compiler the package uses torch instead.

The kernels are loaded with ctypes and use nothing of Python's C API. The library is therefore named
_native.so, and one wheel per platform serves every version of Python 3.
"""

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FOLDER = Path("src/moonfl/kernels")


class BuildLibrary(build_ext):
    """Build a shared library whose file name does not contain the version of Python."""

    def run(self) -> None:
        """Build it, and remove libraries that an older setup.py has left in the source tree."""
        super().run()
        if self.inplace:
            for path in FOLDER.glob("_native.*.so"):
                path.unlink()

    def get_ext_filename(self, fullname: str) -> str:
        """Return the path of the library below the package folder."""
        return f"{fullname.replace('.', '/')}.so"


class PlatformWheel(bdist_wheel):
    """Tag the wheel as py3-none-PLATFORM."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tags for Python, ABI and platform."""
        platform = super().get_tag()[2]
        return "py3", "none", platform


setup(
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": PlatformWheel},
    ext_modules=[
        Extension(
            "moonfl.kernels._native",
            sources=sorted(str(path) for path in FOLDER.glob("*.c")),
            depends=sorted(str(path) for path in FOLDER.glob("*.h")),
            # Python's own -fwrapv prevents optimizations of index arithmetic, which cost a sixth
            # of a convolution's time.
            extra_compile_args=[
                "-pthread",
                "-O3",
                "-fvisibility=hidden",
                "-ffp-contract=fast",
                "-fno-wrapv",
            ],
            extra_link_args=["-pthread"],
            libraries=["m"],
            optional=True,
        )
    ],
)
