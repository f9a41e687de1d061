"""Tests that kill, cut, restart or fill something while jobs run, and then count what was lost."""
