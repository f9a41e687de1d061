"""What the routes of notifications ask for."""

from typing import Annotated

from fastapi import Depends

from yamchi.notifications.plugin import Notifications
from yamchi.plugins import of_request

TheNotifications = Annotated[Notifications, Depends(of_request(Notifications))]
