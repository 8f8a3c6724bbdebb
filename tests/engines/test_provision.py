"""Provisioning is whole or not at all, never fetches a GPU build unasked, and fails in one clear line."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

import pytest

from fuzz.engines import provision
from fuzz.engines.cache import Facts, ProvisionError, build_once, cache_folder, read_marker
from fuzz.engines.names import EngineNameError, parse_engine_name
from fuzz.engines.provision import Launch, TorchBuild, explain_load_failure, resolve

TORCH = provision.TORCH_VERSION


def silent(_: str) -> None:
    """Say nothing."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, and a pip that knows no index but what a test names."""
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "KVORACLE_TORCH_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("KVORACLE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def make_wheel(folder: Path, name: str, version: str, *, requires: str = "", tag: str = "py3-none-any") -> Path:
    """A wheel with one Python file, one file that is no Python, and its metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{name}/__init__.py", f"__version__ = {version!r}\n")
        archive.writestr(f"{name}/_C.abi3.so", "compiled" * 1000)
        archive.writestr(f"{info}/METADATA", metadata + (f"Requires-Dist: {requires}\n" if requires else ""))
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def make_index(folder: Path, wheel: Path) -> str:
    """A package index (the simple repository layout) that offers one wheel, as a URL."""
    project = folder / wheel.name.partition("-")[0]
    project.mkdir(parents=True)
    (project / "index.html").write_text(f'<a href="{wheel.as_uri().replace("+", "%2B")}">{wheel.name}</a>')
    return folder.as_uri()


def pretend_env(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shared environment stands already: a link to this very interpreter."""

    def build(folder: Path, **_: object) -> Facts:
        (folder / "bin").mkdir()
        (folder / "bin" / "python").symlink_to(sys.executable)
        return {"python": "this one"}

    monkeypatch.setattr(provision, "_build_env", build)
    # Through a link from elsewhere this interpreter would not find its own pip.
    monkeypatch.setattr(provision, "_env_python", lambda: Path(sys.executable))


# --- whole or not at all -----------------------------------------------------------------------------


def test_an_interrupted_build_leaves_nothing_and_starts_anew(cache: Path) -> None:
    def interrupted(folder: Path) -> Facts:
        (folder / "half").write_text("made")
        raise KeyboardInterrupt

    def whole(folder: Path) -> Facts:
        assert list(folder.iterdir()) == []
        (folder / "all").write_text("made")
        return {"vllm": "1"}

    with pytest.raises(KeyboardInterrupt):
        build_once(cache / "engine", interrupted, say=silent)
    assert [path for path in cache.iterdir() if path.is_dir()] == []
    assert build_once(cache / "engine", whole, say=silent) == {"vllm": "1"}
    assert sorted(path.name for path in (cache / "engine").iterdir()) == ["all", "complete.json"]


def test_what_a_killed_build_left_is_swept(cache: Path) -> None:
    for leftover in (".engine.part-12345", "engine"):
        (cache / leftover).mkdir(parents=True)
        (cache / leftover / "half").write_text("made")
    assert read_marker(cache / "engine") is None
    build_once(cache / "engine", lambda folder: {}, say=silent)
    assert sorted(path.name for path in cache.iterdir() if path.is_dir()) == ["engine"]
    assert [path.name for path in (cache / "engine").iterdir()] == ["complete.json"]


def _slow_first_run(folder: Path, tally: Path) -> None:
    def build(part: Path) -> Facts:
        with tally.open("a") as file:
            file.write("built\n")
        time.sleep(1.0)
        return {}

    build_once(folder, build, say=silent)
    assert read_marker(folder) == {}


def test_two_first_runs_at_once_make_one_engine(cache: Path, tmp_path: Path) -> None:
    tally = tmp_path / "tally"
    context = get_context("spawn")
    runs = [context.Process(target=_slow_first_run, args=(cache / "engine", tally)) for _ in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join(60)
    assert [run.exitcode for run in runs] == [0, 0]
    assert tally.read_text() == "built\n"


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ProvisionError, match="KVORACLE_CACHE"):
        build_once(tmp_path / "file" / "engine", lambda folder: {}, say=silent)


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVORACLE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/kvoracle")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "kvoracle"


# --- releases ----------------------------------------------------------------------------------------


