"""Tasks with known answers: each module has a generator of instances, an exact checker, and a fixed held-out set."""
