"""Ranks that fail."""
