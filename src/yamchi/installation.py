"""How this installation of Yamchi gets an extra: the command as it can be pasted into a shell.

A clone is installed from its folder, and the name alone may mean nothing to a package index, or a stranger's package. Installers
write down where a package came from (PEP 610), so the command names that place.
"""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

NAME = "yamchi"


def install_command(*extras: str) -> str:
    """The command that installs these extras where this program runs."""
    named = f"{NAME}[{','.join(extras)}]"
    origin = json.loads(_noted("direct_url.json") or "null")
    return shlex.join([*_install(_noted("INSTALLER")), *_requirement(named, origin)])


def _noted(file: str) -> str | None:
    """What the installer wrote down; no `direct_url.json` if it had the package from an index."""
    try:
        return distribution(NAME).read_text(file)
    except PackageNotFoundError:  # its source is on the path, and nothing installed it
        return None


def _requirement(named: str, origin: Mapping[str, Any] | None) -> list[str]:
    """What `pip install` takes to install `named`, such as `yamchi[redis]`, from where the package came from."""
    if origin is None:
        return [named]
    if (folder := origin.get("dir_info")) is not None:
        path = unquote(urlsplit(origin["url"]).path) + named.removeprefix(NAME)
        return ["-e", path] if folder.get("editable") else [path]
    url = _without_credentials(origin["url"])
    if (version := origin.get("vcs_info")) is not None:
        url = f"{version['vcs']}+{url}@{version['commit_id']}"
    within = origin.get("subdirectory")
    return [f"{named} @ {url}" + (f"#subdirectory={within}" if within else "")]


def _without_credentials(url: str) -> str:
    """The address alone. A name without a password is kept where it is no secret but needed: `ssh://git@host`."""
    scheme, netloc, path, _query, _fragment = urlsplit(url)
    user, _, host = netloc.rpartition("@")
    return urlunsplit((scheme, netloc if scheme == "ssh" and ":" not in user else host, path, "", ""))


def _install(installer: str | None) -> list[str]:
    """What installs for the interpreter in use. Within another program, such as uWSGI, there is no interpreter to name."""
    program = Path(sys.executable or "")
    if not program.name.startswith(("python", "pypy")):
        return ["pip", "install"]
    if (installer or "").strip() == "uv":  # which puts no pip into the environments that it makes
        return ["uv", "pip", "install", "--python", _typed(program)]
    return [_typed(program), "-m", "pip", "install"]


def _typed(program: Path) -> str:
    """A program as it can be typed here: by its name on PATH, from the current folder, or with its whole path."""
    for name in ("python", program.name):
        found = shutil.which(name)
        if found and Path(found).parent == program.parent and os.path.samefile(found, program):
            return name
    with suppress(FileNotFoundError, ValueError):  # the current folder is gone, or the program lies elsewhere
        return str(program.relative_to(Path.cwd()))
    return str(program)
