"""Runs a real vLLM build in its own process: frames in, frames out, and a crash or hang told as a record.

The driver (``driver.py``) is spoken to over a private pair of pipes, so nothing that the engine prints
can disturb it. A frame is a 4-byte little-endian length and a payload whose first byte is its kind:

- to the driver: ``S`` and JSON ``{"scenario", "record"}``; ``Q`` to quit;
- from it: ``K`` hello with ``{"version", "python", "pid"}`` once it has loaded; then per scenario ``E`` the
  end with ``{"steps", "cpu", "rss_mb"}``, or ``X`` and the reason why the engine would not build for it.

The trace is a file in memory that both share: 8 bytes, little-endian, that say how many follow, and its lines. It is
read when the scenario has ended, or when the process has.

Sources that are patched or watched are handed over in a file; then ``K`` and ``E`` also say which watched lines ran.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
import weakref
from pathlib import Path
from typing import Literal

import msgspec

from fuzz.engines.names import EngineError
from fuzz.engines.protocol import Run
from fuzz.engines.provision import Launch, clean_environment, explain_load_failure
from oracle.scenario import Scenario

DRIVER = Path(__file__).with_name("driver.py")

CrashKind = Literal["hang", "died", "memory"]

_READ_BYTES = 1 << 16
_COUNT_BYTES = 8
"""At the start of the trace's file, the number of bytes that follow."""
_FRAME_BYTES_MAX = 1 << 30
"""A longer frame is no frame: something else was written into the driver's pipe."""
_LOG_BYTES_MAX = 16 << 20
_LOG_TAIL_BYTES = 64 << 10
_CHECK_SECONDS = 1.0
"""How often the process's memory is looked at while its answer is awaited."""
_LAST_WORDS_SECONDS = 2.0
"""Time for a stuck process to write where it is stuck before it is killed."""
_QUIT_SECONDS = 2.0
_SHARED_MEMORY = Path("/dev/shm")

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "",  # set and empty: no third-party plugin
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONNOUSERSITE": "1",
    "PYTHONSAFEPATH": "1",  # else our modules beside the driver would be importable by their bare names
    "PYTHONFAULTHANDLER": "1",  # a fatal signal writes the Python stack into the log
}
_PYTHON_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line \d+ in (?P<function>\S+)', re.MULTILINE)

_encoder = msgspec.json.Encoder()


class EngineLoadError(EngineError):
    """The engine's process did not come up; the message is one line that says how to mend it."""


class _Crash(Exception):
    """The process is of no more use, for the reason ``kind``."""

    def __init__(self, kind: CrashKind, message: str) -> None:
        super().__init__(message)
        self.kind: CrashKind = kind
        self.message = message


_Lines = tuple[tuple[str, tuple[int, ...]], ...]
"""By file, the watched lines that ran."""


class _Hello(msgspec.Struct):
    """What the driver says once it has loaded. ``patched``: the files whose patch was loaded."""

    version: str
    python: str
    pid: int
    patched: tuple[str, ...] = ()
    lines: _Lines = ()


class _End(msgspec.Struct):
    """What the driver says at a scenario's end. ``cpu`` in seconds by phase, ``rss_mb`` resident memory."""

    steps: int
    cpu: dict[str, float] = msgspec.field(default_factory=dict)
    rss_mb: float = 0.0
    lines: _Lines = ()


