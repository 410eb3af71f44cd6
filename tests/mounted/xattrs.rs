//! Extended attributes, as public bug reports tell of them (C..: the number of the report's case); each on a fresh mount, run by
//! [`smoke`](crate::smoke), which looks at all of them again after a remount.

use rustix::fs::{
    XattrFlags, getxattr, getxattr_query, lgetxattr, listxattr, listxattr_query, llistxattr, lremovexattr, lsetxattr, setxattr,
};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Buffers of no, of exact and of too little size, for values and for lists, when there are some and when there are none (C47).
pub fn sizes_of_buffers(root: &Path) {
    let path = root.join("file");
    fs::write(&path, "x").unwrap();
    let list = |length: usize| match length {
        0 => listxattr_query(&path),
        _ => listxattr(&path, &mut vec![0; length][..]),
    };
    for length in [0, 1, 100] {
        assert_eq!(list(length), Ok(0), "none are there");
    }
    for length in [0, 1, 100] {
        assert_eq!(getxattr(&path, "user.a", &mut vec![0; length][..]), Err(Errno::NODATA));
        assert_eq!(getxattr_query(&path, "user.a"), Err(Errno::NODATA));
    }
    for (name, length) in [("user.a", 1), ("user.long-name", 300), ("user.large", 40_000), ("trusted.b", 0)] {
        setxattr(&path, name, &vec![b'v'; length], XattrFlags::empty()).unwrap();
        let get = |room: usize| match room {
            0 => getxattr_query(&path, name),
            _ => getxattr(&path, name, &mut vec![0; room][..]),
        };
        assert_eq!(get(0), Ok(length), "{name}: the length is told");
        assert_eq!(get(length + 1), Ok(length), "{name}");
        assert_eq!(get(length), Ok(length), "{name}");
        if length > 1 {
            assert_eq!(get(length - 1), Err(Errno::RANGE), "{name}");
            assert_eq!(get(1), Err(Errno::RANGE), "{name}");
        }
    }
    let length = list(0).unwrap();
    assert_eq!(length, "user.a0user.long-name0user.large0trusted.b0".len());
    assert_eq!((list(length), list(length + 1)), (Ok(length), Ok(length)));
    assert_eq!((list(length - 1), list(1)), (Err(Errno::RANGE), Err(Errno::RANGE)));
}

/// Creating, replacing and removing tell exactly what is wrong (C46) and change nothing then.
pub fn create_replace_remove(root: &Path) {
    fs::write(root.join("file"), "x").unwrap();
    fs::create_dir(root.join("directory")).unwrap();
    symlink("nowhere", root.join("link")).unwrap();
    for name in ["file", "directory", "link"] {
        let path = root.join(name);
        let set = |value: &[u8], flags| lsetxattr(&path, "trusted.name", value, flags);
        let value = || {
            let mut value = [0; 100];
            let length = lgetxattr(&path, "trusted.name", &mut value[..]).unwrap();
            value[..length].to_vec()
        };
        assert_eq!(set(b"one", XattrFlags::REPLACE), Err(Errno::NODATA), "{name}");
        assert_eq!(lremovexattr(&path, "trusted.name"), Err(Errno::NODATA), "{name}");
        set(b"one", XattrFlags::CREATE).unwrap();
        assert_eq!(set(b"two", XattrFlags::CREATE), Err(Errno::EXIST), "{name}");
        assert_eq!(value(), b"one", "{name}");
        set(b"", XattrFlags::REPLACE).unwrap();
        assert_eq!(value(), b"", "{name}");
        set(b"longer than before", XattrFlags::empty()).unwrap();
        assert_eq!(value(), b"longer than before", "{name}");
        lremovexattr(&path, "trusted.name").unwrap();
        assert_eq!(lremovexattr(&path, "trusted.name"), Err(Errno::NODATA), "{name}");
        assert_eq!(llistxattr(&path, &mut [0; 100][..]), Ok(0), "{name}");
        set(b"kept", XattrFlags::empty()).unwrap();
    }
}

/// Names and values at and over their limits, and classes that there are not: setting, getting and listing agree (C49).
pub fn limits_and_classes(root: &Path) {
    let path = root.join("file");
    fs::write(&path, "x").unwrap();
    let longest = format!("user.{}", "n".repeat(250));
    setxattr(&path, longest.as_str(), b"v", XattrFlags::empty()).unwrap();
    assert_eq!(setxattr(&path, format!("{longest}n").as_str(), b"v", XattrFlags::empty()), Err(Errno::RANGE));
    setxattr(&path, "user.largest", &[1; 65_536], XattrFlags::empty()).unwrap();
    assert_eq!(setxattr(&path, "user.larger", &[1; 65_537], XattrFlags::empty()), Err(Errno::TOOBIG));
    for name in ["none.such", "user", "os2.attribute"] {
        assert_eq!(setxattr(&path, name, b"v", XattrFlags::empty()), Err(Errno::OPNOTSUPP), "{name}");
        let got = getxattr(&path, name, &mut [0; 10][..]);
        assert!(matches!(got, Err(Errno::OPNOTSUPP | Errno::NODATA)), "{name}: {got:?}");
    }
    assert_eq!(setxattr(&path, "user.", b"v", XattrFlags::empty()), Err(Errno::INVAL));
    // User attributes are for files and directories only; the kernel sees to that.
    symlink("file", root.join("link")).unwrap();
    assert_eq!(lsetxattr(root.join("link"), "user.a", b"v", XattrFlags::empty()), Err(Errno::PERM));
    let mut names = vec![0; 1000];
    let length = listxattr(&path, &mut names[..]).unwrap();
    let names = String::from_utf8(names[..length].to_vec()).unwrap();
    assert_eq!(names.split('\0').filter(|name| !name.is_empty()).count(), 2, "{names}");
}
