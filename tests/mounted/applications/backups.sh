# borg and restic: a repository on the mount of a tree on the mount, twice, checked and taken out again.
export BORG_BASE_DIR=$PWD/borg-home BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes BORG_RELOCATED_REPO_ACCESS_IS_OK=yes
export RESTIC_PASSWORD=secret RESTIC_CACHE_DIR=$PWD/restic-cache RESTIC_REPOSITORY=$PWD/restic

work() {
    mkdir tree && (cd tree && make_files 800 && ln d1/file-1 hard && ln -s d1/file-1 soft && truncate -s 64M sparse)
    head -c 30000000 /dev/urandom >tree/large
    setfattr -n user.note -v hello tree/large
    borg init -e none borg
    borg create borg::first tree
    restic init -q && restic backup -q tree
    echo more >>tree/d2/file-2
    dd if=/dev/urandom of=tree/large bs=1M seek=7 count=3 conv=notrunc status=none
    borg create borg::second tree
    restic backup -q tree
    borg delete borg::first && borg compact borg
    restic forget -q --keep-last 1 --prune >/dev/null
}

look() {
    borg check --verify-data borg
    restic check -q --read-data >/dev/null
    rm -rf out && mkdir out && (cd out && borg extract ../borg::second)
    test -z "$(rsync -naHAX --checksum --delete --itemize-changes tree/ out/tree/)"
    rm -rf out && mkdir out && restic restore -q latest --target out >/dev/null
    diff -r tree "out/tree"
    test "$(getfattr --only-values -n user.note "out/tree/large")" = hello
    rm -rf out
}
