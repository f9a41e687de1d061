"""The HTTP server: API, board, metrics. `create_app(app)` makes it for an application."""

from yamchi.web.app import create_app, create_health_app
from yamchi.web.auth import check_address

__all__ = ["check_address", "create_app", "create_health_app"]
