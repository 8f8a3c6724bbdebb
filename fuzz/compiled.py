"""The judge compiled to machine code, by mypyc from the same sources, for campaigns that run long.

It is kept in the user's cache, under a digest of the sources and of the Python that it is for: one that was made
of other sources is never found. Only workers judge with it. Everything else, proofs above all, which look into
functions, has the interpreted modules.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from fuzz.engines.cache import Facts, ProvisionError, Say, build_once, cache_folder, read_marker

PACKAGES = ("oracle", "reference")
ROOT = Path(__file__).parent.parent
ENTRY = "oracle.judge"
STRUCT = "(msgspec.Struct"
"""What a module says that defines classes of msgspec's; mypyc compiles none of these, and they are fast as they are."""
COMPILER_LINES = 5
"""The end of what a compiler printed; more than that is nobody's to read."""


def judge_kind() -> str:
    """What workers judge with: ``compiled`` or ``interpreted``."""
    return "interpreted" if compiled_judge() is None else "compiled"


def compiled_judge() -> Path | None:
    """The folder to be imported from, None if nobody compiled the judge as it stands here."""
    folder = _folder()
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
    """Compile the judge, unless that was done; what the marker says. Those of other sources (5 MB each) stay.

    Raises ProvisionError in one line where mypy or a C compiler is missing, or the cache cannot be written.
    """
    if compiled_judge() is None and find_spec("mypyc") is None:
        raise ProvisionError("the judge is compiled by mypyc; install it: pip install 'kvoracle[compiled]'")
    folder = _folder()
    if compiled_judge() is None:
        say("compiling the judge, which takes about a minute")
    return build_once(folder, _compile, say=say)


def _folder() -> Path:
    digest = hashlib.blake2b(f"{sys.version} {platform.machine()}".encode(), digest_size=8)
    for source in _sources():
        digest.update(source.relative_to(ROOT).as_posix().encode() + b"\0" + source.read_bytes() + b"\0")
    return cache_folder() / "judge" / digest.hexdigest()


def _sources() -> list[Path]:
    return sorted(source for package in PACKAGES for source in (ROOT / package).glob("*.py"))


def _compile(folder: Path) -> Facts:
    """Fill an empty folder with the packages, the judge's modules of them compiled."""
    with tempfile.TemporaryDirectory(prefix="kvoracle-compile-") as name:
        work = Path(name)
        for package in PACKAGES:
            shutil.copytree(ROOT / package, work / package, ignore=shutil.ignore_patterns("__pycache__"))
        files = _judge_files(work)
        _run([sys.executable, "-m", "mypyc", *files], work)
        shutil.rmtree(work / "build")
        shutil.copytree(work, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".mypy_cache"))
    return {"modules": str(len(files)), "python": platform.python_version()}


def _judge_files(work: Path) -> list[str]:
    """The files that the judge loads, but for those that define msgspec's classes."""
    loaded = _run([sys.executable, "-c", f"import sys, {ENTRY}; print(*sys.modules)"], work).split()
    files = [f"{name.replace('.', '/')}.py" for name in loaded if name.startswith(tuple(f"{p}." for p in PACKAGES))]
    return sorted(file for file in files if STRUCT not in (work / file).read_text())


def _run(command: list[str], work: Path) -> str:
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    if done.returncode:
        end = " | ".join((done.stdout + done.stderr).strip().splitlines()[-COMPILER_LINES:])
        raise ProvisionError(f"mypyc could not compile the judge (it needs a C compiler and Python's headers): {end}")
    return done.stdout