def test_a_release_is_its_sources_and_its_metadata(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_env(monkeypatch)
    make_wheel(tmp_path / "wheels", "vllm", "0.31.0")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    said: list[str] = []
    launch = resolve(parse_engine_name("vllm==0.31.0"), say=said.append)
    folder = cache / "vllm-0.31.0"
    assert launch.pythonpath == (str(folder),)
    assert (launch.version, launch.release) == ("0.31.0", "0.31.0")
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert "vllm/__init__.py" in files
    assert "vllm-0.31.0.dist-info/METADATA" in files
    assert not [name for name in files if name.endswith((".so", ".whl"))]
    # The price is named before anything is fetched, and only for what is missing.
    assert re.search(r"MB to download, \d+ MB on disk", said[1])
    said.clear()
    resolve(parse_engine_name("vllm==0.31.0"), say=said.append)
    assert said == []


def test_a_release_that_is_not_offered_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_env(monkeypatch)
    with pytest.raises(ProvisionError, match=r"vllm 0\.99\.0 is not in the package index") as caught:
        resolve(parse_engine_name("vllm==0.99.0"), say=silent)
    assert "\n" not in str(caught.value)
    assert list(cache.glob("*vllm-0.99.0*/*")) == []


def test_a_release_that_does_not_exist_is_told_before_anything_is_made(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(tmp_path / "wheels", "vllm", "0.31.0")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setattr(provision, "_build_env", lambda *_, **__: pytest.fail("an environment was begun"))
    with pytest.raises(ProvisionError, match=r"vllm 0\.99\.0 is not in the package index"):
        resolve(parse_engine_name("vllm==0.99.0"), say=silent)
    assert not cache.exists()


def test_a_damaged_wheel_is_told(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "vllm", "0.31.0")
    wheel.write_bytes(wheel.read_bytes()[:200])
    with pytest.raises(ProvisionError, match="damaged"):
        provision.unpack_sources(wheel, tmp_path / "out")


def test_engines_are_listed_measured_and_removed(cache: Path) -> None:
    for release in ("0.33.0", "0.26.0"):
        build_once(provision.release_folder(release), lambda folder: {"vllm": folder.name}, say=silent)
    (cache / "vllm-0.30.0").mkdir()  # half-made: not an engine
    assert [entry.name for entry in provision.list_engines()] == ["vllm==0.26.0", "vllm==0.33.0"]
    assert all(entry.size > 0 for entry in provision.list_engines())
    assert provision.remove_engine("vllm==0.26.0", say=silent) > 0
    assert [entry.name for entry in provision.list_engines()] == ["vllm==0.33.0"]
    with pytest.raises(EngineNameError, match=r"there is vllm==0\.33\.0"):
        provision.remove_engine("vllm==0.26.0", say=silent)


def test_an_environment_whose_python_is_gone_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_env(monkeypatch)
    built: list[Path] = []

    def broken(folder: Path, **_: object) -> Facts:
        built.append(folder)
        return {}

    monkeypatch.setattr(provision, "_build_env", broken)
    monkeypatch.setattr(provision, "_env_python", lambda: Path("/nonexistent/python"))
    for _ in range(2):
        provision.provision_env(say=silent, torch_index=None, allow_cuda=False)
    assert len(built) == 2


def test_a_python_without_pins_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provision, "NEWEST_PYTHON", (3, 10))
    with pytest.raises(ProvisionError, match="install kvoracle under one of those"):
        resolve(parse_engine_name("vllm"), say=silent)


def test_every_dependency_is_pinned() -> None:
    lines = [line for line in provision.lock_text().splitlines() if not line.startswith("#")]
    assert len(lines) > 60
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9.]+", line)] == []
    names = [line.partition("==")[0].lower() for line in lines]
    assert len(set(names)) == len(names)
    assert not {"torch", "triton", "vllm"} & set(names)
    # What torch itself requires: it is installed without its dependencies.
    assert {"filelock", "typing_extensions", "setuptools", "sympy", "networkx", "jinja2", "fsspec"} <= set(names)


# --- torch -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "requires", "is_cpu"),
    [
        ("2.13.0+cpu", (), True),
        ("2.13.0", ("filelock", "sympy>=1.13"), True),
        ("2.13.0+cu130", (), False),
        ("2.13.0+rocm7.1", (), False),
        ("2.13.0", ("filelock", 'nvidia-cudnn-cu13==9.20; platform_system == "Linux"'), False),
        ("2.13.0", ("cuda-toolkit[cublas]==13.0.3",), False),
    ],
)
def test_what_a_cpu_build_is(version: str, requires: tuple[str, ...], is_cpu: bool) -> None:
    assert TorchBuild(version, requires).is_cpu is is_cpu


def choose(index: str, *, allow_cuda: bool = False) -> TorchBuild:
    build, _ = provision.choose_torch(Path(sys.executable), torch_index=index, allow_cuda=allow_cuda, say=silent)
    return build


