"""The scenarios that ship."""

from pathlib import Path

FOLDER = Path(__file__).parent
