"""The API and the pages of notifications, one file per resource, each with who may call it."""

from yamchi.notifications.routes import (
    campaigns,
    deliveries,
    events,
    inbox,
    live,
    mailbox,
    push,
    suppressions,
    templates,
    unsubscribe,
    users,
)
from yamchi.plugins import Routes

ROUTES = (
    Routes(events.senders, access="send:notifications+test"),
    Routes(inbox.senders, access="people:token"),
    Routes(inbox.router, access="person"),
    Routes(push.router, access="person"),
    Routes(users.own, access="person"),
    Routes(templates.readers, access="read"),
    *(Routes(one.router) for one in (deliveries, users, suppressions, campaigns, templates, mailbox)),
    *(Routes(one.pages, prefix="", access="public") for one in (live, mailbox, unsubscribe, push)),
)
