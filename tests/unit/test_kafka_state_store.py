"""Which message stands for which job, through every crash and rebalance: the state store's SQL, without a broker."""

import sqlite3
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")
from yamchi.queues.engines import statestore
from yamchi.queues.engines.kafka import ingest, partitions, sending
from yamchi.queues.engines.kafka.envelope import Message
from yamchi.queues.engines.kafka.messages import prepare, retry
from yamchi.queues.engines.sqlite import management, settling, working
from yamchi.queues.engines.sqlite.schema import MIGRATIONS
from yamchi.queues.options import JobOptions
from yamchi.queues.records import Claim, Completed, NewJob, RetryAt, Verdict

Q, NOW = "orders", 1_000_000
Db = sqlite3.Connection


@pytest.fixture
def db() -> Db:
    return make_ledger()


def make_ledger() -> Db:
    db = sqlite3.connect(":memory:", isolation_level=None)
    for statement in ";".join(MIGRATIONS).split(";"):
        db.execute(statement)
    prepare(db)
    return db


def message(job_id: str, offset: int, **fields: Any) -> Message:
    return Message(job_id, "work", b'{"n":1}', partition=0, offset=offset, stamp=NOW, **fields)


def arrive(db: Db, *messages: Message, owner: str = "me") -> None:
    ingest.ingest(db, Q, owner, messages, NOW)


def take(db: Db, want: int = 10, now: int = NOW) -> list[Claim]:
    return working.take(db, Q, want, 5_000, "worker", "token", now)


def settle(db: Db, *verdicts: Verdict) -> list[str]:
    return settling.settle(db, Q, verdicts, NOW).settled


def ids(claims: Sequence[Claim]) -> list[str]:
    return [claim.job.id for claim in claims]


def counts(db: Db) -> dict[str, int]:
    kept = dict(db.execute("SELECT state, n FROM counts WHERE n <> 0"))
    real = dict(db.execute("SELECT state, count(*) FROM jobs GROUP BY state"))
    assert kept == real, "the kept counts are the real ones"
    return real


def floor(db: Db, position: int) -> int:
    return partitions.first_undone(db, Q, 0, 0, position)


def test_a_job_added_here_is_claimed_only_where_its_message_arrives(db: Db) -> None:
    assert sending.add(db, Q, [NewJob("a", "work", b"{}")], NOW, "") == [True]
    assert take(db) == []
    sending.confirm(db, Q, {("a", ""): (0, 7, NOW)})
    arrive(db, message("a", 7))
    assert ids(take(db)) == ["a"]
    assert counts(db) == {"active": 1}


def test_a_message_may_arrive_before_its_confirmation(db: Db) -> None:
    sending.add(db, Q, [NewJob("a", "work", b"{}")], NOW, "")
    arrive(db, message("a", 7))
    sending.confirm(db, Q, {("a", ""): (0, 7, NOW)})
    assert ids(take(db)) == ["a"]
    assert db.execute("SELECT partition, offset FROM messages").fetchall() == [(0, 7)]


def test_what_kafka_refused_is_forgotten_and_may_be_tried_again(db: Db) -> None:
    sending.add(db, Q, [NewJob("a", "work", b"{}")], NOW, "")
    sending.withdraw(db, Q, ["a"], "", NOW)
    assert counts(db) == {}
    assert sending.add(db, Q, [NewJob("a", "work", b"{}")], NOW, "") == [True]


def test_what_was_withdrawn_and_arrives_all_the_same_runs_nothing(db: Db) -> None:
    for number, round in enumerate(("first", "second")):
        sending.add(db, Q, [NewJob("a", "work", b"{}")], NOW, round)
        sending.withdraw(db, Q, ["a"], round, NOW)
        arrive(db, message("a", number, round=round))
        assert take(db) == []
    sending.add(db, Q, [NewJob("a", "work", b"{}")], NOW, "third")
    arrive(db, message("a", 2, round="third"))
    assert ids(take(db)) == ["a"]
    assert floor(db, 3) == 2


def test_a_withdrawal_is_not_remembered_for_ever(db: Db) -> None:
    for job_id, now in (("a", NOW), ("b", NOW + sending.WITHDRAWN_KEPT + 1)):
        sending.add(db, Q, [NewJob(job_id, "work", b"{}")], now, "")
        sending.withdraw(db, Q, [job_id], "", now)
    sending.forget_withdrawn(db, [Q], NOW + sending.WITHDRAWN_KEPT + 1)
    assert db.execute("SELECT id FROM messages").fetchall() == [("b",)]


