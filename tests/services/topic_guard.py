"""A Kafka in which clients may do everything but create topics, as in a company where that is for administrators.

kafka = private_kafka(GUARDED)
forbid_new_topics(kafka.url)
"""

import time
from concurrent.futures import wait

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

GUARDED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
DEADLINE_SECONDS = 30


def forbid_new_topics(bootstrap: str) -> None:
    """Returns when the ban is in force; `bootstrap` must be a server started with GUARDED."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    _make_topic_of_offsets(admin)
    # The first rule on a resource ends "everyone may", so the right to all the rest comes first.
    _add_rules(admin, AclOperation.ALL, AclPermissionType.ALLOW)
    _add_rules(admin, AclOperation.CREATE, AclPermissionType.DENY)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while _may_create_topics(admin):
        if time.monotonic() > deadline:
            raise TimeoutError(f"Kafka at {bootstrap} still lets clients create topics")


def _make_topic_of_offsets(admin: AdminClient) -> None:
    """Kafka makes it when a group is first asked for, by the rights of whoever asks; the answer doesn't matter."""
    wait([admin.describe_consumer_groups(["anyone"])["anyone"]], DEADLINE_SECONDS)


def _add_rules(admin: AdminClient, operation: AclOperation, permission: AclPermissionType) -> None:
    rules = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", operation, permission)
        for kind, name in ((ResourceType.BROKER, "kafka-cluster"), (ResourceType.TOPIC, "*"))
    ]
    for added in admin.create_acls(rules).values():
        added.result(DEADLINE_SECONDS)


def _may_create_topics(admin: AdminClient) -> bool:
    try:
        admin.create_topics([NewTopic("probe", 1)], validate_only=True)["probe"].result(DEADLINE_SECONDS)
    except KafkaException as refusal:
        return refusal.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED
    return True
