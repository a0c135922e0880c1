"""
The pip side of the build: ROS messages out of `msg/*.msg`, without a ROS installation.

`pip install` runs this file; `colcon build` never does (package.xml says ament_cmake, so
CMakeLists.txt does the same work there). The stock rosidl generators, which pip fetches as
wheels, write C, type-support and Python code for the messages; all of it is compiled into
one extension module, and the Python half is put beside it as `physis_ros.msg`.

`PHYSIS_ROS_DISTRO` chooses the wheels: `kilted` (default), `jazzy`, or `none` for a
`physis_core` without ROS.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import PlatformError

PACKAGE = 'physis_ros'
ROOT = Path(__file__).parent.resolve()
GENERATED = ROOT / 'build' / 'rosidl'
MESSAGES = sorted((ROOT / 'msg').glob('*.msg'))
# The interface packages that msg/*.msg use; CMakeLists.txt has the same list.
INTERFACE_DEPENDENCIES = ['builtin_interfaces', 'std_msgs']
# Executables for `ros2 run` and launch files; CMakeLists.txt has the same list.
NODES = {
    'wam_node': 'physis_ros.wam_node',
    'servo_node': 'physis_ros.servo_node',
    'demo_robot': 'physis_ros.demo.robot_node',
    'demo_controller': 'physis_ros.demo.controller_node',
}
# Worker processes import the script that started their parent: without the guard each would
# start a node of its own. CMakeLists.txt writes the same.
EXECUTABLE = """\
#!/usr/bin/env python3
import sys

from {module} import main

if __name__ == '__main__':
    sys.exit(main())
"""
DISTROS = ('kilted', 'jazzy', 'none')

# Stands in for the code of rosidl_typesupport_c, which opens
# lib<package>__rosidl_typesupport_*.so by name: here both type supports are linked into the
# extension module itself, so no library search path is involved.
DISPATCH_HEAD = """\
#include <cstring>
#include "rosidl_runtime_c/message_type_support_struct.h"
#include "rosidl_typesupport_c/identifier.h"

using TypeSupport = rosidl_message_type_support_t;
using Getter = const TypeSupport * (*)();

static const TypeSupport * find(const TypeSupport * handle, const char * identifier)
{
  if (std::strcmp(identifier, handle->typesupport_identifier) == 0) {
    return handle;
  }
  for (auto get = static_cast<const Getter *>(handle->data); *get != nullptr; ++get) {
    const TypeSupport * candidate = (*get)();
    if (std::strcmp(identifier, candidate->typesupport_identifier) == 0) {
      return candidate;
    }
  }
  return nullptr;
}
"""
DISPATCH_ONE = """
#include "@PACKAGE@/msg/detail/@SNAKE@__functions.h"
extern "C" {
const TypeSupport *
rosidl_typesupport_fastrtps_c__get_message_type_support_handle__@PACKAGE@__msg__@NAME@();
const TypeSupport *
rosidl_typesupport_introspection_c__get_message_type_support_handle__@PACKAGE@__msg__@NAME@();

const TypeSupport *
rosidl_typesupport_c__get_message_type_support_handle__@PACKAGE@__msg__@NAME@()
{
  static const Getter getters[] = {
    rosidl_typesupport_fastrtps_c__get_message_type_support_handle__@PACKAGE@__msg__@NAME@,
    rosidl_typesupport_introspection_c__get_message_type_support_handle__@PACKAGE@__msg__@NAME@,
    nullptr};
  static const TypeSupport handle = {
    rosidl_typesupport_c__typesupport_identifier, getters, find,
    @PACKAGE@__msg__@NAME@__get_type_hash,
    @PACKAGE@__msg__@NAME@__get_type_description,
    @PACKAGE@__msg__@NAME@__get_type_description_sources};
  return &handle;
}
}
"""


def ros_distro() -> str:
    """Return the ROS distribution to build for; raises SystemExit for an unknown one."""
    distro = os.environ.get('PHYSIS_ROS_DISTRO', 'kilted')
    if distro not in DISTROS:
        raise SystemExit(f'PHYSIS_ROS_DISTRO is `{distro}`; it can be one of {", ".join(DISTROS)}')
    return distro


def generators_importable() -> bool:
    return importlib.util.find_spec('rosidl_generator_py') is not None


def build_requirements() -> list[str]:
    """
    Return what pip's isolated build needs beyond setuptools.

    Not in pyproject.toml, because it depends on the distribution wanted and on the platform:
    the wheels are for x86-64 Linux only. Nothing where the generators are there already
    (`--no-build-isolation`, a sourced ROS installation).
    """
    on_wheel_platform = sys.platform == 'linux' and platform.machine() == 'x86_64'
    distro = ros_distro()
    if distro == 'none' or not on_wheel_platform or generators_importable():
        return []
    return [
        f'ros-{distro}-{name}'
        for name in (
            'common-interfaces',
            'rosidl-generator-py',
            'rosidl-typesupport-fastrtps-c',
            'rosidl-typesupport-introspection-c',
        )
    ]


class RosPrefixes:
    """The install prefixes that hold the rosidl generators and the interface packages."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec('rosidl_generator_py')
        assert spec is not None and spec.origin is not None
        # <prefix>/lib/pythonX.Y/site-packages/rosidl_generator_py/__init__.py
        own = Path(spec.origin).parents[4]
        sourced = [Path(p) for p in os.environ.get('AMENT_PREFIX_PATH', '').split(':') if p]
        self.prefixes = list(dict.fromkeys([*sourced, own]))

    def shares(self) -> dict[str, Path]:
        """Return each ROS package's share folder by name; earlier prefixes win."""
        return {
            folder.name: folder
            for prefix in reversed(self.prefixes)
            for folder in (prefix / 'share').iterdir()
            if (folder / 'package.xml').is_file()
        }

    def include_dirs(self) -> list[Path]:
        folders: list[Path] = []
        for prefix in self.prefixes:
            include = prefix / 'include'
            folders += [include, *sorted(p for p in include.iterdir() if p.is_dir())]
        return folders

    def library_dirs(self) -> list[Path]:
        return [prefix / 'lib' for prefix in self.prefixes]


