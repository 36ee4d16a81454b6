"""The pure kernel: events in, commands out, and the state between."""
