"""Reading clocks, memory, the machine and its noise; nothing here knows a paradigm's inside."""