class MessageCode:
    """Generates the code of all messages under `GENERATED`, one folder per generator."""

    def __init__(self, shares: dict[str, Path]) -> None:
        self.shares = shares
        self.c = GENERATED / 'c' / PACKAGE
        self.fastrtps = GENERATED / 'fastrtps' / PACKAGE
        self.introspection = GENERATED / 'introspection' / PACKAGE
        self.python = GENERATED / 'python' / PACKAGE
        self._idl = GENERATED / 'idl' / PACKAGE
        self._descriptions = GENERATED / 'descriptions' / PACKAGE

    def generate(self) -> None:
        from rosidl_adapter.msg import convert_msg_to_idl
        from rosidl_generator_c import generate_c
        from rosidl_generator_py import generate_py
        from rosidl_generator_type_description import generate_type_hash
        from rosidl_typesupport_fastrtps_c import generate_typesupport_fastrtps_c
        from rosidl_typesupport_introspection_c import generate_c as generate_introspection_c

        shutil.rmtree(GENERATED, ignore_errors=True)
        for message in MESSAGES:
            convert_msg_to_idl(ROOT, PACKAGE, message.relative_to(ROOT), self._idl / 'msg')
        # The type descriptions come first: the C generators read the hashes from them.
        self._run(
            generate_type_hash,
            self._descriptions,
            include_paths=[f'{n}:{d}' for n, d in self.shares.items() if (d / 'msg').is_dir()],
        )
        self._run(generate_c, self.c, 'rosidl_generator_c')
        self._run(generate_typesupport_fastrtps_c, self.fastrtps, 'rosidl_typesupport_fastrtps_c')
        self._run(
            generate_introspection_c, self.introspection, 'rosidl_typesupport_introspection_c'
        )
        (self.python / 'msg').mkdir(parents=True)
        self._run(generate_py, self.python, 'rosidl_generator_py', ['rosidl_typesupport_c'])
        self._write_visibility_headers()
        self._write_dispatch()

    def sources(self) -> list[str]:
        """Return the C and C++ files, relative to the root as setuptools wants them."""
        files = sorted(p for p in GENERATED.rglob('*') if p.suffix in ('.c', '.cpp'))
        return [os.path.relpath(p, ROOT) for p in files]

    def include_dirs(self) -> list[Path]:
        return [d.parent for d in (self.c, self.fastrtps, self.introspection, self.python)]

    def _run(
        self,
        generator: Callable[..., Any],
        output: Path,
        templates_of: str | None = None,
        *arguments: list[str],
        **extra: list[str],
    ) -> None:
        """Call one generator the way its CMake half does: with a JSON file of arguments."""
        output.mkdir(parents=True, exist_ok=True)
        options: dict[str, Any] = {
            'package_name': PACKAGE,
            'output_dir': str(output),
            'target_dependencies': [],
            'ros_interface_dependencies': [],
            'ros_interface_files': [str(m) for m in MESSAGES],
            'idl_tuples': [f'{self._idl}:msg/{m.stem}.idl' for m in MESSAGES],
            'type_description_tuples': [
                f'msg/{m.stem}.idl:{self._descriptions}/msg/{m.stem}.json' for m in MESSAGES
            ],
            **extra,
        }
        if templates_of is not None:
            options['template_dir'] = str(self.shares[templates_of] / 'resource')
        options_file = output.parent / f'{generator.__name__}.json'
        options_file.write_text(json.dumps(options))
        generator(str(options_file), *arguments)

    def _write_visibility_headers(self) -> None:
        for generator, output in (
            ('rosidl_generator_c', self.c),
            ('rosidl_typesupport_fastrtps_c', self.fastrtps),
            ('rosidl_typesupport_introspection_c', self.introspection),
        ):
            header = f'{generator}__visibility_control.h'
            text = (self.shares[generator] / 'resource' / f'{header}.in').read_text()
            text = text.replace('@PROJECT_NAME@', PACKAGE)
            text = text.replace('@PROJECT_NAME_UPPER@', PACKAGE.upper())
            (output / 'msg' / header).write_text(text)

    def _write_dispatch(self) -> None:
        from rosidl_pycommon import convert_camel_case_to_lower_case_underscore as snake

        text = DISPATCH_HEAD
        for message in MESSAGES:
            one = DISPATCH_ONE.replace('@PACKAGE@', PACKAGE).replace('@NAME@', message.stem)
            text += one.replace('@SNAKE@', snake(message.stem))
        (GENERATED / 'dispatch.cpp').write_text(text)


