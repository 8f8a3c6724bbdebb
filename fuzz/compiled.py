"""The judge compiled to machine code, by mypyc from the same sources, for campaigns that run long.

It is kept in the user's cache, under a digest of the sources and of the Python that it is for: one that was made
of other sources is never found. Only workers judge with it. Everything else, proofs above all, which look into
functions, has the interpreted modules.

mypyc leaves what a decorator makes to the interpreter, and a dataclass's constructor with it. So classes of which the
judge makes one a record or more are plain ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from fuzz.engines.cache import Facts, ProvisionError, Say, build_once, cache_folder, read_marker, remove_folder

PACKAGES = ("oracle", "reference")
ROOT = Path(__file__).parent.parent
ENTRY = "oracle.judge"
STRUCT = "(msgspec.Struct"
"""What a module says that defines classes of msgspec's; mypyc compiles none of these, and they are fast as they are."""
COMPILER_FLAGS = "-fvisibility=hidden"
"""The modules are one library: their functions call each other directly, and nobody else looks for them by name."""
COMPILER_LINES = 5
"""The end of what a compiler printed; more than that is nobody's to read."""


def judge_kind() -> str:
    """What workers judge with: ``compiled`` or ``interpreted``."""
    return "interpreted" if compiled_judge() is None else "compiled"


def compiled_judge() -> Path | None:
    """The folder to be imported from, None if nobody compiled the judge as it stands here."""
    try:
        folder = _folder()
    except RuntimeError:  # nobody's home, so no cache either
        return None
    return folder if read_marker(folder) is not None else None


@contextlib.contextmanager
def compiled_first() -> Iterator[None]:
    """Processes that are spawned meanwhile import the compiled judge, if there is one."""
    folder = compiled_judge()
    if folder is None:
        yield
        return
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def compile_judge(say: Say) -> Facts:
    """Compile the judge, unless that was done and it loads; what the marker says. Those of other sources (5 MB each)
    stay: a run of these may be about to use them.

    Raises ProvisionError in one line where mypyc or a C compiler is missing, or the cache cannot be written.
    """
    folder = compiled_judge()
    if folder is not None and _loads(folder):
        return read_marker(folder) or {}
    if missing := [name for name in ("mypyc", "setuptools") if find_spec(name) is None]:
        raise ProvisionError(f"the judge is compiled with {missing[0]}; install it: pip install 'kvoracle[compiled]'")
    if folder is not None:
        remove_folder(folder, say=say)
    say("compiling the judge, which takes about a minute")
    wanted = _folder()
    return build_once(wanted, lambda part: _compile(part, wanted.name), say=say)


def _folder() -> Path:
    return cache_folder() / "judge" / _digest(ROOT)


def _digest(root: Path) -> str:
    """Of the sources below a folder, and of what runs them."""
    python = f"{sys.version} {platform.machine()} {platform.libc_ver()}"
    digest = hashlib.blake2b(python.encode(), digest_size=8)
    for source in sorted(source for package in PACKAGES for source in (root / package).glob("*.py")):
        digest.update(source.relative_to(root).as_posix().encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()


def _compile(folder: Path, digest: str) -> Facts:
    """Fill an empty folder with the packages, the judge's modules of them compiled. ``digest``: of the sources."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    if _digest(folder) != digest:
        raise ProvisionError("kvoracle's sources changed meanwhile; compile it again")
    files = _judge_files(folder)
    # A user's own settings for mypy, plugins among them, are none for the judge.
    done = _python(["-m", "mypyc", "--config-file=", *files], folder)
    if done.returncode or not _loads(folder):
        said = " | ".join((done.stdout + done.stderr).strip().splitlines()[-COMPILER_LINES:])
        raise ProvisionError(f"mypyc could not compile the judge; is there a C compiler, with Python's headers? {said}")
    for leftover in ("build", ".mypy_cache"):
        shutil.rmtree(folder / leftover, ignore_errors=True)
    return {"modules": str(len(files)), "python": platform.python_version()}


def _judge_files(folder: Path) -> list[str]:
    """The files that the judge loads, but for those that define msgspec's classes."""
    loaded = _python(["-c", f"import sys, {ENTRY}; print(*sys.modules)"], folder).stdout.split()
    files = [f"{name.replace('.', '/')}.py" for name in loaded if name.startswith(tuple(f"{p}." for p in PACKAGES))]
    return sorted(file for file in files if STRUCT not in (folder / file).read_text())


def _loads(folder: Path) -> bool:
    """Whether what is imported from a folder is machine code, and works here."""
    return _python(["-c", f"import {ENTRY}; print({ENTRY}.__file__)"], folder).stdout.strip().endswith(".so")


def _python(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python where the packages of a folder are found first."""
    command = [sys.executable, "-B", *arguments]
    flags = f"{os.environ.get('CFLAGS', '')} {COMPILER_FLAGS}".strip()
    environment = os.environ | {"PYTHONPATH": str(folder), "CFLAGS": flags}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
