"""Trace files: JSON lines, plain or compressed with zstandard; and the judgement of one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import zstandard

from fuzz.engines.conforming import REFERENCE
from fuzz.engines.names import EngineError, nearest_release
from fuzz.engines.provision import version_notes
from fuzz.limits import allow_limits
from fuzz.trial import Rules
from oracle import trace
from oracle.judge import BadTrace, Judge, read_header
from oracle.verdict import Verdict

_READ_BYTES = 1 << 20
_OVERLOOKED = (ArithmeticError, LookupError, ValueError)
"""The judge tells what is wrong with a trace by BadTrace, a ValueError; these are for what it overlooks."""
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class TraceFile:
    """The lines of a trace file, which can be gone through several times."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[bytes]:
        """Raises BadTrace when the file cannot be read, or where it is damaged."""
        try:
            with self.path.open("rb") as file:
                yield from _lines(_decompressed(file))
        except OSError as error:
            raise BadTrace(error.strerror or str(error)) from None


class Judgement(msgspec.Struct):
    """What became of a trace. ``problem``: why not all of the file could be judged, empty if it was.

    ``notes``: what a user should know of the build, such as that it is newer than all supported ones.
    """

    header: trace.Header
    release: str | None
    verdict: Verdict
    problem: str = ""
    notes: tuple[str, ...] = ()


def judge_file(file: TraceFile, policy: str | None, rules: Rules, *, invariants_only: bool = False) -> Judgement:
    """Judge a trace file by its own build's policy, or by ``policy``.

    What comes after a damaged line is not judged; what came before is. Raises BadTrace when there is no
    header to start from.
    """
    lines = iter(file)
    try:
        first = next(lines, None)
        if first is None:
            raise BadTrace("the trace is empty; record it again")
        header = read_header(first)
    except BadTrace as error:
        raise BadTrace(f"{file.path}: {error}") from None
    release = None if invariants_only else policy or _release(header)
    judge = Judge(header, release, rules)
    problem = _feed(judge, lines)
    last = _close(judge)
    if release and header.engine == REFERENCE:
        allow_limits(judge.case.verdict, header.scenario, release)
    notes = version_notes(header.version) if release and not policy else ()
    return Judgement(header, release, judge.case.verdict, problem or last, notes)


def _feed(judge: Judge, lines: Iterable[bytes]) -> str:
    """Judge the lines of records; why not all of them could be judged, empty if they were."""
    number = 1
    try:
        for line in lines:
            number += 1
            judge.feed_all(trace.records_decoder.decode(line))
    except BadTrace as error:
        return f"line {number}: {error}"
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return f"line {number} is damaged or cut off ({error}); the verdict is of what comes before it"
    except _OVERLOOKED as error:
        return f"line {number} cannot be judged ({type(error).__name__}: {error}); was it changed by hand?"
    return ""


def _close(judge: Judge) -> str:
    """Tell the judge that the trace is over; why that could not be judged, empty if it was."""
    try:
        judge.close()
    except _OVERLOOKED as error:
        return f"the end cannot be judged ({type(error).__name__}: {error}); was it changed by hand?"
    return ""


def write_trace(path: Path, lines: Iterable[bytes]) -> None:
    """Write a trace, compressed. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(zstandard.compress(b"".join(line + b"\n" for line in lines)))


def _release(header: trace.Header) -> str | None:
    try:
        return nearest_release(header.version)
    except EngineError:
        return None


def _decompressed(file: BinaryIO) -> Iterator[bytes]:
    """Chunks of the file's text. Raises BadTrace where an archive is damaged or ends too early."""
    magic = file.read(len(_ZSTD_MAGIC))
    file.seek(0)
    if magic != _ZSTD_MAGIC:
        while chunk := file.read(_READ_BYTES):
            yield chunk
        return
    frame = zstandard.ZstdDecompressor().decompressobj()
    chunk = file.read(_READ_BYTES)
    while chunk:
        try:
            yield frame.decompress(chunk)
        except zstandard.ZstdError as error:
            raise BadTrace(f"the archive is damaged ({error}); the verdict is of what comes before") from None
        chunk = (frame.unused_data if frame.eof else b"") or file.read(_READ_BYTES)
        if chunk and frame.eof:
            frame = zstandard.ZstdDecompressor().decompressobj()
    if not frame.eof:
        raise BadTrace("the archive is cut off; the verdict is of what comes before")


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from filter(None, whole)
    if rest:
        yield rest