def test_a_gpu_build_is_refused_unless_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(tmp_path / "wheels", "torch", TORCH, requires="nvidia-cudnn-cu13")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    nowhere = (tmp_path / "nowhere").as_uri()
    with pytest.raises(ProvisionError, match="GPU build") as caught:
        choose(nowhere)
    assert "KVORACLE_TORCH_INDEX" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert choose(nowhere, allow_cuda=True) == TorchBuild(TORCH, ("nvidia-cudnn-cu13",))


def test_a_cpu_build_wins_over_a_gpu_build_of_a_higher_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for flavour in ("cpu", "cu130"):
        make_wheel(tmp_path / "wheels", "torch", f"{TORCH}+{flavour}")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    assert choose((tmp_path / "nowhere").as_uri()).version == f"{TORCH}+cpu"


def test_the_named_index_is_asked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    index = make_index(tmp_path / "index", make_wheel(tmp_path / "there", "torch", f"{TORCH}+cpu"))
    assert choose(index).version == f"{TORCH}+cpu"
    monkeypatch.setenv("KVORACLE_TORCH_INDEX", index)
    _, source = provision.choose_torch(Path(sys.executable), torch_index=None, allow_cuda=False, say=silent)
    assert source == ("--index-url", index)


def test_no_torch_anywhere_is_told() -> None:
    with pytest.raises(ProvisionError, match=f"no torch {TORCH}"):
        choose("file:///nowhere")


@pytest.fixture
def mute_server() -> Iterator[str]:
    """The URL of a server that takes a connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/simple"


@pytest.mark.timeout(60)
def test_an_index_that_does_not_answer_is_given_up(mute_server: str) -> None:
    assert not provision.index_answers(mute_server, seconds=0.5)
    assert not provision.index_answers("http://127.0.0.1:1/simple")
    assert not provision.index_answers("not a url at all")


@pytest.mark.timeout(60)
def test_a_name_that_is_looked_up_for_ever_is_given_up_too(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def endless_lookup(*_: object, **__: object) -> list[object]:
        answered.wait()
        return []

    monkeypatch.setattr("socket.getaddrinfo", endless_lookup)
    assert not provision.index_answers("http://index.invalid/simple", seconds=0.5)
    answered.set()


def test_then_torch_comes_from_where_pip_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mute_server: str
) -> None:
    make_wheel(tmp_path / "wheels", "torch", f"{TORCH}+cpu")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setattr(provision.index_answers, "__defaults__", (0.5,))
    said: list[str] = []
    build, source = provision.choose_torch(
        Path(sys.executable), torch_index=mute_server, allow_cuda=False, say=said.append
    )
    assert (build.version, source) == (f"{TORCH}+cpu", ())
    assert "does not answer" in said[0]


def test_an_index_that_asks_for_a_password_counts_as_answering() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert provision.index_answers(f"http://user:secret@127.0.0.1:{server.getsockname()[1]}/simple")
        thread.join()


def test_a_dead_network_is_told_as_such() -> None:
    output = "WARNING: Retrying after 'NewConnectionError'\nERROR: No matching distribution found"
    assert "did not answer" in provision.pip_failure(output, "vllm 0.33.0")
    assert "supported releases: 0.26.0" in provision.pip_failure("ERROR: No matching distribution", "vllm 0.27.9")
    assert provision.pip_failure("ERROR: disk full", "torch") == "torch could not be installed: disk full"


# --- checkouts ---------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout as git leaves it: neither a ``_version.py`` nor metadata."""
    pretend_env(monkeypatch)
    folder = tmp_path / "work" / "vllm"
    (folder / "vllm").mkdir(parents=True)
    (folder / "vllm" / "__init__.py").write_text("from ._version import __version__, __version_tuple__\n")
    return folder


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@t")
    subprocess.run(["git", *identity, "-C", str(folder), *arguments], check=True, capture_output=True)


def load(launch: Launch, expression: str) -> str:
    """What an expression gives in an engine's process."""
    from fuzz.engines.process import child_environment

    question = f"import vllm, importlib.metadata; print({expression})"
    answer = subprocess.run(
        [str(launch.python), "-c", question],
        env=child_environment(launch),
        capture_output=True,
        text=True,
        check=True,
    )
    return answer.stdout.strip()


def test_a_bare_checkout_loads_and_is_not_written_to(checkout: Path) -> None:
    before = sorted(checkout.rglob("*"))
    launch = resolve(parse_engine_name(str(checkout)), say=silent)
    assert launch.release == "0.33.0"
    assert "cannot be told" in launch.notes[0]
    assert load(launch, "vllm.__version__") == launch.version
    assert load(launch, "importlib.metadata.version('vllm')") == launch.version
    assert load(launch, "vllm.__version_tuple__") == "(0, 33, 0)"
    assert load(launch, "vllm.__file__") == str(checkout / "vllm" / "__init__.py")
    assert sorted(checkout.rglob("*")) == before


