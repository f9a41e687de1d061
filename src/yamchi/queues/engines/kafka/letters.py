"""Dead letters on their way from the state store to the queue's dead-letter topic."""

from collections.abc import Awaitable, Callable

import structlog

from yamchi.clock import Millis
from yamchi.errors import YamchiError
from yamchi.queues.engines import statestore
from yamchi.queues.engines.kafka.address import Address
from yamchi.queues.engines.kafka.envelope import ID, NAME
from yamchi.queues.engines.kafka.producer import MessageProducer, Outgoing
from yamchi.queues.records import DeadLetter
from yamchi.storage.sqlite import SqliteFile

log = structlog.get_logger("yamchi.kafka")

BATCH = 1_000


class LetterSender:
    """Sends letters that Kafka has not got yet; `prepare` sees to it that a queue has its topics."""

    def __init__(
        self,
        address: Address,
        file: SqliteFile,
        producer: MessageProducer,
        prepare: Callable[[str], Awaitable[None]],
    ) -> None:
        self._address = address
        self._file = file
        self._producer = producer
        self._prepare = prepare

    async def send_now(self, queue: str) -> None:
        """The verdict stands whether or not Kafka answers: a letter that can't be sent now is sent by the maintenance."""
        try:
            await self.send(queue, 1 << 62)
        except YamchiError as error:
            log.warning(f"[{queue}:kafka] dead letters could not be sent yet: {error}")

    async def send(self, queue: str, failed_before: Millis) -> None:
        letters = await self._file.read(lambda db: statestore.unsent_letters(db, queue, failed_before, BATCH))
        if not letters:
            return
        await self._prepare(queue)
        topic = self._address.dead_letters(queue)
        reports = await self._producer.send(topic, [_outgoing(letter) for letter in letters])
        done = []
        for letter, report in zip(letters, reports, strict=True):
            if report.is_too_large:
                log.error(
                    f"[{queue}:kafka] the dead letter {letter.id} is too large for Kafka: only this machine has it"
                )
            if report.error is None or report.is_too_large:
                done.append(letter)
        await self._file.write(lambda db: statestore.letters_sent(db, done))
        if trouble := self._producer.first_error([one for one in reports if not one.is_too_large]):
            raise trouble


def _outgoing(letter: DeadLetter) -> Outgoing:
    key = letter.id.encode()
    return key, letter.body, [(ID, key), (NAME, (letter.name or "").encode())]
