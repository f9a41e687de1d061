"""Scenarios over HTTP."""

from yamchi.plugins import Routes

ROUTES: tuple[Routes, ...] = ()
