"""Tests of the promise of memory."""