class VllmEngine:
    """One vLLM build in one long-lived process; started at the first run, replaced after a crash.

    ``core``: the CPU to pin the process to (None: not pinned). ``hang_seconds``: silence after which a
    run counts as hung. ``run_seconds``: the most that one scenario may take, however much it says.
    ``load_seconds``: the most that loading may take (alone about 12 s, but ten at once on two cores
    have been seen to take 180). ``growth_mb_max``: how much resident memory the
    process may gain after its first scenario. Not for use by several threads at once.

    ``lines_at_import``: the watched lines that ran while the engine loaded, each with its file.
    """

    def __init__(
        self,
        name: str,
        launch: Launch,
        *,
        core: int | None = None,
        hang_seconds: float = 20.0,
        run_seconds: float = 600.0,
        load_seconds: float = 300.0,
        growth_mb_max: float = 1500.0,
        driver: Path = DRIVER,
    ) -> None:
        self.name = name
        self.version = launch.version
        self.release: str | None = launch.release
        self._launch = launch
        self._core = core
        self._hang_seconds = hang_seconds
        self._run_seconds = run_seconds
        self._load_seconds = load_seconds
        self._growth_mb_max = growth_mb_max
        self._driver = driver
        self._process: _Process | None = None
        self.lines_at_import: frozenset[tuple[str, int]] = frozenset()

    def start(self) -> None:
        """Start the process and wait until it has loaded, unless it runs already. Raises EngineLoadError."""
        if self._process is not None:
            return
        process = _Process(self._launch, self._driver, self._core)
        try:
            process.deadline = time.monotonic() + self._load_seconds
            kind, payload = process.frame(self._load_seconds)
            if kind != b"K":
                raise _Crash("died", "its driver did not say hello")
            hello = msgspec.json.decode(payload, type=_Hello)
        except (_Crash, msgspec.DecodeError) as error:
            raise EngineLoadError(self._load_failure(process, error)) from error
        except BaseException:
            process.stop()
            raise
        if unloaded := sorted({file for file, _ in self._launch.patches} - {*hello.patched}):
            process.quit()
            raise EngineLoadError(f"{self._launch.label} does not load {', '.join(unloaded)}, which was to be patched")
        self.version, self.lines_at_import = hello.version, _flat(hello.lines)
        process.memory_mb_max = process.memory_mb() + self._growth_mb_max
        self._process = process

    def run(self, scenario: Scenario, *, record: bool = True) -> Run:
        """Drive one scenario to its end.

        Whatever the engine does is in the result; only when its process cannot be started (again) is
        EngineLoadError raised.
        """
        self.start()
        process = self._process
        assert process is not None
        run = Run(lines=[])
        process.begin(self._run_seconds)
        try:
            process.send(b"S" + _encoder.encode({"scenario": scenario, "record": record}), self._hang_seconds)
            end = self._receive(process, run)
            if end is not None:
                run.lines = process.trace()
                run.cpu, run.lines_hit = end.cpu, _flat(end.lines)
                self._check_growth(process, end)
        except _Crash as crash:
            run.lines = self._post_mortem(process, crash)
            self._process = None
        except BaseException:
            # Interrupted half-way: what the process would say next belongs to this run, so it must go.
            process.stop()
            self._process = None
            raise
        return run

    def close(self) -> None:
        """Stop the engine's process. A later run starts it again."""
        process, self._process = self._process, None
        if process is not None:
            process.quit()

    def __enter__(self) -> VllmEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _receive(self, process: _Process, run: Run) -> _End | None:
        """Wait for the end of a run; None when the scenario was refused. Raises _Crash."""
        kind, payload = process.frame(self._hang_seconds)
        if kind == b"E":
            return _decode_end(payload)
        if kind == b"X":
            run.refused = payload.decode(errors="replace") or "no reason given"
            return None
        raise _Crash("died", f"the driver sent a frame of unknown kind {kind!r}")

    def _check_growth(self, process: _Process, end: _End) -> None:
        """Take the first scenario's memory as the level, and hold later ones against it."""
        if not process.is_warm:
            process.is_warm = True
            process.memory_mb_max = end.rss_mb + self._growth_mb_max
        elif end.rss_mb > process.memory_mb_max:
            raise _Crash("memory", f"{end.rss_mb:.0f} MB of memory after the scenario, {_allowed(process)}")

    def _post_mortem(self, process: _Process, crash: _Crash) -> list[bytes]:
        """End the process; its trace, and what became of it as a line with one crash record."""
        if crash.kind == "hang":
            process.ask_last_words()
        process.kill(wait_seconds=_QUIT_SECONDS if crash.kind == "died" else 0.0)
        lines = process.trace()
        status = process.stop()
        said = process.log_since_begin()
        message = crash.message
        if crash.kind == "died":
            message = f"{message}, {_describe(status)}"
            if line := _last_line(said):
                message += f"; last line printed: {line}"
        process.forget_log()
        return [*lines, _encoder.encode([["crash", crash.kind, _innermost(said), message]])]

    def _load_failure(self, process: _Process, error: Exception) -> str:
        """End a process that did not load, and say why it did not in one line."""
        is_late = isinstance(error, _Crash) and error.kind == "hang"
        status = process.stop(wait_seconds=0.0 if is_late else _QUIT_SECONDS)
        printed = process.log_since_begin()
        process.forget_log()
        if is_late:
            return f"{self._launch.label} did not load within {self._load_seconds:.0f} s"
        return explain_load_failure(self._launch, printed or f"{error}, {_describe(status)}")


