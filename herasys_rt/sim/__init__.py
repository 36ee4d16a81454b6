"""The discrete-event simulator: the live kernel and policies over modelled hardware."""
