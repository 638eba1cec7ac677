"""Paradigms that are not ours: outside engines behind the same stream of events."""
