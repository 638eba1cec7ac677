"""Where the text of a row ends: at its length, or where it says so.

A text on a canvas is not written from left to right: its end may be decided before what comes before it. It counts when
all of that is decided, since an earlier end may still come.
"""

from __future__ import annotations

from collections.abc import Sequence

from paradigms.decoding.diffusion.canvas import Canvas
from paradigms.decoding.stopping import Vocabulary, finish


def end_of(canvas: Canvas, row: int, vocabulary: Vocabulary) -> tuple[str, int]:
    """Finish reason and length of a row that is done; its tokens are looked at only when they can end it early."""
    request = canvas.requests[row]
    if request.ignore_eos:
        return "length", request.max_new_tokens
    ids = canvas.output(canvas.tokens_BT)[row, : request.max_new_tokens].tolist()
    ended = finish(request, ids, vocabulary)
    assert ended is not None
    return ended


def leave_what_comes_after(canvas: Canvas, rows: Sequence[int], vocabulary: Vocabulary) -> bool:
    """Of these rows, the masks behind a decided end stay masks: behind an end-of-text at once, behind a stop string
    when all before it is decided. Returns False when none of the rows may end before its length.
    """
    rows = [row for row in rows if not canvas.requests[row].ignore_eos]
    if rows:
        canvas.leave_behind(canvas.decided_BT & (canvas.tokens_BT == vocabulary.eos_id), rows)
        if any(canvas.requests[row].stop_strings for row in rows):
            canvas.leave_all([row for row in rows if _has_stopped(canvas, row, vocabulary)])
    return bool(rows)


def _has_stopped(canvas: Canvas, row: int, vocabulary: Vocabulary) -> bool:
    """Whether a stop string stands in what is decided from the row's first position on."""
    request = canvas.requests[row]
    decided = canvas.output(canvas.decided_BT)[row, : request.max_new_tokens].tolist()
    first = [*decided, False].index(False)
    ended = finish(request, canvas.output(canvas.tokens_BT)[row, :first].tolist(), vocabulary)
    return ended is not None and ended[0] == "stop_string"
