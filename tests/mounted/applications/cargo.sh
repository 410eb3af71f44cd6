# cargo on the mount: a small workspace built, run at once, tested, stripped, changed and built again (C79); git with worktrees (C50).
export CARGO_TARGET_DIR=$PWD/target CARGO_NET_OFFLINE=true
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b

work() {
    mkdir -p repo/src/bin && cd repo && git init -q -b main .
    printf '[package]\nname = "small"\nversion = "0.1.0"\nedition = "2021"\n' >Cargo.toml
    printf 'pub fn add(a: u32, b: u32) -> u32 { a + b }\n#[test]\nfn adds() { assert_eq!(add(1, 2), 3); }\n' >src/lib.rs
    printf 'fn main() { println!("{}", small::add(20, 22)); }\n' >src/bin/answer.rs
    ln -s src/lib.rs link
    cargo build -q --release && test "$(../target/release/answer)" = 42
    cargo test -q >&2
    cp ../target/release/answer ../stripped && strip ../stripped && test "$(../stripped)" = 42
    ../target/release/answer >/dev/null && rm ../target/release/answer
    sed -i 's/20, 22/20, 23/' src/bin/answer.rs
    cargo build -q --release && test "$(../target/release/answer)" = 43
    git add -A && git commit -qm first && test -z "$(git status --porcelain)"
    git worktree add -q ../tree -b side && cd ../tree
    echo '// more' >>src/lib.rs && git commit -qam side && CARGO_TARGET_DIR=$PWD/../target cargo build -q --release
    cd ../repo && git merge -q side && git worktree remove ../tree && git gc -q --prune=now
}

look() {
    git -C repo fsck --full --strict >&2
    test -z "$(git -C repo status --porcelain)"
    test "$(stat -c %s repo/link)" = 10
    test "$(target/release/answer)" = 43 && test "$(./stripped)" = 42
    (cd repo && cargo build -q --release --offline)
}
