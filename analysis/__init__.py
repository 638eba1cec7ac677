"""From records to answers: frames, statistics, checks, figures and the report. No torch."""

from analysis.frames import Frames, load

__all__ = ["Frames", "load"]
