"""Gets an engine ready to be driven: from its parsed name to the interpreter and paths that start it.

Two kinds of folder are made in the user's cache on first use. ``env-<hash>`` is a virtual environment
with the dependencies that all vLLM releases share (``lock.txt`` and a CPU build of torch);
``vllm-<version>`` holds the Python sources of one release, which need no compiled extension to schedule.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from pathlib import Path

from fuzz.engines.cache import (
    Facts,
    ProvisionError,
    Say,
    build_once,
    cache_folder,
    read_marker,
    remove_folder,
    size_bytes,
)
from fuzz.engines.names import (
    NEWEST_RELEASE,
    SUPPORTED_RELEASES,
    EngineName,
    EngineNameError,
    is_newer_than_supported,
    nearest_release,
)

TORCH_VERSION = "2.13.0"
PIP_VERSION = "26.3"
"""Pinned, because what the steps below ask of pip (lazy metadata, a report) differs between its versions."""

DEFAULT_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of CPU builds, the documented default; ``$KVORACLE_TORCH_INDEX`` names another."""

OLDEST_PYTHON = (3, 11)
NEWEST_PYTHON = (3, 14)
"""The pins of ``lock.txt`` have wheels for these versions of CPython and those between them."""

_PROBE_SECONDS = 5.0
_QUERY_SECONDS = 120.0
"""Time for an interpreter of the user's to say which vLLM it has."""

_WHEEL_PYTHON = "3.11"
"""vLLM's wheels are abi3 and only their sources are used, so any Python that they support will do."""

_NO_NETWORK = re.compile(
    r"NewConnectionError|ConnectTimeoutError|ReadTimeoutError|Read timed out|NameResolutionError|ProxyError"
    r"|SSLError|Temporary failure in name resolution|Network is unreachable|Connection refused|Max retries"
)
_ACCELERATOR = re.compile(r"nvidia[-_]|cuda[-_]|triton|pytorch[-_]triton|rocm|intel[-_]", re.IGNORECASE)
_VERSION_MODULE = re.compile(r"^(?:__version__|version)\s*=(?:\s*\w+\s*=)?\s*['\"]([^'\"]+)['\"]", re.MULTILINE)
_DISTRIBUTIONS = {"PIL": "pillow", "cv2": "opencv-python-headless", "yaml": "pyyaml", "zmq": "pyzmq"}
"""Modules whose distribution has another name, among those that vLLM imports."""


