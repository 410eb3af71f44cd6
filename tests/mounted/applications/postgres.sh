# PostgreSQL: a cluster with checksums on pages, pgbench, kill -9 of everything under load, recovery, and whether the sums that every
# transaction keeps equal are equal and all indexes agree with their tables. SECONDS_EACH says how long pgbench runs.
bin=$(dirname "$(ls /usr/lib/postgresql/*/bin/postgres | sort -V | tail -1)")
user=postgres

as() { runuser -u "$user" -- env PGHOST="$PWD/pg" PGUSER=bench PGDATABASE=bench "$@"; }

start() {
    as "$bin/pg_ctl" -D "$PWD/pg/data" -w -t 120 -l "$PWD/pg/log" -o "-k '$PWD/pg' -c listen_addresses=" start >/dev/null || {
        cat pg/log >&2
        return 1
    }
}

stop() { as "$bin/pg_ctl" -D "$PWD/pg/data" -w -m fast stop >/dev/null; }

consistent() {
    local sums
    sums=$(as psql -qAtc "select count(distinct s) from (select sum(abalance) s from pgbench_accounts union all
        select sum(bbalance) from pgbench_branches union all select sum(tbalance) from pgbench_tellers union all
        select coalesce(sum(delta), 0) from pgbench_history) sums")
    test "$sums" = 1
    as "$bin/pg_amcheck" --install-missing --heapallindexed --parent-check bench
}

# The postmaster and all its children at once, as a crash of the machine's programs would.
kill_all() {
    local postmaster
    postmaster=$(head -1 pg/data/postmaster.pid)
    kill -9 "$postmaster" $(pgrep -P "$postmaster")
    while pgrep -P "$postmaster" >/dev/null || kill -0 "$postmaster" 2>/dev/null; do :; done
}

work() {
    mkdir pg && chown "$user" pg && chmod 755 .
    as "$bin/initdb" -D "$PWD/pg/data" -U bench --auth=trust --data-checksums >/dev/null
    start
    as createdb -U bench --maintenance-db=postgres bench
    as "$bin/pgbench" -q -i -s 5 bench 2>/dev/null
    as "$bin/pgbench" -n -c 8 -j 2 -T "${SECONDS_EACH:-10}" bench 2>&1 | grep -E '^tps|failed' >&2
    consistent
    local round before history="select count(*) from pgbench_history"
    for round in 1 2 3; do
        before=$(as psql -qAtc "$history")
        as "$bin/pgbench" -n -c 8 -j 2 -T 600 bench >pg/bench.log 2>&1 &
        while test "$(as psql -qAtc "$history")" -lt $((before + 300)); do :; done
        before=$(as psql -qAtc "$history")
        kill_all
        wait $! || true
        start
        test "$(as psql -qAtc "$history")" -ge "$before"
        consistent
    done
    stop
    as "$bin/pg_checksums" --check -D "$PWD/pg/data" >&2
}

look() {
    as "$bin/pg_checksums" --check -D "$PWD/pg/data" >&2
    start
    consistent
    stop
}
