"""Other processes, with hashes of str seeded otherwise and nothing cached, derive the same bytes from the same text."""

import os
import subprocess
import sys
from pathlib import Path

import paradigms

SCRIPT = """
import builtins, hashlib, inspect, json
from paradigms.data.splits import build_corpus
from paradigms.data.stream import evaluation_windows, prompts, token_stream, training_batch
from paradigms.data.tokenizers import BpeTokenizer

members = {member for thing in vars(builtins).values() if isinstance(thing, type) for member in dir(thing)}
texts = {inspect.getdoc(getattr(thing, name, None)) or "" for thing in (int, str, dict, bytes) for name in members}
texts |= {f"{text} {number}" for text in texts for number in range(3)}
corpus = build_corpus("x", texts)
tokenizer = BpeTokenizer(vocab_size=400).load(corpus)
stream = token_stream(corpus, tokenizer, "train")
print(corpus.sha256, tokenizer.sha256, hashlib.sha256(stream.tobytes()).hexdigest())
print(training_batch(stream, seed=1, step=2, length=20, num_rows=3).tolist())
print(prompts(stream, prompt_len=9, count=5, seed=4))
"""


def test_processes_agree(tmp_path):
    outputs = []
    for seed in ("1", "2"):
        cache = tmp_path / seed
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PARADIGMS_CACHE": str(cache)}
        root = Path(paradigms.__file__).parents[1]
        run = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, cwd=root, capture_output=True, text=True, check=True
        )
        assert len(list(cache.iterdir())) == 2
        outputs.append(run.stdout)
    assert outputs[0] == outputs[1] != ""