def test_what_was_cut_short_is_sent_again_and_runs_once(db: Db) -> None:
    sending.add(db, Q, [NewJob("a", "work", b"{}", priority=3)], NOW, "")
    (again,) = sending.unconfirmed(db, Q, NOW + 1, 10)
    assert (again.id, again.payload, again.priority) == ("a", b"{}", 3)
    arrive(db, message("a", 7))
    arrive(db, message("a", 8))
    assert ids(take(db)) == ["a"]
    assert sending.unconfirmed(db, Q, NOW + 1, 10) == []


def test_a_redelivered_message_changes_nothing(db: Db) -> None:
    arrive(db, message("a", 1), message("b", 2))
    settle(db, *[Completed(claim) for claim in take(db, 1)])
    arrive(db, message("a", 1), message("b", 2))
    assert counts(db) == {"completed": 1, "waiting": 1}


def test_a_finished_job_that_is_no_longer_kept_does_not_run_again(db: Db) -> None:
    options = JobOptions(keep_completed=0).encode()
    arrive(db, message("a", 1, options=options))
    settle(db, *[Completed(claim) for claim in take(db)])
    arrive(db, message("a", 1, options=options))
    arrive(db, message("a", 2, options=options))
    assert take(db) == []
    assert floor(db, 3) == 3


def test_an_id_that_is_no_longer_kept_may_be_used_again(db: Db) -> None:
    options = JobOptions(keep_completed=0)
    for number, round in enumerate(("first", "second")):
        assert sending.add(db, Q, [NewJob("a", "work", b"{}", options)], NOW, round) == [True]
        arrive(db, message("a", number, options=options.encode(), round=round))
        claims = take(db)
        assert ids(claims) == ["a"]
        settle(db, Completed(claims[0]))
    assert floor(db, 2) == 2


def test_the_same_id_twice_in_a_batch_is_one_job(db: Db) -> None:
    arrive(db, message("a", 1), message("a", 2), message("b", 3))
    assert counts(db) == {"waiting": 2}
    claims = take(db)
    assert floor(db, 4) == 1
    settle(db, *[Completed(claim) for claim in claims])
    assert floor(db, 4) == 4


def test_a_topic_made_anew_does_not_hide_its_messages(db: Db) -> None:
    arrive(db, message("a", 1))
    settle(db, *[Completed(claim) for claim in take(db)])
    anew = message("b", 1)
    anew.stamp += 60_000
    arrive(db, anew)
    assert ids(take(db)) == ["b"]


def test_raw_values_come_through_as_they_are(db: Db) -> None:
    values = [b"\xff\xfe", b"", b"a\x00b", "имя".encode(), b'"\\u0000"']
    arrive(
        db, *(Message(f"m{n}", "", value, partition=0, offset=n, stamp=NOW) for n, value in enumerate(values))
    )
    assert {claim.job.id: claim.job.payload for claim in take(db)} == {
        f"m{n}": value for n, value in enumerate(values)
    }


def test_offsets_are_done_up_to_the_first_job_that_is_not(db: Db) -> None:
    arrive(db, *(message(f"m{n}", n) for n in range(6)))
    claims = take(db)
    settle(db, *[Completed(claims[n]) for n in (0, 1, 3, 5)])
    assert floor(db, 6) == 2
    assert partitions.done_after(db, Q, 0, 2, 6) == [3, 5]
    settle(db, Completed(claims[2]))
    assert floor(db, 6) == 4


def test_a_short_retry_holds_its_message_and_a_long_one_does_not(db: Db) -> None:
    arrive(db, message("short", 0), message("long", 1))
    claims = {claim.job.id: claim for claim in take(db)}
    settle(db, RetryAt(claims["long"], NOW + 3_600_000, "later"))
    assert partitions.done_after(db, Q, 0, 0, 2) == [1]
    settle(db, RetryAt(claims["short"], NOW + 1_000, "soon"))
    assert floor(db, 2) == 0


