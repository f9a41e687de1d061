"""The real servers that the tests run against: Redis, PostgreSQL and Kafka.

    python -m tests.services install    install what is missing: Debian's packages, Kafka's jars, Node's packages
    python -m tests.services            start all of them, print their URLs, stop them on Ctrl-C

Tests get them from the fixtures in `plugin`, one set of servers per run; a fault test gets servers of its own.
TEST_REDIS_URL, TEST_POSTGRES_URL and TEST_KAFKA_BOOTSTRAP point the tests at servers that already run.
"""
