"""Where the package's share folder is: `config/`, `launch/`, `msg/` and package.xml."""

from __future__ import annotations

import sys
from pathlib import Path

PACKAGE = 'physis_ros'


def share_dir() -> Path:
    """
    Return the folder that holds `config/` and `launch/` for the code that is running.

    Looked up in this order, the first that exists:

    1. the source tree, when this module runs from one (a clone, `pip install -e`): the files
       beside the code are the ones its author edits, an installed copy may be older;
    2. the ament index (a sourced colcon workspace or ROS installation);
    3. `<sys.prefix>/share/physis_ros` (pip installs it there, and nothing has to be sourced).

    Raises FileNotFoundError naming the places that were looked at.
    """
    looked_at: list[Path] = []
    for folder in (_from_source_tree(), _from_ament_index(), _from_prefix()):
        if folder is None:
            continue
        if (folder / 'package.xml').is_file():
            return folder
        looked_at.append(folder)
    places = ', '.join(f'`{folder}`' for folder in looked_at)
    raise FileNotFoundError(
        f'the share folder of {PACKAGE} is in none of {places}; install the package with pip, '
        'or source the workspace that colcon built'
    )


def _from_source_tree() -> Path:
    # Not resolved: with `colcon build --symlink-install` this file is a link into the source
    # tree, but the workspace that was sourced is the one to answer.
    return Path(__file__).absolute().parents[1]


def _from_ament_index() -> Path | None:
    try:
        from ament_index_python.packages import (
            PackageNotFoundError,
            get_package_share_directory,
        )
    except ImportError:
        return None
    try:
        return Path(get_package_share_directory(PACKAGE))
    except (PackageNotFoundError, OSError):  # OSError: AMENT_PREFIX_PATH is not set
        return None


def _from_prefix() -> Path:
    return Path(sys.prefix) / 'share' / PACKAGE