def test_cancelled_and_removed_jobs_do_not_come_back_with_their_message(db: Db) -> None:
    jobs = [NewJob(job_id, "work", b"{}") for job_id in ("cancelled", "removed", "cleaned")]
    sending.add(db, Q, jobs, NOW, "")
    assert statestore.cancel(db, Q, ["cancelled"], NOW) == {"cancelled": "cancelled"}
    assert statestore.remove(db, Q, ["removed"]) == ["removed"]
    assert statestore.clean(db, Q, "waiting", NOW, 10) == 1
    arrive(db, *(message(job.id, n) for n, job in enumerate(jobs)))
    assert take(db) == []
    assert floor(db, 3) == 3


@pytest.mark.parametrize("is_forwarded", [False, True], ids=["added", "forwarded"])
def test_a_job_removed_on_its_way_to_kafka_keeps_out_no_other(db: Db, is_forwarded: bool) -> None:
    """SQLite gives the number of the newest job, once that is removed, to the next one."""
    run_at = NOW + 1_000 if is_forwarded else None
    sending.add(db, Q, [NewJob("a", "work", b"{}", run_at=run_at)], NOW, "first")
    if is_forwarded:
        sending.send_on(db, Q, NOW + 2_000, 10)
    assert statestore.remove(db, Q, ["a"]) == ["a"]
    assert sending.add(db, Q, [NewJob("b", "work", b"{}")], NOW, "second") == [True]
    arrive(db, message("a", 0, round=f"again-{NOW + 2_000}" if is_forwarded else "first"))
    assert take(db) == [], "the message that was on its way is still known"
    arrive(db, message("b", 1, round="second"))
    assert ids(take(db)) == ["b"]
    assert counts(db) == {"active": 1}


def test_a_job_cancelled_on_its_way_to_kafka_and_retried_goes_there_once(db: Db) -> None:
    """One that could not would end the forwarding of every queue, each second anew."""
    sending.add(db, Q, [NewJob("a", "work", b"{}")], NOW, "first")
    statestore.cancel(db, Q, ["a"], NOW)
    assert retry(db, Q, ["a"], NOW) == ["a"]
    (outgoing,) = sending.send_on(db, Q, NOW + 1, 10)
    assert outgoing.round.startswith("again-")
    assert [again.round for again in sending.unconfirmed(db, Q, NOW + 2, 10)] == [outgoing.round]


def test_revoked_partitions_give_back_what_waits_and_keep_what_runs(db: Db) -> None:
    arrive(db, *(message(f"m{n}", n) for n in range(3)))
    (running,) = take(db, 1)
    partitions.revoke(db, Q, "me", [0], NOW + 10_000)
    assert counts(db) == {"active": 1, "sent": 2}
    assert take(db) == []
    arrive(db, *(message(f"m{n}", n) for n in range(3)), owner="leftover")
    assert counts(db) == {"active": 1, "waiting": 2}, "the next owner is on this machine: nothing runs twice"
    assert settle(db, Completed(running)) == ["m0"]


def test_jobs_of_a_dead_owner_go_where_kafka_delivers_them(db: Db) -> None:
    arrive(db, message("a", 0))
    partitions.heartbeat(db, "me", NOW + 10_000)
    (stale,) = take(db)
    assert not partitions.any_dead_owner(db, NOW + 9_000)
    partitions.release_dead_owners(db, NOW + 11_000)
    assert counts(db) == {"sent": 1}
    assert settle(db, Completed(stale)) == [], "whoever held it settles nothing"
    arrive(db, message("a", 0), owner="leftover")
    (again,) = take(db, now=NOW + 11_000)
    assert again.job.attempts_made == 2


def test_a_job_that_died_with_its_owner_in_its_last_attempt_has_failed(db: Db) -> None:
    arrive(db, message("a", 0, options=JobOptions(attempts=1).encode()), message("b", 1))
    partitions.heartbeat(db, "me", NOW + 10_000)
    take(db)
    stalled = partitions.release_dead_owners(db, NOW + 11_000)
    assert {job.id: has_failed for job, has_failed in stalled} == {"a": True, "b": False}
    assert counts(db) == {"failed": 1, "sent": 1}
    (letter,) = statestore.unsent_letters(db, Q, NOW * 2, 10)
    assert letter.id == "a"


