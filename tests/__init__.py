"""Yamchi's tests: against real servers, real processes and real signals."""