class _Process:
    """A driver's process with its pipes, its trace and its log."""

    def __init__(self, launch: Launch, driver: Path, core: int | None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="kvoracle-engine-"))
        self._log = self._folder / "log.txt"
        self._log_start = 0
        self._buffer = b""
        self._offset = 0
        self.is_warm = False
        self.deadline = 0.0
        self._memory_checked = 0.0
        self.memory_mb_max = float("inf")
        self._trace_fd = -1
        try:
            self._trace_fd = _shared_memory()
            self._popen, self._read_fd, self._write_fd = _spawn(launch, driver, self._log, self._trace_fd)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            if self._trace_fd >= 0:
                os.close(self._trace_fd)
            raise
        self._files = [self._read_fd, self._write_fd, self._trace_fd]
        # Should the engine's owner forget it, or an exception end the program.
        self._finalizer = weakref.finalize(self, _release, os.getpid(), self._popen, self._files, self._folder)
        self._poll_in = select.poll()
        self._poll_in.register(self._read_fd, select.POLLIN)
        self._poll_out = select.poll()
        self._poll_out.register(self._write_fd, select.POLLOUT)
        if core is not None and hasattr(os, "sched_setaffinity"):
            with contextlib.suppress(OSError):  # it may have died already, which the first read tells
                os.sched_setaffinity(self._popen.pid, {core})
                # Not the batch policy that our own process may have on this core (fuzz/worker.py).
                os.sched_setscheduler(self._popen.pid, os.SCHED_OTHER, os.sched_param(0))

    def begin(self, seconds: float) -> None:
        """A run begins, which may take ``seconds``; what trace and log hold so far is not about it."""
        self.deadline = time.monotonic() + seconds
        os.pwrite(self._trace_fd, bytes(_COUNT_BYTES), 0)
        self._log_start = self._log.stat().st_size
        if self._log_start > _LOG_BYTES_MAX:
            os.truncate(self._log, 0)  # it is written in append mode, so the process goes on from there
            self._log_start = 0

    def send(self, payload: bytes, seconds: float) -> None:
        """Write one frame. Raises _Crash when the process does not take it within ``seconds``, or is gone."""
        rest = memoryview(len(payload).to_bytes(4, "little") + payload)
        deadline = time.monotonic() + seconds
        while rest:
            if not self._poll_out.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise _Crash("hang", f"the scenario was not taken within {seconds:.0f} s")
            try:
                rest = rest[os.write(self._write_fd, rest) :]
            except BlockingIOError:
                continue
            except OSError:
                raise _Crash("died", "the process was gone before the scenario reached it") from None

    def frame(self, seconds: float) -> tuple[bytes, bytes]:
        """The next frame's kind and payload; waits for it at most ``seconds``. Raises _Crash."""
        found = self._take_frame()
        if found is not None:
            return found
        silent_until, noted = time.monotonic() + seconds, self._noted_bytes()
        while found is None:
            now = time.monotonic()
            if (more := self._noted_bytes()) != noted:
                silent_until, noted = now + seconds, more
            if now >= silent_until:
                raise _Crash("hang", f"nothing was decided for {seconds:.0f} s")
            if now >= self.deadline:
                raise _Crash("hang", "the scenario went on and on and was stopped")
            self._check_memory(now)
            wait = min(_CHECK_SECONDS, silent_until - now, self.deadline - now)
            if self._poll_in.poll(wait * 1000):
                self._fill()
                found = self._take_frame()
        return found

    def trace(self) -> list[bytes]:
        """The lines that this run has given until now."""
        noted = min(self._noted_bytes(), os.fstat(self._trace_fd).st_size)
        with open(self._trace_fd, "rb", closefd=False) as file:  # reads to the end, however much it is
            file.seek(_COUNT_BYTES)
            return file.read(noted).splitlines()

    def _noted_bytes(self) -> int:
        return int.from_bytes(os.pread(self._trace_fd, _COUNT_BYTES, 0), "little")

    def _check_memory(self, now: float) -> None:
        """Raise _Crash when the process has grown too much; looks only every ``_CHECK_SECONDS``."""
        if now < self._memory_checked + _CHECK_SECONDS:
            return
        self._memory_checked = now
        if self.memory_mb() > self.memory_mb_max:
            raise _Crash("memory", f"{self.memory_mb():.0f} MB of memory within the scenario, {_allowed(self)}")

    def _take_frame(self) -> tuple[bytes, bytes] | None:
        """Cut the next frame out of what was read, if all of it is there."""
        buffer, start = self._buffer, self._offset + 4
        if len(buffer) < start:
            return None
        length = int.from_bytes(buffer[self._offset : start], "little")
        if not 0 < length <= _FRAME_BYTES_MAX:
            raise _Crash("died", f"the driver sent a frame of {length} bytes, which is none")
        end = start + length
        if len(buffer) < end:
            return None
        self._offset = end
        return buffer[start : start + 1], buffer[start + 1 : end]

    def _fill(self) -> None:
        data = os.read(self._read_fd, _READ_BYTES)
        if not data:
            raise _Crash("died", "the process ended in the middle of it")
        # Frames already handed out go first, once per read and not once per frame.
        self._buffer = self._buffer[self._offset :] + data
        self._offset = 0

    def memory_mb(self) -> float:
        """Resident memory in MB; 0 where the system does not tell (then only the driver does)."""
        try:
            with open(f"/proc/{self._popen.pid}/statm", "rb") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
        except (OSError, IndexError):
            return 0.0

    def ask_last_words(self) -> None:
        """Make a stuck process write its Python stack into the log (its fault handler does) and die."""
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            self._popen.send_signal(signal.SIGABRT)
            self._popen.wait(_LAST_WORDS_SECONDS)

    def kill(self, wait_seconds: float = 0.0) -> None:
        """End the process, unless it ends by itself in ``wait_seconds``. Its trace can still be read."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(wait_seconds)
        self._popen.kill()
        self._popen.wait()

    def stop(self, wait_seconds: float = 0.0) -> int:
        """End the process, unless it ends by itself in ``wait_seconds``, and all that it shared; its status."""
        self.kill(wait_seconds)
        _end(self._popen, self._files)
        return self._popen.returncode

    def quit(self) -> None:
        """Ask the process to end, see that it does, and forget its log."""
        with contextlib.suppress(_Crash):
            self.send(b"Q", _QUIT_SECONDS)
        self.stop(wait_seconds=_QUIT_SECONDS)
        self.forget_log()

    def log_since_begin(self) -> str:
        """The last of what the process printed in this run (or while it loaded)."""
        with contextlib.suppress(OSError), open(self._log, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_start, end - _LOG_TAIL_BYTES))
            return file.read().decode(errors="replace")
        return ""

    def forget_log(self) -> None:
        """Delete the log; nothing is left of the process then."""
        self._finalizer.detach()
        shutil.rmtree(self._folder, ignore_errors=True)


def child_environment(launch: Launch) -> dict[str, str]:
    """The environment of an engine's process: the same for every run, whatever the user's shell holds."""
    environment = clean_environment() | _ENVIRONMENT | dict(launch.environment)
    if launch.pythonpath:
        environment["PYTHONPATH"] = os.pathsep.join(launch.pythonpath)
    return environment


def _shared_memory() -> int:
    """A file that is in memory: on a disk that is full, writing it would end the engine's process."""
    if hasattr(os, "memfd_create"):  # some builds of Python for old systems have none
        return os.memfd_create("kvoracle-trace")
    try:
        with tempfile.TemporaryFile(dir=_SHARED_MEMORY) as file:
            return os.dup(file.fileno())
    except OSError as error:
        raise EngineLoadError(f"no memory to share with an engine, in {_SHARED_MEMORY}: {error.strerror}") from error