@dataclass(frozen=True)
class Launch:
    """How to start an engine's process, and what it is.

    ``python``: the interpreter. ``pythonpath``: folders that go before its own packages. ``version``: of
    the build. ``release``: the supported release whose policy it is compared with. ``label``: for
    people. ``environment``: variables to be set beside those that every engine gets. ``notes``: lines
    that the user should see, such as that the version is newer than all supported ones. ``patches``: by file
    within the package ``vllm`` the whole text that is loaded in its place. ``watch``: by such a file the lines
    whose execution is noted.
    """

    python: Path
    pythonpath: tuple[str, ...]
    version: str
    release: str
    label: str
    environment: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    patches: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    watch: tuple[tuple[str, tuple[int, ...]], ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Part:
    """A folder that has to be made. Sizes in MB, time in minutes on an ordinary line (about 10 MB/s)."""

    label: str
    folder: Path
    download_mb: int
    disk_mb: int
    minutes: float


@dataclass(frozen=True)
class Installed:
    """A folder of the cache. ``name`` is what ``remove_engine`` takes; ``size`` is in bytes on disk."""

    name: str
    folder: Path
    facts: Facts
    size: int


@dataclass(frozen=True)
class TorchBuild:
    """What pip would install for torch."""

    version: str
    requires: tuple[str, ...]

    @property
    def is_cpu(self) -> bool:
        """Whether this build computes on the CPU only.

        A local version names the flavour (``+cpu``, ``+cu130``); without one it is told by what the
        build requires, since a GPU build needs its vendor's libraries.
        """
        _, _, local = self.version.partition("+")
        if local:
            return local.startswith("cpu")
        return not any(_ACCELERATOR.match(line) for line in self.requires)


# --- from a name to a launch -------------------------------------------------------------------------


def resolve(name: EngineName, *, say: Say = print, torch_index: str | None = None, allow_cuda: bool = False) -> Launch:
    """Get the engine called ``name`` ready and say how to start it; downloads what is missing.

    ``say`` gets one line at a time. ``torch_index`` is the package index asked first for torch (default:
    ``$KVORACLE_TORCH_INDEX``, else PyTorch's CPU index). ``allow_cuda`` accepts a GPU build of torch.

    Raises ProvisionError, or EngineNameError when the build found is too old.
    """
    if name.kind == "release":
        provision_env(say=say, torch_index=torch_index, allow_cuda=allow_cuda, release=name.target)
        return _release_launch(name.target)
    if name.kind == "checkout":
        provision_env(say=say, torch_index=torch_index, allow_cuda=allow_cuda)
        return _checkout_launch(Path(name.target), say)
    if name.kind == "interpreter":
        return _interpreter_launch(Path(name.target))
    raise ValueError(f"{name.typed} is no vLLM build")


def provision_env(*, say: Say, torch_index: str | None, allow_cuda: bool, release: str | None = None) -> None:
    """Make the shared environment, and the sources of ``release`` if one is given, where they are missing."""
    _check_python()
    if read_marker(env_folder()) is not None and not _env_python().exists():
        say("the shared environment's Python is gone (was it upgraded?); making the environment anew")
        remove_folder(env_folder(), say=say)
    missing = missing_parts(release)
    if release is not None and len(missing) > 1:
        check_offered(release)
    if missing:
        announce(missing, say)
    build_env = partial(_build_env, say=say, torch_index=torch_index, allow_cuda=allow_cuda)
    build_once(env_folder(), build_env, say=say)
    if release is not None:
        provision_sources(release, say=say)


def provision_sources(release: str, *, say: Say) -> Path:
    """Make the folder with the Python sources of ``release``, where it is missing; needs no environment."""
    folder = release_folder(release)
    build_once(folder, partial(_build_release, release=release, say=say), say=say)
    return folder


def missing_parts(release: str | None = None) -> list[Part]:
    """What has to be downloaded before ``release`` (None: any checkout) can be driven."""
    parts = [Part("dependencies shared by all releases, with torch for CPU", env_folder(), 270, 1100, 2.0)]
    if release is not None:
        parts.append(Part(f"sources of vllm {release}", release_folder(release), 340, 60, 1.0))
    return [part for part in parts if read_marker(part.folder) is None]


def check_offered(release: str) -> None:
    """Raise ProvisionError if the package index is known to lack this release of vLLM.

    Asked of our own pip before an environment of 1 GB is made. Where the question itself fails (no pip, no
    network) the download will tell why.
    """
    what = f"vllm {release}"
    try:
        answer = run_pip(
            Path(sys.executable),
            *("index", "versions", "--pre", "--only-binary=:all:"),
            *_wheel_target(),
            "vllm",
            what=what,
        )
    except ProvisionError:
        return
    offered = re.search(r"^Available versions: (.*)$", answer, re.MULTILINE)
    if offered is not None and release not in offered[1].split(", "):
        raise ProvisionError(_not_offered(what))


def announce(missing: list[Part], say: Say) -> None:
    """Tell what is about to be fetched, before anything is."""
    say(f"preparing engines in {cache_folder()} (once):")
    for part in missing:
        say(f"  {part.label}: about {part.download_mb} MB to download, {part.disk_mb} MB on disk, {part.minutes:g} min")


def env_folder() -> Path:
    """The shared environment's folder: another lock file, Python or machine means another folder."""
    pins = f"{lock_text()}\npip {PIP_VERSION}\ntorch {TORCH_VERSION}\n"
    built_for = f"{sys.implementation.cache_tag} {platform.machine()}"
    digest = hashlib.sha256((pins + built_for).encode()).hexdigest()[:12]
    return cache_folder() / f"env-{digest}"


def release_folder(version: str) -> Path:
    """The folder of one release's sources."""
    return cache_folder() / f"vllm-{version}"


def lock_text() -> str:
    """The pinned requirements, as committed."""
    return resources.files("fuzz.engines").joinpath("lock.txt").read_text()


def _check_python() -> None:
    if not OLDEST_PYTHON <= sys.version_info[:2] <= NEWEST_PYTHON:
        oldest, newest = (".".join(map(str, version)) for version in (OLDEST_PYTHON, NEWEST_PYTHON))
        raise ProvisionError(
            f"vLLM's dependencies are pinned for Python {oldest} to {newest}, and this is"
            f" {platform.python_version()}; install kvoracle under one of those"
        )


def _env_python() -> Path:
    return env_folder() / "bin" / "python"


# --- the shared environment --------------------------------------------------------------------------


def _build_env(folder: Path, *, say: Say, torch_index: str | None, allow_cuda: bool) -> Facts:
    say("creating the shared environment")
    _make_venv(folder)
    python = folder / "bin" / "python"
    run_pip(python, "install", "--no-deps", "--only-binary=:all:", f"pip=={PIP_VERSION}", what="pip")
    # Torch is chosen first: a refusal should come before hundreds of MB, not after.
    build, index = choose_torch(python, torch_index=torch_index, allow_cuda=allow_cuda, say=say)
    lock = folder / "lock.txt"
    lock.write_text(lock_text())
    say("installing the pinned dependencies")
    install = ("install", "--no-compile", "--only-binary=:all:")
    run_pip(python, *install, "--no-deps", "-r", str(lock), what="the dependencies")
    say(f"installing torch {build.version}")
    # A GPU build cannot even be imported without the vendor's libraries, so then they come along.
    dependencies = ("--no-deps",) if build.is_cpu else ()
    run_pip(python, *install, *dependencies, *index, f"torch=={build.version}", what="torch")
    return {"python": platform.python_version(), "torch": build.version, "pip": PIP_VERSION}


def _make_venv(folder: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "venv", str(folder)],
        check=False,
        capture_output=True,
        text=True,
        env=clean_environment(),
    )
    if made.returncode:
        raise ProvisionError(
            f"{sys.executable} cannot make a virtual environment"
            f" ({_last_line(made.stderr + made.stdout)}); install Python's venv module (Debian: python3-venv)"
        )


