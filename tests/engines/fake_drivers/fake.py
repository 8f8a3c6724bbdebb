"""A stand-in for the driver, from the standard library alone: it misbehaves as the scenario's note tells it.

``note`` is a word and, after a colon, a number, such as ``grow:300`` (MB). The environment variable
``FAKE_LOAD`` makes loading itself go wrong.
"""

import json
import os
import signal
import sys
import time

READ, WRITE, TRACE = map(int, sys.argv[1:4])
hoard: list[bytearray] = []


def frame(kind: bytes, payload: object) -> bytes:
    data = kind + (payload if isinstance(payload, bytes) else json.dumps(payload).encode())
    return len(data).to_bytes(4, "little") + data


def put(data: bytes) -> None:
    while data:
        data = data[os.write(WRITE, data) :]


def note(*lines: bytes) -> None:
    """Add lines to the trace; only then count them."""
    noted = int.from_bytes(os.pread(TRACE, 8, 0), "little")
    data = b"".join(line + b"\n" for line in lines)
    os.pwrite(TRACE, data, 8 + noted)
    os.pwrite(TRACE, (noted + len(data)).to_bytes(8, "little"), 0)


def take(count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = os.read(READ, count - len(data))
        if not more:
            sys.exit(0)
        data += more
    return data


def resident_mb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def stuck_in_the_scheduler() -> None:
    time.sleep(3600)


def end() -> None:
    put(frame(b"E", {"steps": 1, "cpu": {"calls": 0.5}, "rss_mb": resident_mb()}))


def misbehave(word: str, number: int) -> bool:  # noqa: C901, PLR0912 - one branch per way to go wrong
    """Do what the word says; True if the scenario then ends properly."""
    if word == "hang":
        stuck_in_the_scheduler()
    elif word == "deaf":
        signal.signal(signal.SIGABRT, signal.SIG_IGN)
        stuck_in_the_scheduler()
    elif word == "exit":
        print("the last thing it said", file=sys.stderr, flush=True)
        os._exit(number)
    elif word == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif word == "truncate":
        put(frame(b"E", b"[]" * 500)[:100])
        os._exit(0)
    elif word == "half-line":
        os.pwrite(TRACE, b'["hal', 8 + int.from_bytes(os.pread(TRACE, 8, 0), "little"))
        os._exit(0)
    elif word == "garbage":
        put(b"this is not a frame at all, it is text")
        time.sleep(3600)
    elif word == "unknown":
        put(frame(b"Z", b""))
    elif word == "bad-end":
        put(frame(b"E", b"nothing of the kind"))
    elif word == "claim":
        put(frame(b"E", {"steps": 1, "rss_mb": number}))
    elif word == "refuse-late":
        put(frame(b"X", b"it will not have it"))
    elif word == "endless":
        while True:
            note(b"[]")
            time.sleep(0.01)
    elif word == "steady":
        for _ in range(number):
            time.sleep(0.5)
            note(b"[]")
        return True
    elif word == "grow":
        hoard.append(bytearray(b"x") * (number << 20))
        return True
    elif word == "grow-and-hang":
        hoard.append(bytearray(b"x") * (number << 20))
        stuck_in_the_scheduler()
    elif word == "noise":
        for stream in (sys.stdout, sys.stderr):
            print("\x00\x01 garbage " * 10000, file=stream, flush=True)
        return True
    elif word == "big":
        note(b"[" + b" " * (number << 20) + b"]")
        return True
    elif word == "many":
        note(*(b'["%d"]' % index for index in range(number)))
        return True
    elif word == "trickle":
        for byte in frame(b"E", {"steps": number}):
            put(bytes([byte]))
            time.sleep(0.02)
    return word == ""


def main() -> None:
    load = os.environ.get("FAKE_LOAD", "")
    if load == "slow":
        time.sleep(3600)
    if load == "missing":
        import a_module_that_nobody_has  # noqa: F401
    if load == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    put(frame(b"K", {"version": "0.33.0", "python": "3.11", "pid": os.getpid()}))
    while True:
        payload = take(int.from_bytes(take(4), "little"))
        if payload == b"Q":
            return
        order = json.loads(payload[1:])
        word, _, number = order["scenario"].get("note", "").partition(":")
        if word == "refuse":
            put(frame(b"X", b"it will not have it"))
            continue
        header = {
            "pid": os.getpid(),
            "record": order["record"],
            "environment": dict(os.environ),
            "path": sys.path,
        }
        note(json.dumps(header).encode())
        if misbehave(word, int(number or 0)):
            note(b"[]")
            end()


main()