def _spawn(launch: Launch, driver: Path, log: Path, trace: int) -> tuple[subprocess.Popen[bytes], int, int]:
    """Start the driver; return its process and our ends of the pipes, to read from and to write to."""
    sources = _sources(launch, log.parent)
    child_reads, we_write = os.pipe()
    we_read, child_writes = os.pipe()
    inherited = (child_reads, child_writes, trace)
    command = [str(launch.python), str(driver), *map(str, inherited), *sources]
    try:
        with open(log, "ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=inherited,
                env=child_environment(launch),
                cwd=log.parent,
                process_group=0,  # Ctrl-C is ours to handle; the engine would take it for a crash
            )
    except OSError as error:
        os.close(we_read)
        os.close(we_write)
        raise EngineLoadError(f"{launch.python} cannot be started: {error.strerror}") from error
    finally:
        os.close(child_reads)
        os.close(child_writes)
    os.set_blocking(we_write, False)
    _forbid_core_dump(process.pid)
    return process, we_read, we_write


def _sources(launch: Launch, folder: Path) -> list[str]:
    """The driver's last argument, a file that says what to patch and watch; none where there is nothing."""
    if not (launch.patches or launch.watch):
        return []
    file = folder / "sources.json"
    file.write_bytes(_encoder.encode({"patches": dict(launch.patches), "watch": dict(launch.watch)}))
    return [str(file)]