def choose_torch(
    python: Path, *, torch_index: str | None, allow_cuda: bool, say: Say
) -> tuple[TorchBuild, tuple[str, ...]]:
    """The build of torch to install, and pip's arguments that lead to it. Downloads only metadata.

    First the index for CPU builds is asked, if it answers within seconds; then whatever pip is
    configured to use. Raises ProvisionError if there is none, or only a GPU build and that is not allowed.
    """
    index = torch_index or os.environ.get("KVORACLE_TORCH_INDEX") or DEFAULT_TORCH_INDEX
    sources: list[tuple[str, ...]] = [()]
    if index_answers(index):
        sources.insert(0, ("--index-url", index))
    else:
        say(f"{index} does not answer; taking torch from where pip is configured to look")
    refused = ""
    for source in sources:
        # A CPU build is asked for by name first: by version order a +cu build would win over it.
        for requirement in (f"torch=={TORCH_VERSION}+cpu", f"torch=={TORCH_VERSION}"):
            build = _what_pip_would_install(python, requirement, source)
            if build is not None and (build.is_cpu or allow_cuda):
                return build, source
            refused = build.version if build is not None else refused
    found = f"only a GPU build of torch {refused}" if refused else f"no torch {TORCH_VERSION}"
    remedy = ", or allow the GPU build with --allow-cuda" if refused else ""
    raise ProvisionError(
        f"pip finds {found}; set KVORACLE_TORCH_INDEX to a package index with CPU builds"
        f" (default {DEFAULT_TORCH_INDEX}){remedy}"
    )


def index_answers(index: str, seconds: float = _PROBE_SECONDS) -> bool:
    """Whether the package index answers at all within ``seconds``.

    The question is asked in a thread, since looking up a host's name obeys no time limit.
    """
    parts = urllib.parse.urlsplit(index)
    if parts.scheme not in ("http", "https"):
        return Path(urllib.request.url2pathname(parts.path)).exists()
    host = parts.netloc.rpartition("@")[2]
    url = urllib.parse.urlunsplit((parts.scheme, host, parts.path.rstrip("/") + "/torch/", "", ""))
    answered: list[bool] = []

    def ask() -> None:
        try:
            urllib.request.urlopen(url, timeout=seconds).close()
            answered.append(True)
        except urllib.error.HTTPError as error:
            # The name and password, if any, were left out above; with them pip may get in.
            answered.append(error.code in (401, 403))
        except (OSError, ValueError):
            answered.append(False)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return answered == [True]


