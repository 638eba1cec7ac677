"""A call in a process of its own, so that whatever happens to it happens to it alone.

Loading torch costs seconds, so children are forked from a server that has imported what they need and has run no
torch operation: a parent that ran one hangs OpenMP in its children, and one that asked for CUDA poisons theirs. The
server is multiprocessing's `forkserver`; one that is killed is started again. A child answers through a pipe with a
whole result or not at all, so the one that is killed leaves nothing half-written; it ends by itself when its parent is
gone.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import inspect
import io
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Any

from paradigms.build import find
from paradigms.memory_watch import MemoryWatch

POLL_S = 0.5
GRACE_S = 5.0  # between asking a child to end and ending it
LOST = 255  # what multiprocessing says of a child whose server is gone


@dataclass(frozen=True)
class Outcome:
    """How a call ended.

    Attributes:
        status: `ok`, `oom` or `failed`.
        value: what the call returned, when ok.
        error: one line, otherwise.
        traceback: of the exception, where there was one.
        seconds: from starting the child to its end.
    """

    status: str
    value: Any = None
    error: str | None = None
    traceback: str | None = None
    seconds: float = 0.0


def start_server(preload: Sequence[str]) -> None:
    """Start the process that children are forked from, with these modules imported.

    It and its children ignore Ctrl-C, which a terminal sends to all of them: the parent decides what then happens.
    """
    multiprocessing.set_forkserver_preload(list(preload))
    with _ignoring_interrupts():
        forkserver.ensure_running()


def call(
    function: str,
    *arguments: Any,
    log: Path,
    timeout_s: float | None = None,
    on_line: Callable[[str], None] | None = None,
    on_part: Callable[[Any], None] | None = None,
    memory_limit_bytes: int | None = None,
) -> Outcome:
    """Run `function(*arguments)` in a child and wait for it.

    Args:
        function: dotted name, importable in the child.
        arguments: picklable values.
        log: file that what the child writes to stdout and stderr is appended to.
        timeout_s: the child is ended after this time, counted afresh from each part; None waits for ever.
        on_line: called with each line that Python code in the child prints.
        on_part: called with each value that the function yields, when it is a generator; those before a failure stay.
        memory_limit_bytes: memory of the machine, by default what it says itself; a child that SIGKILL ends while it
            holds more than half of it counts as out of memory.

    Raises:
        KeyboardInterrupt: Ctrl-C; the child has ended.
    """
    if multiprocessing.get_start_method(allow_none=True) not in (None, *multiprocessing.get_all_start_methods()):
        multiprocessing.set_start_method(
            "forkserver", force=True
        )  # joblib's workers name one that children do not know
    started = part_started = time.monotonic()
    try:
        process, ours = _start(str(log), function, arguments)
    except (EOFError, ConnectionError) as error:
        return Outcome("failed", error=f"no process could be forked: {one_line(error)}")
    try:
        watch = MemoryWatch(process.pid or 0, memory_limit_bytes)
        answer = None
        while answer is None:
            if timeout_s is not None and time.monotonic() - part_started > timeout_s:
                _end(process)
                return Outcome("failed", error=f"timed out after {timeout_s:g} s", seconds=time.monotonic() - started)
            if ours in connection.wait([ours, process.sentinel], timeout=POLL_S):
                try:
                    kind, payload = ours.recv()
                except (EOFError, ConnectionResetError):
                    break
                if kind == "line":
                    if on_line is not None:
                        on_line(payload)
                elif kind == "part":
                    if on_part is not None:
                        on_part(payload)
                    part_started = time.monotonic()
                else:
                    answer = payload
            elif not process.is_alive() and not ours.poll():
                break
            else:
                watch.sample()
        process.join(GRACE_S)
        seconds = time.monotonic() - started
        if answer is not None:
            return Outcome(*answer, seconds=seconds)
        return _died(process.exitcode, watch, seconds)
    finally:
        ours.close()
        _end(process)


def _start(*arguments: Any) -> tuple[Any, Any]:
    """A child, and our end of the pipe to it. A server that dies while it is asked is started again, once."""
    context = multiprocessing.get_context("forkserver")
    for is_last in (False, True):
        ours, theirs = context.Pipe()
        process = context.Process(target=_child, args=(theirs, *arguments), daemon=False)
        try:
            with _without_main():
                process.start()
        except (EOFError, ConnectionError):
            ours.close()
            if is_last:
                raise
            time.sleep(0.1)  # until the system knows that the server is gone
        else:
            return process, ours
        finally:
            theirs.close()
    raise AssertionError


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Keep multiprocessing from running the main module again in every child, which nobody needs: that of a launcher's
    worker takes a second.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _end(process: Any) -> None:
    """Ask a child to end, then end it."""
    if process.exitcode == LOST:  # it may live on, unseen
        with contextlib.suppress(ProcessLookupError):
            for _ in range(int(GRACE_S / 0.01)):
                os.kill(process.pid, signal.SIGKILL)
                time.sleep(0.01)
    if process.is_alive():
        process.terminate()
        process.join(GRACE_S)
    if process.is_alive():
        process.kill()
        process.join()


def _died(exitcode: int | None, watch: MemoryWatch, seconds: float) -> Outcome:
    if exitcode is not None and exitcode < 0:
        if exitcode == -signal.SIGKILL and watch.ran_out():
            return Outcome("oom", error=f"out of memory: killed while holding {watch}", seconds=seconds)
        name = signal.Signals(-exitcode).name
        return Outcome("failed", error=f"killed by signal {-exitcode} ({name})", seconds=seconds)
    if exitcode == LOST:
        return Outcome("failed", error="the process that children are forked from was killed", seconds=seconds)
    return Outcome("failed", error=f"the process ended without a result, exit code {exitcode}", seconds=seconds)


@contextlib.contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# ---------------------------------------------------------------- in the child


def _child(pipe: Any, log: str, function: str, arguments: tuple[Any, ...]) -> None:
    gc.freeze()  # what the server imported stays as it is: no collection scans it, least of all a timed one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_end_with_parent, args=(pipe,), daemon=True).start()
    lock = threading.Lock()

    def send(kind: str, payload: Any) -> None:
        with lock:
            pipe.send((kind, payload))

    with open(log, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        sys.stdout, sys.stderr = _Lines(send), io.TextIOWrapper(io.FileIO(2, "wb", closefd=False), write_through=True)
        faulthandler.enable(file)
        try:
            result = find(function)(*arguments)
            if inspect.isgenerator(result):
                for part in result:
                    send("part", part)
                result = None
            answer: tuple[Any, ...] = ("ok", result)
        except KeyboardInterrupt:
            os._exit(130)
        except BaseException as error:
            trace = traceback.format_exc()
            file.write(trace.encode())
            answer = ("oom" if _is_out_of_memory(error) else "failed", None, one_line(error), trace)
        send("answer", answer)


def _leave(*_: Any) -> None:
    raise KeyboardInterrupt  # so that training can save where it stands


def _end_with_parent(pipe: Any) -> None:
    with contextlib.suppress(EOFError, OSError):
        pipe.recv()  # the parent never sends: this returns when it is gone
    os._exit(1)


class _Lines(io.TextIOBase):
    """Stdout of the child: whole lines go to the parent, everything into the log."""

    def __init__(self, send: Callable[[str, Any], None]) -> None:
        self._send = send
        self._rest = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        os.write(1, text.encode(errors="replace"))
        *lines, self._rest = (self._rest + text).replace("\r", "\n").split("\n")
        for line in filter(str.strip, lines):
            self._send("line", line)
        return len(text)


def one_line(error: BaseException) -> str:
    """Type and first line of an exception; the message alone where a person is spoken to (ValueError, OSError)."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    lines = str(error).strip().splitlines() or [""]
    first = lines[-1 if lines[0].startswith("Traceback") else 0]  # a launcher's error may hold that of a job
    return first if first and type(error) is ValueError else f"{type(error).__name__}: {first}".rstrip(": ")


def _is_out_of_memory(error: BaseException) -> bool:
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"  # torch's, without importing it
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )
