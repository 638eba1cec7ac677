"""`make gpu-check`: in minutes, on a large GPU that was lent, whatever can only be known there.

It takes the interpreter that it is given, makes no environment, needs no network and writes into one folder:

    environment   what is there, and how fast it copies and multiplies
    tests         those marked `gpu`, a step a file
    figures       how much of those rates decoding, prefill and denoising reach at a billion parameters
    sweep         experiment=gpu_side_by_side with the time that is left

Each step has a time of its own and a process of its own; one that fails is told and the next one runs. `gpu_check.json`
holds what came out, `sweep/` is a folder for `python -m analysis.report`, on this machine or another.
"""