class BuildMessages(build_ext):
    """Generates and compiles the messages, then puts their Python half beside the module."""

    def run(self) -> None:
        if ros_distro() == 'none':
            self.extensions = []
        elif not generators_importable():
            print(
                f'{PACKAGE}.msg is left out: the rosidl generators are not importable, and their '
                f'wheels are for x86-64 Linux only (this is {platform.machine()} {sys.platform}); '
                'for the messages, build with colcon in a ROS 2 installation',
                file=sys.stderr,
            )
            self.extensions = []
        super().run()
        if self.extensions:
            # `inplace` is set by editable installs and by `setup.py build_ext --inplace`.
            target = (ROOT if self.inplace else Path(self.build_lib)) / PACKAGE / 'msg'
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(
                GENERATED / 'python' / PACKAGE / 'msg',
                target,
                ignore=shutil.ignore_patterns('*.c'),
            )

    def build_extension(self, ext: Extension) -> None:
        if not any(shutil.which(c) for c in (os.environ.get('CXX', ''), 'c++', 'g++', 'clang++')):
            raise PlatformError(
                'no C++ compiler was found, and the ROS messages need one; install it '
                '(Debian, Ubuntu: `apt-get install g++`), or set PHYSIS_ROS_DISTRO=none to '
                'install physis_core without ROS'
            )
        prefixes = RosPrefixes()
        code = MessageCode(prefixes.shares())
        code.generate()
        self._configure(ext, prefixes, code)
        super().build_extension(ext)

    def _configure(self, ext: Extension, prefixes: RosPrefixes, code: MessageCode) -> None:
        import numpy

        ext.sources = code.sources()
        includes = [*code.include_dirs(), Path(numpy.get_include()), *prefixes.include_dirs()]
        ext.include_dirs = [str(d) for d in includes]
        ext.library_dirs = [str(d) for d in prefixes.library_dirs()]
        ext.libraries = [
            f'{package}__{generator}'
            for package in INTERFACE_DEPENDENCIES
            for generator in (
                'rosidl_generator_py',
                'rosidl_typesupport_fastrtps_c',
                'rosidl_typesupport_introspection_c',
                'rosidl_generator_c',
            )
        ] + [
            'rosidl_typesupport_fastrtps_c',
            'rosidl_typesupport_introspection_c',
            'fastcdr',
            'rosidl_typesupport_c',
            'rosidl_runtime_c',
            'rcutils',
            'rmw',
        ]
        ext.define_macros = [('ROS_PACKAGE_NAME', f'"{PACKAGE}"'), ('FASTCDR_DYN_LINK', None)]
        # -w: the warnings of generated code are not ours to fix.
        ext.extra_compile_args = ['-O2', '-g0', '-w']


def share_files() -> list[tuple[str, list[str]]]:
    """
    Return setuptools' `data_files`: what ROS tools expect in a package's prefix.

    That is the share folder, the ament index entries, and the node executables. Editable
    installs leave them out, which is meant: the source tree holds the same files, and a copy
    would hide later edits of `config/` (`physis_ros.share` finds either).
    """
    index = ROOT / 'build' / 'ament_index'
    executables = ROOT / 'build' / 'executables'
    for folder in (index / 'packages', index / 'rosidl_interfaces', executables):
        folder.mkdir(parents=True, exist_ok=True)
    (index / 'packages' / PACKAGE).write_text('')
    (index / 'rosidl_interfaces' / PACKAGE).write_text(''.join(f'msg/{m.name}\n' for m in MESSAGES))
    for name, module in NODES.items():
        script = executables / name
        script.write_text(EXECUTABLE.format(module=module))
        script.chmod(0o755)

    def relative(paths: list[Path]) -> list[str]:
        return [os.path.relpath(p, ROOT) for p in sorted(paths)]

    def regular(folder: str) -> list[str]:
        return relative([p for p in (ROOT / folder).glob('*') if p.is_file()])

    resources = 'share/ament_index/resource_index'
    return [
        (f'share/{PACKAGE}', ['package.xml']),
        *((f'share/{PACKAGE}/{folder}', regular(folder)) for folder in ('config', 'launch', 'msg')),
        *(
            (f'{resources}/{kind}', relative([index / kind / PACKAGE]))
            for kind in ('packages', 'rosidl_interfaces')
        ),
        (f'lib/{PACKAGE}', relative([executables / name for name in NODES])),
    ]


os.chdir(ROOT)  # the relative paths above count from here
setup(
    setup_requires=build_requirements(),
    cmdclass={'build_ext': BuildMessages},
    ext_modules=[
        Extension(f'{PACKAGE}.{PACKAGE}_s__rosidl_typesupport_c', sources=[], language='c++')
    ],
    data_files=share_files(),
)
