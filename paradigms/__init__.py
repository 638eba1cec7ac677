"""Benchmarks of text-generation paradigms, on the same work, side by side.

Importing the package fixes the thread policy before torch can load: OpenMP workers that spin while they wait make one
decode step tens of times slower as soon as another process is busy, and the policy is read only once, when torch loads.
Whether there is a GPU is asked of its driver's library, since asking CUDA itself would break processes forked later.
"""

import os as _os
import time as _time

import_started = _time.perf_counter()  # what loading costs is recorded

_os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
_os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
_os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

__version__ = "0.1.0"
