# Programs that make load and judge what comes back: dbench, bonnie++, fio with verification (C77).
work() {
    mkdir dbench bonnie fio
    dbench -t "${SECONDS_EACH:-10}" -D dbench -c /usr/share/dbench/client.txt 4 | tail -3 >&2
    bonnie++ -q -d bonnie -r 256 -s 512 -n 8 -u root >&2
    local engine pattern
    for engine in libaio io_uring psync; do
        for pattern in write randwrite; do
            fio --name="$engine-$pattern" --directory=fio --size=64M --bs=256k --rw="$pattern" --ioengine="$engine" --iodepth=16 \
                --direct=0 --verify=crc32c --verify_fatal=1 --do_verify=1 --minimal --end_fsync=1 >/dev/null
            fio --name="direct-$engine-$pattern" --directory=fio --size=64M --bs=64k --rw="$pattern" --ioengine="$engine" --iodepth=16 \
                --direct=1 --verify=crc32c --verify_fatal=1 --do_verify=1 --minimal >/dev/null
        done
    done
}

look() {
    local engine pattern
    for engine in libaio io_uring psync; do
        for pattern in write randwrite; do
            fio --name="$engine-$pattern" --directory=fio --size=64M --bs=256k --rw="$pattern" --ioengine="$engine" --iodepth=16 \
                --direct=0 --verify=crc32c --verify_fatal=1 --verify_only --minimal >/dev/null
        done
    done
}
