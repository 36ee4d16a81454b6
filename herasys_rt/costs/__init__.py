"""What work costs: hardware, models, step times, profiles. Pure; seconds and tokens."""