def _forbid_core_dump(pid: int) -> None:
    """A stuck process is ended by a signal that would otherwise leave a core file of a GB."""
    with contextlib.suppress(ImportError, AttributeError, OSError):
        import resource

        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))


def _end(process: subprocess.Popen[bytes], files: list[int]) -> None:
    """Kill the process if it lives, reap it, and close its trace and our ends of its pipes, once."""
    process.kill()
    process.wait()
    while files:
        os.close(files.pop())


def _release(owner: int, process: subprocess.Popen[bytes], files: list[int], folder: Path) -> None:
    if os.getpid() != owner:  # a fork of the owner has the object, but the process is not its own
        return
    _end(process, files)
    shutil.rmtree(folder, ignore_errors=True)


def _decode_end(payload: bytes) -> _End:
    try:
        return msgspec.json.decode(payload, type=_End)
    except msgspec.DecodeError as error:
        raise _Crash("died", f"the driver ended the scenario with no proper frame ({error})") from error


def _flat(lines: _Lines) -> frozenset[tuple[str, int]]:
    return frozenset((file, line) for file, numbers in lines for line in numbers)


def _allowed(process: _Process) -> str:
    return f"more than the {process.memory_mb_max:.0f} MB allowed"


def _describe(status: int) -> str:
    """An exit status in words; a negative one is the signal that ended the process."""
    if status >= 0:
        return f"exit code {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def _innermost(printed: str) -> str:
    """The innermost engine function on the stack that the fault handler wrote, or else innermost of all."""
    _, _, stack = printed.rpartition("(most recent call first):")
    frames = [(match["file"], match["function"]) for match in _PYTHON_FRAME.finditer(stack)]
    ours_or_theirs = [frame for frame in frames if "/vllm/" in frame[0]] or frames
    if not ours_or_theirs:
        return ""
    file, function = ours_or_theirs[0]
    return f"{Path(file).stem}.{function}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
