"""Pure wheels from a folder, for an interpreter that lacks some packages and has no network.

A wheel is a zip file of what is to lie on the path. Only what the interpreter does not have is unpacked, so nothing of
its own is replaced. Needs the standard library alone.
"""

from __future__ import annotations

import re
import zipfile
from importlib import metadata
from pathlib import Path


def unpack_missing(wheels: Path, site: Path) -> dict[str, list[str]]:
    """Unpack the wheels of what is not installed into `site`, which is to be put on the path.

    Returns:
        `unpacked`: name and version. `present`: what the interpreter has itself. `not_pure`: wheels for one platform,
        left alone.

    Raises:
        ValueError: a wheel that is damaged.
    """
    found: dict[str, list[str]] = {"unpacked": [], "present": [], "not_pure": []}
    site.mkdir(parents=True, exist_ok=True)
    for path in sorted(wheels.glob("*.whl")):
        name, version, *_ = path.stem.split("-")
        if not path.stem.endswith("-none-any"):
            found["not_pure"].append(path.name)
        elif _is_installed(name, site):
            found["present"].append(name)
        else:
            try:
                zipfile.ZipFile(path).extractall(site)
            except zipfile.BadZipFile:
                raise ValueError(f"{path} is no wheel, or damaged; make it again: make gpu-wheels") from None
            found["unpacked"].append(f"{name} {version}")
    return found


def _is_installed(name: str, site: Path) -> bool:
    """Whether the interpreter has it, outside `site`, which an earlier run may have filled."""
    wanted = _plain(name)
    for distribution in metadata.distributions():
        try:
            same = _plain(distribution.metadata["Name"] or "") == wanted
        except (KeyError, OSError):
            continue
        if same and Path(str(distribution.locate_file(""))).resolve() != site.resolve():
            return True
    return False


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