def test_a_checkout_is_described_by_git(checkout: Path) -> None:
    git(checkout, "init", "-q")
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "one")
    git(checkout, "tag", "v0.32.0")
    assert resolve(parse_engine_name(str(checkout)), say=silent).version == "0.32.0"
    git(checkout, "commit", "-qm", "two", "--allow-empty")
    launch = resolve(parse_engine_name(str(checkout)), say=silent)
    assert re.fullmatch(r"0\.32\.0\+1\.g[0-9a-f]+", launch.version)
    assert launch.release == "0.32.0"
    assert launch.notes == ()


def test_a_repository_around_the_checkout_is_not_asked(checkout: Path) -> None:
    git(checkout.parent, "init", "-q")
    git(checkout.parent, "commit", "-qm", "one", "--allow-empty")
    git(checkout.parent, "tag", "v0.28.0")
    assert provision.checkout_version(checkout) is None


def test_a_built_checkout_tells_its_own_version(checkout: Path) -> None:
    (checkout / "vllm.egg-info").mkdir()
    (checkout / "vllm.egg-info" / "PKG-INFO").write_text("Name: vllm\nVersion: 0.29.0\n")
    assert provision.checkout_version(checkout) == "0.29.0"
    module = "version: str\n__version__ = version = '0.30.1.dev3+g1a2b'\n__version_tuple__ = (0,)\n"
    (checkout / "vllm" / "_version.py").write_text(module)
    assert provision.checkout_version(checkout) == "0.30.1.dev3+g1a2b"


def test_a_checkout_newer_than_all_releases_is_said_to_be(checkout: Path) -> None:
    (checkout / "vllm" / "_version.py").write_text("__version__ = '0.41.0'\n")
    launch = resolve(parse_engine_name(str(checkout)), say=silent)
    assert launch.release == "0.33.0"
    assert "newer than all supported releases" in launch.notes[0]


def test_a_checkout_too_old_is_refused(checkout: Path) -> None:
    (checkout / "vllm" / "_version.py").write_text("__version__ = '0.20.0'\n")
    with pytest.raises(EngineNameError, match="older than"):
        resolve(parse_engine_name(str(checkout)), say=silent)


# --- interpreters ------------------------------------------------------------------------------------


def make_venv(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    return packages


def test_an_interpreter_is_asked_and_left_alone(cache: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(make_wheel(tmp_path / "wheels", "vllm", "0.30.0")) as archive:
        archive.extractall(make_venv(tmp_path / "venv"))
    before = sorted((tmp_path / "venv").rglob("*"))
    launch = resolve(parse_engine_name(f"python:{tmp_path / 'venv'}"), say=silent)
    assert (launch.version, launch.release, launch.pythonpath) == ("0.30.0", "0.30.0", ())
    assert load(launch, "vllm.__version__") == "0.30.0"
    assert sorted((tmp_path / "venv").rglob("*")) == before
    assert not cache.exists()


def test_an_interpreter_without_vllm_is_told_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_venv(tmp_path / "venv")
    # What this process can import must not count for that one.
    with zipfile.ZipFile(make_wheel(tmp_path / "wheels", "vllm", "0.30.0")) as archive:
        archive.extractall(tmp_path / "ours")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "ours"))
    python = tmp_path / "venv" / "bin" / "python"
    with pytest.raises(ProvisionError, match=re.escape(f"{python} -m pip install vllm")):
        resolve(parse_engine_name(f"python:{python}"), say=silent)


def test_a_file_that_is_no_interpreter_is_told(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("no\n")
    with pytest.raises(ProvisionError, match="cannot be run"):
        resolve(parse_engine_name(f"python:{tmp_path / 'python'}"), say=silent)


# --- a load that failed ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (
            "ModuleNotFoundError: No module named 'zmq.asyncio'\n",
            "install it with: /e/python -m pip install pyzmq",
        ),
        ("ModuleNotFoundError: No module named 'vllm._C'\n", "build or reinstall it first"),
        (
            "Traceback\n  File x\nImportError: cannot import name 'a' from 'b'\n\n",
            "ImportError: cannot import",
        ),
        ("", "printed nothing"),
    ],
)
def test_a_load_failure_is_one_line_with_a_remedy(printed: str, expected: str) -> None:
    message = explain_load_failure(Launch(Path("/e/python"), (), "0.33.0", "0.33.0", "vllm 0.33.0"), printed)
    assert expected in message
    assert "\n" not in message