def _what_pip_would_install(python: Path, requirement: str, source: tuple[str, ...]) -> TorchBuild | None:
    """What pip finds for ``requirement``, from its metadata alone; None if it finds nothing.

    ``fast-deps`` reads the metadata out of the remote wheel by range requests, where an index does not
    offer it as a file; without it a dry run downloads the whole wheel.
    """
    with tempfile.TemporaryDirectory(prefix="kvoracle-") as scratch:
        report = Path(scratch) / "report.json"
        try:
            run_pip(
                python,
                *("install", "--dry-run", "--ignore-installed", "--no-deps", "--only-binary=:all:"),
                *("--use-feature=fast-deps", "--report", str(report)),
                *source,
                requirement,
                what=requirement,
            )
        except ProvisionError:
            return None
        metadata = json.loads(report.read_text())["install"][0]["metadata"]
    return TorchBuild(metadata["version"], tuple(metadata.get("requires_dist", ())))


# --- a release's sources -----------------------------------------------------------------------------


def _build_release(folder: Path, *, release: str, say: Say) -> Facts:
    say(f"downloading vllm {release}")
    # Sources alone may be wanted before there is an environment; then our own pip fetches them.
    python = _env_python() if _env_python().exists() else Path(sys.executable)
    with tempfile.TemporaryDirectory(prefix="wheel-", dir=folder) as scratch:
        run_pip(
            python,
            *("download", "--no-deps", "--only-binary=:all:"),
            *_wheel_target(),
            *("--dest", scratch),
            f"vllm=={release}",
            what=f"vllm {release}",
        )
        say(f"unpacking the sources of vllm {release}")
        unpack_sources(next(Path(scratch).glob("*.whl")), folder)
    return {"vllm": release}


def _wheel_target() -> list[str]:
    """Pip's arguments for the wheels that are made for Linux, wherever this runs."""
    machine = "aarch64" if platform.machine() in ("aarch64", "arm64") else "x86_64"
    platforms = ("manylinux_2_28", "manylinux_2_31", "manylinux2014")
    return [*(f"--platform={name}_{machine}" for name in platforms), "--python-version", _WHEEL_PYTHON]


