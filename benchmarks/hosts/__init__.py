"""Runs over several hosts, on one machine."""
