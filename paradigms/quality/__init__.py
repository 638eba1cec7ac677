"""How good the text is: likelihood of held-out text, statistics of samples, and a neutral judge."""