def unpack_sources(wheel: Path, folder: Path) -> None:
    """Unpack a wheel's Python files and its metadata, which tells its version; no compiled file.

    Raises ProvisionError if the wheel is damaged.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            wanted = [name for name in archive.namelist() if name.endswith(".py") or ".dist-info/" in name]
            archive.extractall(folder, wanted)
    except (zipfile.BadZipFile, EOFError) as error:
        raise ProvisionError(f"{wheel.name} arrived damaged ({error}); try again") from error


def _release_launch(version: str) -> Launch:
    return Launch(
        python=_env_python(),
        pythonpath=(str(release_folder(version)),),
        version=version,
        release=nearest_release(version),
        label=f"vllm {version}",
        notes=version_notes(version),
    )


# --- a checkout --------------------------------------------------------------------------------------


def _checkout_launch(folder: Path, say: Say) -> Launch:
    """A source checkout: driven where it lies, with the shared environment, and never written to."""
    found = checkout_version(folder)
    version = found or f"{NEWEST_RELEASE}+unknown"
    notes = version_notes(version)
    if found is None:
        notes = (f"the version of {folder} cannot be told; it is judged as {NEWEST_RELEASE}", *notes)
    overlay = _overlay(folder, version, say)
    return Launch(
        python=_env_python(),
        pythonpath=(str(overlay), str(folder)),
        version=version,
        release=nearest_release(version),
        label=f"vllm {version} (checkout {folder})",
        # Compiled files would otherwise be written into the user's checkout; to do without costs about 1 s.
        environment=(("PYTHONDONTWRITEBYTECODE", "1"),),
        notes=notes,
    )


def checkout_version(folder: Path) -> str | None:
    """The version of a checkout, from git's tags, its ``_version.py`` or its metadata, in this order.

    Git comes first, since a ``_version.py`` is as old as the last build. A commit after a tag reads
    ``0.33.0+12.g1a2b3c4``: twelve commits after 0.33.0.
    """
    return _git_version(folder) or _version_module(folder) or _metadata_version(folder)


def _git_version(folder: Path) -> str | None:
    if not (folder / ".git").exists():  # else git would describe a repository around the checkout
        return None
    command = ["git", "-C", str(folder), "describe", "--tags", "--long", "--match", "v[0-9]*"]
    try:
        answer = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=_QUERY_SECONDS,
            env=clean_environment(),
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    tag, _, rest = answer.stdout.strip().removeprefix("v").partition("-")
    commits, _, commit = rest.partition("-")
    version = f"{tag}+{commits}.{commit}" if commits not in ("", "0") else tag
    return version if _is_version(version) else None


def _version_module(folder: Path) -> str | None:
    try:
        match = _VERSION_MODULE.search((folder / "vllm" / "_version.py").read_text())
    except OSError:
        return None
    return match[1] if match is not None and _is_version(match[1]) else None


def _metadata_version(folder: Path) -> str | None:
    for path in (*folder.glob("vllm-*.dist-info/METADATA"), *folder.glob("vllm.egg-info/PKG-INFO")):
        match = re.search(r"^Version: *(\S+)", path.read_text(), re.MULTILINE)
        if match is not None and _is_version(match[1]):
            return match[1]
    return None


def _is_version(text: str) -> bool:
    try:
        is_newer_than_supported(text)
    except EngineNameError:
        return False
    return True


def _overlay(checkout: Path, version: str, say: Say) -> Path:
    """A folder before the checkout on the path, with what only a build would have put into it.

    ``importlib.metadata`` must find a distribution called vllm, and ``vllm._version`` must exist.
    """
    lacks_module = not (checkout / "vllm" / "_version.py").is_file()
    folder = cache_folder() / f"overlay-{version}{'-module' if lacks_module else ''}"

    def build(part: Path) -> Facts:
        metadata = part / f"vllm-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        if lacks_module:
            (part / "sitecustomize.py").write_text(_version_module_source(version))
        return {"vllm": version}

    build_once(folder, build, say=say)
    return folder


def _version_module_source(version: str) -> str:
    """A ``sitecustomize`` that supplies ``vllm._version``, which Python then need not find in the package."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3])
    return (
        "import sys, types\n"
        "module = types.ModuleType('vllm._version')\n"
        f"module.__version__ = module.version = {version!r}\n"
        f"module.__version_tuple__ = module.version_tuple = {numbers!r}\n"
        "module.__commit_id__ = module.commit_id = None\n"
        "sys.modules['vllm._version'] = module\n"
    )


# --- an interpreter of the user's --------------------------------------------------------------------


def _interpreter_launch(python: Path) -> Launch:
    """An interpreter that has vLLM installed: used as it is, with nothing of ours and nothing written."""
    version = _installed_version(python)
    return Launch(
        python=python,
        pythonpath=(),
        version=version,
        release=nearest_release(version),
        label=f"vllm {version} (python {python})",
        environment=(("PYTHONDONTWRITEBYTECODE", "1"),),
        notes=version_notes(version),
    )