def test_what_another_process_still_runs_outlives_the_dead_owner_of_its_partition(db: Db) -> None:
    arrive(db, message("a", 0), message("b", 1))
    partitions.heartbeat(db, "me", NOW + 10)
    (running,) = take(db, 1)
    assert partitions.release_dead_owners(db, NOW + 11) == []
    assert counts(db) == {"active": 1, "sent": 1}
    assert not partitions.heartbeat(db, "me", NOW + 20), "should it live after all, it has to begin anew"
    assert settle(db, Completed(running)) == ["a"]
    partitions.release_dead_owners(db, NOW + 6_000)
    assert counts(db) == {"completed": 1, "sent": 1}
    assert db.execute("SELECT owner FROM partitions").fetchall() == [(None,)]


def test_an_owner_taken_for_dead_learns_of_it(db: Db) -> None:
    assert not partitions.heartbeat(db, "me", NOW)
    assert partitions.heartbeat(db, "me", NOW + 5)
    partitions.release_dead_owners(db, NOW + 6)
    assert not partitions.heartbeat(db, "me", NOW + 20)


def test_what_another_machine_finished_is_no_longer_waiting_here(db: Db) -> None:
    sending.add(db, Q, [NewJob("a", "work", b"{}"), NewJob("b", "work", b"{}")], NOW, "")
    sending.confirm(db, Q, {("a", ""): (0, 4, NOW), ("b", ""): (0, 5, NOW)})
    partitions.mark_passed(db, Q, {0: 5})
    assert counts(db) == {"sent": 1}
    assert management.get(db, Q, "a") is None


def test_the_next_machine_does_not_repeat_what_is_done_beyond(db: Db) -> None:
    partitions.assign(db, Q, "me", [0], {0: 10}, {0: [11, 13]})
    arrive(db, *(message(f"m{n}", n) for n in range(10, 15)))
    assert ids(take(db)) == ["m10", "m12", "m14"]


def test_what_was_sent_from_here_and_is_done_beyond_elsewhere_does_not_come_back(db: Db) -> None:
    sending.add(db, Q, [NewJob(job_id, "work", b"{}") for job_id in "ab"], NOW, "")
    sending.confirm(db, Q, {("a", ""): (0, 0, NOW), ("b", ""): (0, 1, NOW)})
    partitions.assign(db, Q, "me", [0], {0: 0}, {0: [1]})
    arrive(db, message("a", 0), message("b", 1))
    assert ids(take(db)) == ["a"]
    assert counts(db) == {"active": 1}


def test_a_due_job_that_nobody_takes_goes_to_kafka_with_its_attempts(db: Db) -> None:
    sending.add(db, Q, [NewJob("later", "work", b'{"n":2}', run_at=NOW + 1_000)], NOW, "")
    arrive(db, message("held", 0))
    assert not sending.any_to_send_on(db, Q, NOW)
    assert sending.any_to_send_on(db, Q, NOW + 2_000)
    (outgoing,) = sending.send_on(db, Q, NOW + 2_000, 10)
    assert (outgoing.id, outgoing.payload) == ("later", b'{"n":2}')
    assert counts(db) == {"sent": 1, "waiting": 1}


def test_a_job_retried_on_another_machine_is_revived_here(db: Db) -> None:
    arrive(db, message("a", 0))
    settle(db, *[Completed(claim) for claim in take(db)])
    arrive(db, message("a", 1))
    assert take(db) == [], "the same job again is a repetition"
    arrive(db, message("a", 2, round="again-1", attempts_made=1))
    (again,) = take(db)
    assert (again.job.id, again.job.attempts_made) == ("a", 2)
    assert counts(db) == {"active": 1}


def test_a_job_retried_twice_elsewhere_is_counted_once(db: Db) -> None:
    """By that count is told whether there is room for more: one that only grows ends the reading of the queue."""
    arrive(db, message("a", 0))
    settle(db, *[Completed(claim) for claim in take(db)])
    arrive(db, message("a", 1, round="again-1"), message("a", 2, round="again-2"))
    assert counts(db) == {"waiting": 1}
    assert ids(take(db)) == ["a"]


def test_one_slow_job_does_not_hold_up_offsets_for_ever(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "FARTHEST", 3)
    arrive(db, *(message(f"m{n}", n) for n in range(6)))
    claims = take(db)
    settle(db, *[Completed(claim) for claim in claims[1:]])
    assert floor(db, 6) == 1
    assert partitions.first_undone(db, Q, 0, 1, 6) == 6
    assert settle(db, Completed(claims[0])) == ["m0"], "the state store still has it"
