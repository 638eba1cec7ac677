"""Text in, token streams out: corpora split by content, tokenizers, windows and prompts."""