def ask_python(python: str, question: str) -> subprocess.CompletedProcess[str]:
    """What another interpreter of the user's says to a line of Python. Raises ProvisionError if it cannot be run."""
    try:
        # Asked from another folder: where this runs there may be one called vllm.
        return subprocess.run(
            [python, "-c", question],
            check=False,
            capture_output=True,
            text=True,
            timeout=_QUERY_SECONDS,
            env=clean_environment(),
            cwd=tempfile.gettempdir(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProvisionError(f"{python} cannot be run as a Python interpreter: {error}") from error


def _installed_version(python: Path) -> str:
    answer = ask_python(str(python), "import importlib.metadata; print(importlib.metadata.version('vllm'))")
    if "PackageNotFoundError" in answer.stderr:
        raise ProvisionError(f"{python} has no vLLM; install it there with: {python} -m pip install vllm")
    version = answer.stdout.strip()
    if answer.returncode or not _is_version(version):
        said = _last_line(answer.stderr) or repr(version)
        raise ProvisionError(f"{python} cannot tell which vLLM it has: {said}")
    return version


def version_notes(version: str) -> tuple[str, ...]:
    """What a user should know of a build of this version."""
    if not is_newer_than_supported(version):
        return ()
    return (f"vllm {version} is newer than all supported releases; it is judged as {NEWEST_RELEASE}",)


# --- what is in the cache ----------------------------------------------------------------------------


def list_engines() -> list[Installed]:
    """The finished folders of the cache, releases first, with what they occupy."""
    folders = sorted(cache_folder().glob("vllm-*"), key=_release_order) + sorted(cache_folder().glob("env-*"))
    found = ((folder, read_marker(folder)) for folder in folders)
    return [
        Installed(_name_of(folder), folder, facts, size_bytes(folder)) for folder, facts in found if facts is not None
    ]


def remove_engine(name: str, *, say: Say = print) -> int:
    """Remove the engine called ``name`` (as ``list_engines`` names it); return the bytes freed.

    Raises EngineNameError if there is none.
    """
    folder = _folder_of(name)
    names = [entry.name for entry in list_engines()]
    if name not in names:
        there = ", ".join(names) or "nothing"
        raise EngineNameError(f"{name} is not in the cache {cache_folder()}; there is {there}")
    size = size_bytes(folder)
    remove_folder(folder, say=say)
    return size


def _folder_of(name: str) -> Path:
    return cache_folder() / name.replace("vllm==", "vllm-", 1)


def _name_of(folder: Path) -> str:
    return folder.name.replace("vllm-", "vllm==", 1)


def _release_order(folder: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", folder.name))


# --- processes ---------------------------------------------------------------------------------------


def clean_environment() -> dict[str, str]:
    """This process's environment without what would change an answer: variables of Python, vLLM and git."""
    unwanted = ("PYTHON", "VLLM_", "__PYVENV", "VIRTUAL_ENV", "GIT_")
    return {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}


def run_pip(python: Path, *arguments: str, what: str) -> str:
    """Run the pip of ``python``, with the user's own configuration; return all that it printed.

    Two tries per request and no cache: a dead network should be told soon, and a wheel that is thrown
    away should not stay in another cache. Raises ProvisionError that names ``what`` was to be fetched.
    """
    options = ("--no-input", "--disable-pip-version-check", "--no-cache-dir", "--retries=1", "--timeout=30")
    command = [str(python), "-I", "-m", "pip", *options, *arguments]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        text=True,
        env=clean_environment(),
    )
    if done.returncode:
        raise ProvisionError(pip_failure(done.stdout, what))
    return done.stdout


def pip_failure(output: str, what: str) -> str:
    """One line that says why pip failed and what to do, from all that it printed."""
    # A network that is down makes pip end with "no matching distribution", so it is looked for first.
    if _NO_NETWORK.search(output):
        return f"{what}: the package index did not answer; check the network or pip's index-url"
    errors = [line[len("ERROR:") :].strip() for line in output.splitlines() if line.startswith("ERROR:")]
    if any("No matching distribution" in line for line in errors):
        return _not_offered(what)
    return f"{what} could not be installed: {errors[-1] if errors else _last_line(output)}"


def _not_offered(what: str) -> str:
    known = f" (supported releases: {', '.join(SUPPORTED_RELEASES)})" if what.startswith("vllm") else ""
    return f"{what} is not in the package index{known}; check the version or pip's index-url"


def explain_load_failure(launch: Launch, output: str) -> str:
    """One line that says why an engine's process did not come up, from what it printed."""
    modules = re.findall(r"ModuleNotFoundError: No module named '([^']+)'", output)
    if not modules:
        return f"{launch.label} does not load: {_last_line(output) or 'it printed nothing'}"
    top = modules[-1].partition(".")[0]
    if top == "vllm":
        return f"{launch.label} does not load: it has no module {modules[-1]}; build or reinstall it first"
    package = _DISTRIBUTIONS.get(top, top)
    remedy = f"{launch.python} -m pip install {package}"
    return f"{launch.label} needs the package {package}; install it with: {remedy}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
