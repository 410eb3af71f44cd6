//! File handles, by which NFS servers and backup programs name files: they outlive what the kernel remembers, and remounts.

use crate::mount::{Mount, run};
use std::path::Path;

/// The two calls, which Python does not have.
const CALLS: &str = r#"
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)

class Handle(ctypes.Structure):
    _fields_ = [('bytes', ctypes.c_uint), ('type', ctypes.c_int), ('data', ctypes.c_ubyte * 128)]

def handle_of(path):
    handle, mount = Handle(128), ctypes.c_int()
    assert libc.name_to_handle_at(-100, path.encode(), ctypes.byref(handle), ctypes.byref(mount), 0) == 0, os.strerror(ctypes.get_errno())
    return bytes(handle)

def open_by(handle):
    top = os.open(os.environ['TOP'], os.O_RDONLY)
    file = libc.open_by_handle_at(top, ctypes.byref(Handle.from_buffer_copy(handle)), os.O_RDONLY)
    error = ctypes.get_errno()
    os.close(top)
    if file < 0:
        raise OSError(error, os.strerror(error))
    return file

def is_stale(handle):
    try:
        os.close(open_by(handle))
    except OSError as error:
        return error.errno == errno.ESTALE
    return False

def forget():
    with open('/proc/sys/vm/drop_caches', 'w') as caches:
        caches.write('2')

os.chdir(os.environ['TOP'])
"#;

fn python(root: &Path, script: &str) -> String {
    let top = format!("TOP={}", root.display());
    run("env", &[&top, "python3", "-c", &format!("{CALLS}{script}")]).expect_success().stdout
}

#[test]
fn handles_outlive_what_the_kernel_remembers() {
    for options in ["cache=writeback", "cache=none"] {
        let mut mount = Mount::with_size("64M", options);
        let handles = python(
            &mount.path(),
            r#"
os.makedirs('a/b/c')
for name in ['a/b/file', 'a/b/c/gone', 'a/b/c/moved', 'a/b/linked']:
    open(name, 'w').write(name)
names = ['a/b/file', 'a/b/c/gone', 'a/b/c/moved', 'a/b/linked', 'a/b/c']
handles = [handle_of(name) for name in names]
open_one = open('a/b/c/gone')
os.rename('a/b/c/moved', 'moved')
os.link('a/b/linked', 'link')
os.unlink('a/b/linked')
os.unlink('a/b/c/gone')
forget()
# As long as it is open a file without a name can be found; afterwards it is gone.
os.close(open_by(handles[1]))
open_one.close()
forget()
assert is_stale(handles[1])
for handle, name in zip(handles, names):
    if name != 'a/b/c/gone' and name != 'a/b/c':
        file = open_by(handle)
        assert os.read(file, 100).decode() == name
        os.close(file)
directory = open_by(handles[4])
assert os.readlink(f'/proc/self/fd/{directory}') == os.environ['TOP'] + '/a/b/c', 'its place in the tree is found'
os.close(directory)
print(' '.join(handle.hex() for handle in handles))
"#,
        );
        mount.remount();
        let script = format!(
            r#"
file, gone, moved, linked, directory = [bytes.fromhex(handle) for handle in '{}'.split()]
assert is_stale(gone)
for handle, content in [(file, 'a/b/file'), (moved, 'a/b/c/moved'), (linked, 'a/b/linked')]:
    found = open_by(handle)
    assert os.read(found, 100).decode() == content
    os.close(found)
os.rmdir('a/b/c')
forget()
assert is_stale(directory)
"#,
            handles.trim()
        );
        python(&mount.path(), &script);
    }
}
