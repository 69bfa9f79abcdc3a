"""Writes the rows of a run as they come: what is done stays done, however the run ends.

One run at a time writes to a file. Every row is on the disk before the next one is begun; a last line that was cut off
is set aside; a row that does not go in whole is taken out again; Ctrl-C lets the row in the making be finished.
"""

import fcntl
import os
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from recall.errors import RecallError
from recall.results import ResultRow, read_results

INTERRUPTED = 130  # exit code, as of a process that Ctrl-C ended


class Recording:
    """A results file that is being written to, by this run alone."""

    def __init__(self, path: Path, file: int) -> None:
        """Go on writing to `path`, open as `file`; use `recording`."""
        self.path = path
        self.rows = read_results(path)
        self._file = file

    def record(self, answers: Generator[ResultRow]) -> None:
        """Write every row as it comes, until all are there or Ctrl-C asks to stop.

        Raises:
            RecallError: when a row cannot be written; those before it are whole.
            SystemExit: with `INTERRUPTED`, after a row, when Ctrl-C was pressed.
        """
        with _asked_to_stop() as asked:
            for row in answers:
                self.write(row)
                if asked:
                    answers.close()
                    say = f"stopped by Ctrl-C: {self.path} holds {len(self.rows)} rows; the same command again goes on"
                    print(say, file=sys.stderr)
                    sys.exit(INTERRUPTED)

    def write(self, row: ResultRow) -> None:
        """Append one row; it is on the disk when this returns.

        Raises:
            RecallError: when it cannot be written; the file holds what it held before.
        """
        whole = os.fstat(self._file).st_size
        try:
            left = memoryview(f"{row.model_dump_json()}\n".encode())
            while left:
                left = left[os.write(self._file, left) :]
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, whole)
            raise RecallError(
                f"{self.path}: a row cannot be written ({error.strerror}); its {len(self.rows)} rows are whole: make "
                "room, then the same command again goes on"
            ) from error
        self.rows.append(row)


@contextmanager
def recording(path: Path) -> Iterator[Recording]:
    """Open a results file to go on writing to it; one that is left empty is not left at all.

    Raises:
        RecallError: when it cannot be written, another run is writing to it, or a line is no result row.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    except OSError as error:
        raise RecallError(f"{path}: cannot be written ({error.strerror}); give another -o") from error
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RecallError(f"{path}: another run is writing to it; wait for its end, or give another -o") from error
        torn = set_aside_torn_line(path)
        if torn:
            print(f"{path}: its last line was cut off in writing; it is set aside in {torn}", file=sys.stderr)
        try:
            yield Recording(path, file)
        finally:
            if os.fstat(file).st_size == 0:
                path.unlink(missing_ok=True)
    finally:
        os.close(file)


def set_aside_torn_line(path: Path) -> Path | None:
    """Move a last line that was cut off in writing to a file beside `path` and return that file; None: none was."""
    if not path.is_file():
        return None
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole == len(content):
        return None
    aside = path.with_name(path.name + ".torn")
    with aside.open("ab") as lines:
        lines.write(content[whole:] + b"\n")
    os.truncate(path, whole)
    return aside


@contextmanager
def _asked_to_stop() -> Iterator[list[int]]:
    """While open, note Ctrl-C in the list that is given; pressed again it ends the program at once."""
    asked: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        print("finishing the row in the making; Ctrl-C again stops at once", file=sys.stderr)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
