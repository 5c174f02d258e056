"""Does training in waves reach what the plain loop reaches? Paired runs at equal samples; start it with run.py."""
