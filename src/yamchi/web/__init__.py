"""The HTTP server: API, board, metrics. `create_app(app)` makes it for an application."""

from yamchi.http.auth import check_address
from yamchi.web.app import create_app, create_health_app

__all__ = ["check_address", "create_app", "create_health_app"]
