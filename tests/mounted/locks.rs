//! Locks between processes: flock, POSIX record locks and those of open files, as public bug reports tell of them (C..: the number of
//! the report's case). The kernel keeps them for FUSE; a daemon that took them over would have to do as well. Each on a fresh mount,
//! run by [`smoke`](crate::smoke). Python does it, because the locks of a process cannot be tested by its own threads.

use crate::mount::run;
use std::path::Path;

const COMMON: &str = r#"
import errno, fcntl, os, struct, subprocess, sys
os.chdir(sys.argv[1])
path = "file"
with open(path, "wb") as file:
    file.write(b"x" * 10000)

def refused(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        assert error.errno in (errno.EWOULDBLOCK, errno.EACCES), error
        return True
    return False

class Child:
    """Another process, which does what it is told line by line."""
    def __init__(self):
        program = '''
import fcntl, os, struct, sys
def refused(call, *arguments):
    try:
        call(*arguments)
    except OSError:
        return True
    return False
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
'''
        self.process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    def do(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n", line
    def kill(self):
        self.process.kill()
        self.process.wait()

NB = fcntl.LOCK_NB
"#;

fn python(root: &Path, text: &str) {
    run("python3", &["-c", &format!("{COMMON}{text}"), root.to_str().unwrap()]).expect_success();
}

/// Two share a lock; an upgrade is refused and keeps the share; a third gets nothing; the end of a holder releases (C82).
pub fn whole_files(root: &Path) {
    python(
        root,
        r#"
one, two, three = (os.open(path, os.O_RDWR) for _ in range(3))
child = Child()
child.do(f"file = os.open('{path}', os.O_RDWR); fcntl.flock(file, fcntl.LOCK_SH)")
fcntl.flock(one, fcntl.LOCK_SH | NB)
fcntl.flock(two, fcntl.LOCK_SH | NB)
assert refused(fcntl.flock, one, fcntl.LOCK_EX | NB)
assert refused(fcntl.flock, three, fcntl.LOCK_EX | NB)
# flock(2) may lose the share in a failed upgrade, so that it is asked for again.
fcntl.flock(one, fcntl.LOCK_SH | NB)
assert refused(fcntl.flock, three, fcntl.LOCK_EX | NB)
os.close(two)
assert refused(fcntl.flock, one, fcntl.LOCK_EX | NB)
child.kill()
fcntl.flock(one, fcntl.LOCK_EX | NB)
assert refused(fcntl.flock, three, fcntl.LOCK_SH | NB)
# The lock belongs to what was opened, also through a copy of the descriptor.
copy = os.dup(one)
os.close(one)
assert refused(fcntl.flock, three, fcntl.LOCK_SH | NB)
fcntl.flock(copy, fcntl.LOCK_UN)
fcntl.flock(three, fcntl.LOCK_EX | NB)
os.unlink(path)
"#,
    );
}

/// Ranges: another process that opens and closes the file takes no lock away, the own process that closes any descriptor of it
/// takes all (C83); what waits gets the lock when its holder is killed.
pub fn ranges_of_processes(root: &Path) {
    python(
        root,
        r#"
one = os.open(path, os.O_RDWR)
fcntl.lockf(one, fcntl.LOCK_EX | NB, 100, 50)
child, other = Child(), Child()
child.do(f"file = os.open('{path}', os.O_RDWR)")
child.do(f"os.close(os.open('{path}', os.O_RDONLY))")
for at, length, expected in [(0, 50, False), (150, 0, False), (149, 1, True), (0, 51, True), (60, 10, True)]:
    child.do(f"assert refused(fcntl.lockf, file, fcntl.LOCK_SH | fcntl.LOCK_NB, {length}, {at}) == {expected}")
child.do("fcntl.lockf(file, fcntl.LOCK_UN)")
# What F_GETLK says.
who = f"struct.unpack('hhqqi', fcntl.fcntl(file, fcntl.F_GETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0))[:28])"
child.do(f"found = {who}; assert found == (fcntl.F_WRLCK, 0, 50, 100, {os.getpid()}), found")
# Waiting for a lock that its holder gives up.
other.do(f"file = os.open('{path}', os.O_RDWR)")
other.do("fcntl.lockf(file, fcntl.LOCK_EX, 10, 5000)")
os.close(os.open(path, os.O_RDONLY))
child.do("fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 100, 50)")
child.process.stdin.write("fcntl.lockf(file, fcntl.LOCK_EX, 10, 5000)\n")
child.process.stdin.flush()
other.kill()
assert child.process.stdout.readline() == "done\n"
child.kill()
fcntl.lockf(one, fcntl.LOCK_EX | NB)
os.unlink(path)
"#,
    );
}

/// Locks of open files: of one process, and released by the last close of what was opened.
pub fn ranges_of_open_files(root: &Path) {
    python(
        root,
        r#"
F_OFD_GETLK, F_OFD_SETLK = 36, 37
def lock(file, kind, at, length):
    fcntl.fcntl(file, F_OFD_SETLK, struct.pack("hhqqi4x", kind, 0, at, length, 0))
one, two = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
lock(one, fcntl.F_WRLCK, 0, 100)
assert refused(lock, two, fcntl.F_RDLCK, 99, 1)
lock(two, fcntl.F_WRLCK, 100, 100)
assert refused(fcntl.lockf, one, fcntl.LOCK_EX | NB, 10, 150), "they and those of processes exclude each other"
os.close(os.open(path, os.O_RDONLY))
assert refused(lock, two, fcntl.F_RDLCK, 0, 1), "another close takes nothing away"
copy = os.dup(one)
os.close(one)
assert refused(lock, two, fcntl.F_RDLCK, 0, 1)
os.close(copy)
lock(two, fcntl.F_WRLCK, 0, 0)
child = Child()
child.do(f"file = os.open('{path}', os.O_RDWR); assert refused(fcntl.lockf, file, fcntl.LOCK_SH | fcntl.LOCK_NB)")
os.close(two)
child.do("fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)")
child.kill()
os.unlink(path)
"#,
    );
}
