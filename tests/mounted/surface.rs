//! What programs ask for beside reading and writing files, by the tools that ask for it: files without a name.

use crate::mount::{Mount, Ran, run};
use std::path::Path;

/// Runs Python in `root`; whatever the script asserts must hold.
fn python(root: &Path, script: &str) -> Ran {
    let script = format!("import os, errno\nos.chdir({:?})\n{script}", root.to_str().unwrap());
    run("python3", &["-c", &script]).expect_success()
}

#[test]
fn files_without_a_name() {
    for options in ["cache=writeback", "cache=none"] {
        let mut mount = Mount::new(options);
        python(
            &mount.path(),
            r#"
f = os.open('.', os.O_TMPFILE | os.O_RDWR, 0o640)
os.write(f, b'kept' * 5000)
assert os.fstat(f).st_nlink == 0 and os.listdir('.') == []
os.link(f'/proc/self/fd/{f}', 'named', src_dir_fd=f, follow_symlinks=True)
assert os.fstat(f).st_nlink == 1
os.fsync(f)
g = os.open('.', os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
os.write(g, b'lost' * 5000)
try:
    os.link(f'/proc/self/fd/{g}', 'never', src_dir_fd=g, follow_symlinks=True)
    assert False
except OSError as error:
    assert error.errno == errno.ENOENT, error
assert os.pread(g, 4, 100) == b'lost'
os.close(f)
os.close(g)
assert os.listdir('.') == ['named']
"#,
        );
        mount.remount();
        assert_eq!(std::fs::read(mount.path().join("named")).unwrap(), b"kept".repeat(5000));
    }
}
