"""SQLite under eight processes: the write-ahead log with mapped reading (C67), and journals that are truncated at each commit while
readers keep their files open (C68). argv: work or look, seconds for each."""

import multiprocessing
import sqlite3
import sys
import time

WORKERS = 8


def connect(journal):
    connection = sqlite3.connect(f"database-{journal}", timeout=120, isolation_level=None)
    connection.execute("pragma mmap_size=67108864")
    connection.execute(f"pragma journal_mode={journal}").fetchone()
    return connection


# A transfer keeps the sum; a reader that sees another one saw half of it.
def transfer(journal, worker, end):
    connection = connect(journal)
    count = 0
    while time.monotonic() < end or count < 5:
        connection.execute("begin immediate")
        one, other = (worker * 31 + count) % 200, (worker * 17 + count * 7) % 200
        connection.execute("update accounts set amount = amount - 1, note = ? where number = ?", ("x" * (count % 3000), one))
        connection.execute("update accounts set amount = amount + 1 where number = ?", (other,))
        connection.execute("insert into log values (?, ?, ?)", (worker, count, "y" * (count % 200)))
        if count % 50 == 49:
            connection.execute("delete from log where worker = ? and number < ?", (worker, count - 20))
        connection.execute("commit")
        count += 1
    connection.close()


def read(journal, worker, end):
    connection = connect(journal)
    count = 0
    while time.monotonic() < end or count < 5:
        total = connection.execute("select sum(amount) from accounts").fetchone()[0]
        assert total == 200000, total
        connection.execute("select count(*), sum(length(note)) from accounts").fetchone()
        if worker % 4 == 3 and count % 100 == 50:
            connection.execute("pragma wal_checkpoint(truncate)").fetchone()
        count += 1
    connection.close()


def work(journal, seconds):
    connection = connect(journal)
    connection.execute("create table accounts (number integer primary key, amount int, note text)")
    connection.execute("create table log (worker int, number int, content text, unique (worker, number))")
    connection.executemany("insert into accounts values (?, 1000, '')", ((number,) for number in range(200)))
    connection.close()
    end = time.monotonic() + seconds
    workers = [
        multiprocessing.Process(target=transfer if number % 2 else read, args=(journal, number, end)) for number in range(WORKERS)
    ]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    assert [worker.exitcode for worker in workers] == [0] * WORKERS, (journal, [worker.exitcode for worker in workers])


for journal in ["wal", "truncate", "persist"]:
    if sys.argv[1] == "work":
        work(journal, float(sys.argv[2]))
    connection = connect(journal)
    assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
    assert connection.execute("select sum(amount), count(*) from accounts").fetchone() == (200000, 200)
    transfers = connection.execute("select sum(last + 1) from (select max(number) last from log group by worker)").fetchone()[0]
    assert transfers >= 20, transfers
    print(f"{journal}: {transfers} transfers", file=sys.stderr)
