"""From records to answers: frames, statistics, checks, figures and the report. Reads what `paradigms.records` wrote; no torch."""

from analysis.frames import Frames, load

__all__ = ["Frames", "load"]
