"""Apache Kafka as one KRaft node, broker and controller together, from jars of Maven Central."""

import os
import shutil
import struct
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.services.server import Server, ServerMissing, ask, free_port, program

VERSION = "4.3.1"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "yamchi"
JARS = CACHE / f"kafka-{VERSION}"
CLUSTER_ID = "eWFtY2hpLXRlc3RzLWthZg"
QUICK_JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For a broker that lives for seconds: what the better compiler would save is less than what it costs."""

FORMATTED = JARS / "formatted"
CLASSES = JARS / "classes.jsa"
"""What every new broker would make again, made once by `prepare_starts`: its empty folder, its classes as Java keeps them."""


class Kafka(Server):
    """`settings` override or add lines of server.properties.

    Clients are sent on to `advertised_port` after the first call: give a proxy's port to have it between them.
    A broker that is measured wants no `java_options`: see QUICK_JAVA.
    """

    name = "kafka"

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        advertised_port: int | None = None,
        java_options: Sequence[str] = QUICK_JAVA,
    ) -> None:
        self._java = program("java")
        if not JARS.exists():
            raise ServerMissing("Kafka's jars are not here: run python -m tests.services install")
        super().__init__()
        self._java_options = java_options
        self._controller_port = free_port()
        self._advertised_port = advertised_port or self.port
        self._settings = self._defaults() | dict(settings or {})
        self._properties = self.folder / "server.properties"

    @property
    def url(self) -> str:
        """host:port, what clients call bootstrap.servers."""
        return f"127.0.0.1:{self.port}"

    def prepare(self) -> None:
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in self._settings.items()))
        if FORMATTED.exists():
            shutil.copytree(FORMATTED, self.data)
            return
        format_storage = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._properties)]
        self.run_tool([self._java, *QUICK_JAVA, "-cp", f"{JARS}/*", *format_storage])

    def command(self) -> Sequence[str]:
        known = [f"-XX:SharedArchiveFile={CLASSES}"] if CLASSES.exists() else []
        return [
            self._java,
            "-Xmx512m",
            *known,
            *self._java_options,
            "-cp",
            f"{JARS}/*",
            "kafka.Kafka",
            str(self._properties),
        ]

    def answers(self) -> bool:
        """Whether it lists a broker, itself, in the metadata."""
        metadata_of_no_topics = struct.pack(">hhihi", 3, 1, 0, -1, 0)
        reply = ask(self.port, struct.pack(">i", len(metadata_of_no_topics)) + metadata_of_no_topics)
        return len(reply) >= 12 and struct.unpack_from(">i", reply, 8)[0] > 0

    def _defaults(self) -> dict[str, str]:
        one_copy = dict.fromkeys(
            [
                "offsets.topic.replication.factor",
                "transaction.state.log.replication.factor",
                "transaction.state.log.min.isr",
                "share.coordinator.state.topic.replication.factor",
                "share.coordinator.state.topic.min.isr",
            ],
            "1",
        )
        few_partitions = dict.fromkeys(
            [
                "num.partitions",
                "offsets.topic.num.partitions",
                "transaction.state.log.num.partitions",
                "share.coordinator.state.topic.num.partitions",
            ],
            "4",
        )
        controller = f"127.0.0.1:{self._controller_port}"
        return (
            one_copy
            | few_partitions
            | {
                "node.id": "1",
                "process.roles": "broker,controller",
                "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://{controller}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self._advertised_port}",
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.voters": f"1@{controller}",
                "log.dirs": str(self.data),
                "auto.create.topics.enable": "false",
                "group.initial.rebalance.delay.ms": "0",
                "log.cleaner.dedupe.buffer.size": str(8 * 1024 * 1024),
                # A killed broker is let in again only when its old session has ended.
                "broker.session.timeout.ms": "3000",
                "broker.heartbeat.interval.ms": "500",
            }
        )


def prepare_starts() -> None:
    """Start a broker once and keep what makes the others start sooner."""
    with tempfile.TemporaryDirectory(dir=JARS) as folder:
        archive, formatted = Path(folder, CLASSES.name), Path(folder, FORMATTED.name)
        broker = Kafka(java_options=[*QUICK_JAVA, f"-XX:ArchiveClassesAtExit={archive}"])
        try:
            broker.prepare()
            shutil.copytree(broker.data, formatted)
            broker.start()
            broker.stop()
        finally:
            broker.discard()
        archive.rename(CLASSES)
        if not FORMATTED.exists():  # somebody else was quicker
            formatted.rename(FORMATTED)
