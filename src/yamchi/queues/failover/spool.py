"""What an engine must be able to do to hold jobs for another one.

A job is in doubt when it was being added, or moved, as the broker fell silent: the broker may have it all the same, and the
spool has it too. What has begun here by the time the broker is back must not run there once more. What still waits here is moved as
any other job: there, the same id is the same job.
"""

from collections.abc import Sequence
from typing import Protocol

from yamchi.clock import Millis
from yamchi.queues.engines.base import Engine
from yamchi.queues.records import Claim, NewJob


class Spool(Engine, Protocol):
    """An engine that can hold jobs for another one."""

    async def add_doubtful(self, queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        """Add jobs, and remember that they are in doubt."""

    async def fire_doubtful(self, schedule: str, moment: Millis, queue: str, job: NewJob) -> bool:
        """The same for a moment of a schedule."""

    async def doubtful_begun(self, queue: str, mover: str) -> list[str]:
        """Jobs in doubt that have begun here, the forgotten ones too; none while another mover has the queue."""

    async def forget_doubts(self, queue: str, job_ids: Sequence[str]) -> None:
        """These jobs are in doubt no longer."""

    async def take_pending(self, queue: str, want: int, lease: Millis, mover: str) -> list[Claim]:
        """Claim jobs that wait, due or not, in order, to move them elsewhere. For the time of the lease nobody else
        gets any of this queue, neither to move nor to run."""

    async def spooled(self, mover: str) -> list[str]:
        """Queues of which something waits here or is in doubt, or is on its way elsewhere in the hands of another mover."""

    async def drop(self, queue: str, claims: Sequence[Claim]) -> list[str]:
        """Forget jobs that have been moved elsewhere, and so are in doubt no longer; which of them somebody had asked to
        stop by then."""

    async def end_move(self, queue: str, mover: str) -> None:
        """What was taken and not dropped waits again, where it was, and is in doubt; others may go on."""

    async def note_pause(self, queue: str, is_paused: bool) -> None:
        """Pause or resume here, and remember that the broker has to be told."""

    async def noted_pauses(self) -> dict[str, bool]:
        """Queues of which the broker has not been told yet whether they are paused."""

    async def forget_pause(self, queue: str, is_paused: bool) -> None:
        """The broker has been told this; what was noted since stays noted."""

    async def copy_pause(self, queue: str, is_paused: bool) -> None:
        """Be paused as the broker is, unless the broker has yet to be told otherwise."""
