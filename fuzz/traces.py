"""Trace files: JSON lines, plain or compressed with zstandard; and the judgement of one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import zstandard

from fuzz.engines.names import EngineError, nearest_release
from fuzz.trial import Rules
from oracle import trace
from oracle.judge import BadTrace, Judge, read_header
from oracle.verdict import Verdict

_READ_BYTES = 1 << 20
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
    """What became of a trace. ``problem``: why not all of the file could be judged, empty if it was."""

    header: trace.Header
    release: str | None
    verdict: Verdict
    problem: str = ""


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
    problem, number = "", 1
    try:
        for line in lines:
            number += 1
            for record in trace.records_decoder.decode(line):
                judge.feed(record)
    except BadTrace as error:
        problem = f"line {number}: {error}"
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        problem = f"line {number} is damaged or cut off ({error}); the verdict is of what comes before it"
    return Judgement(header, release, judge.close(), problem)


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
