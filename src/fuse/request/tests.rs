//! Every request as the kernel lays it out, from the device and from a ring, cut short, and mutated.

use super::*;
use crate::fuse::abi::out_header;

const CALLER: Caller = Caller { uid: 1000, gid: 100, pid: 4321 };

fn bytes(opcode: u32, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    message.extend((40 + body.len() as u32).to_ne_bytes());
    message.extend(opcode.to_ne_bytes());
    message.extend(9u64.to_ne_bytes());
    message.extend(7u64.to_ne_bytes());
    [1000u32, 100, 4321, 0].iter().for_each(|word| message.extend(word.to_ne_bytes()));
    message.extend_from_slice(body);
    message
}

/// Fields of 64 bits; a pair of fields of 32 bits is one, the first in the lower half.
fn fields(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Decodes it as from the device and as from a ring, whose fixed part has something behind it, and compares.
fn decoded(opcode: u32, fixed: &[u8], rest: &[u8], expected: &str) {
    let dialect = Dialect { setxattr_ext: true };
    let whole = bytes(opcode, &[fixed, rest].concat());
    let from_device = Request::decode(&Message::whole(&whole).unwrap(), dialect).unwrap();
    assert_eq!((from_device.unique, from_device.node, from_device.caller), (9, InodeNumber(7), CALLER));
    let shown = format!("{:?}", from_device.body);
    assert_eq!(shown, expected, "opcode {opcode}");
    let padded = [fixed, &[0xee; 20]].concat();
    let from_ring = Message { header: &whole[..40], fixed: &padded, rest: Some(rest) };
    assert_eq!(format!("{:?}", Request::decode(&from_ring, dialect).unwrap().body), shown, "opcode {opcode} from a ring");
    for shorter in 40..whole.len() {
        // Cut short it is refused, or says the same: what was cut off has no meaning.
        let cut = Request::decode(&Message::whole(&whole[..shorter]).unwrap(), dialect);
        assert!(cut.is_none_or(|request| format!("{:?}", request.body) == shown), "opcode {opcode} cut to {shorter}");
    }
}

#[test]
fn names() {
    decoded(opcode::LOOKUP, &[], b"ab\0", "Lookup { name: [97, 98] }");
    decoded(opcode::UNLINK, &[], b"a\0", "Unlink { name: [97] }");
    decoded(opcode::RMDIR, &[], b"a\0", "Rmdir { name: [97] }");
    decoded(opcode::SYMLINK, &[], b"a\0b\0", "Symlink { name: [97], target: [98] }");
    decoded(opcode::LINK, &fields(&[12]), b"a\0", "Link { node: InodeNumber(12), new_name: [97] }");
    decoded(opcode::MKDIR, &fields(&[0o755 | 0o22 << 32]), b"a\0", "Mkdir { name: [97], mode: 493, umask: 18 }");
    let mknod = fields(&[0o644 | 5 << 32, 0o22]);
    decoded(opcode::MKNOD, &mknod, b"a\0", "Mknod { name: [97], mode: 420, rdev: 5, umask: 18 }");
    let create = fields(&[0o644 << 32, 0o22]);
    decoded(opcode::CREATE, &create, b"a\0", "Create { name: [97], mode: 420, umask: 18 }");
    decoded(opcode::TMPFILE, &create, b"a\0", "Tmpfile { mode: 420, umask: 18 }");
    let new = "new_parent: InodeNumber(3), new_name: [98]";
    decoded(opcode::RENAME, &fields(&[3]), b"a\0b\0", &format!("Rename {{ name: [97], {new}, flags: 0 }}"));
    decoded(opcode::RENAME2, &fields(&[3, 2]), b"a\0b\0", &format!("Rename {{ name: [97], {new}, flags: 2 }}"));
    decoded(opcode::READLINK, &[], &[], "Readlink");
}

#[test]
fn data() {
    let (direct, sync) = (libc::O_DIRECT as u64, libc::O_SYNC as u64);
    let read = "Read { offset: 4096, size: 512, flags: ReadFlags { direct: true, no_atime: false } }";
    decoded(opcode::READ, &fields(&[1, 4096, 512, 0, direct]), &[], read);
    let flags = "WriteFlags { from_cache: false, direct: false, sync: true, kill_suid: true }";
    let write = fields(&[1, 4096, 3 | 4 << 32, 0, sync]);
    decoded(opcode::WRITE, &write, b"xyz", &format!("Write {{ offset: 4096, data: [120, 121, 122], flags: {flags} }}"));
    decoded(opcode::FSYNC, &fields(&[1, 1]), &[], "Fsync { data_only: true }");
    decoded(opcode::FSYNCDIR, &fields(&[1, 0]), &[], "Fsync { data_only: false }");
    decoded(opcode::SYNCFS, &fields(&[0]), &[], "Syncfs");
    decoded(opcode::FALLOCATE, &fields(&[1, 2, 3, 4]), &[], "Fallocate { offset: 2, length: 3, mode: 4 }");
    let copy =
        |wide| format!("CopyFileRange {{ offset: 2, to: InodeNumber(3), to_offset: 5, length: 6, has_wide_answer: {wide} }}");
    decoded(opcode::COPY_FILE_RANGE, &fields(&[1, 2, 3, 4, 5, 6, 0]), &[], &copy(false));
    decoded(opcode::COPY_FILE_RANGE_64, &fields(&[1, 2, 3, 4, 5, 6, 0]), &[], &copy(true));
}

#[test]
fn attributes() {
    decoded(opcode::GETATTR, &fields(&[0, 0]), &[], "Getattr { of_open_file: false }");
    decoded(opcode::GETATTR, &fields(&[1, 9]), &[], "Getattr { of_open_file: true }");
    decoded(opcode::STATX, &fields(&[0, 0, 0]), &[], "Statx");
    decoded(opcode::STATFS, &[], &[], "Statfs");
    let setxattr = fields(&[2 | 1 << 32, 1]);
    let expected = "Setxattr { name: [97], value: [8, 9], flags: 1, kills_sgid: true }";
    decoded(opcode::SETXATTR, &setxattr, b"a\0\x08\x09", expected);
    decoded(opcode::GETXATTR, &fields(&[5]), b"a\0", "Getxattr { name: [97], size: 5 }");
    decoded(opcode::LISTXATTR, &fields(&[5]), &[], "Listxattr { size: 5 }");
    decoded(opcode::REMOVEXATTR, &[], b"a\0", "Removexattr { name: [97] }");
    decoded(
        opcode::IOCTL,
        &fields(&[1, 7 << 32, 0, 2 | 8 << 32]),
        b"xy",
        "Ioctl { command: 7, input: [120, 121], output_bytes: 8 }",
    );
    decoded(opcode::READDIR, &fields(&[1, 2, 300, 0, 0]), &[], "Readdir { offset: 2, size: 300 }");
    decoded(opcode::READDIRPLUS, &fields(&[1, 2, 300, 0, 0]), &[], "Readdirplus { offset: 2, size: 300 }");
    decoded(opcode::FORGET, &fields(&[5]), &[], "Forget { count: 5 }");
    for (flags, writes, appends) in [(0o100_000, false, false), (1, true, false), (0o2002, true, true)] {
        decoded(opcode::OPEN, &fields(&[flags]), &[], &format!("Open {{ writes: {writes}, appends: {appends} }}"));
    }
    decoded(opcode::RELEASE, &fields(&[0, 0, 0]), &[], "Release");
    decoded(opcode::DESTROY, &[], &[], "Destroy");
    decoded(99, &[], b"whatever", "Other");
}

#[test]
fn many_forgets() {
    let pairs = fields(&[5, 1, 6, 2]);
    let message = bytes(opcode::BATCH_FORGET, &[fields(&[2]), pairs].concat());
    let request = Request::decode(&Message::whole(&message).unwrap(), Dialect::default()).unwrap();
    let Body::BatchForget { pairs } = request.body else { panic!("{request:?}") };
    assert_eq!(forgets(pairs).collect::<Vec<_>>(), [(InodeNumber(5), 1), (InodeNumber(6), 2)]);
    let too_many = bytes(opcode::BATCH_FORGET, &fields(&[3, 5, 1, 6, 2]));
    assert!(Request::decode(&Message::whole(&too_many).unwrap(), Dialect::default()).is_none());
}

fn setattr_of(valid: u32) -> SetAttributes {
    let mut body = fields(&[valid.into(), 1, 12345, 0]);
    [-7i64, i64::MIN, i64::MAX].iter().for_each(|seconds| body.extend(seconds.to_ne_bytes()));
    [5u32, 999_999_999, u32::MAX, 0o644, 0, 1, 2, 0].iter().for_each(|word| body.extend(word.to_ne_bytes()));
    let message = bytes(opcode::SETATTR, &body);
    match Request::decode(&Message::whole(&message).unwrap(), Dialect::default()).unwrap().body {
        Body::Setattr(setattr) => setattr,
        body => panic!("{body:?}"),
    }
}

#[test]
fn setattr_sets_what_its_bits_say() {
    let only_kills = SetAttributes { kill_suid: true, ..SetAttributes::default() };
    assert_eq!(setattr_of(0), only_kills);
    assert_eq!(SetAttributes { changed: None, ..setattr_of(fattr::CTIME) }, only_kills);
    for named in [fattr::MODE, fattr::UID, fattr::GID, fattr::SIZE, fattr::ATIME, fattr::MTIME | fattr::CTIME] {
        assert_eq!((setattr_of(named).kill_suid, setattr_of(named | fattr::KILL_SUIDGID).kill_suid), (false, true));
    }
    let time = |seconds, nanoseconds| Timestamp { seconds, nanoseconds };
    let all = setattr_of(!(fattr::ATIME_NOW | fattr::MTIME_NOW));
    let expected = SetAttributes {
        mode: Some(0o644),
        uid: Some(1),
        gid: Some(2),
        size: Some(12345),
        accessed: Some(SetTime::To(time(-7, 5))),
        modified: Some(SetTime::To(time(i64::MIN, 999_999_999))),
        changed: Some(time(i64::MAX, 999_999_999)),
        kill_suid: true,
    };
    assert_eq!(all, expected);
    let now = setattr_of(fattr::ATIME | fattr::ATIME_NOW | fattr::MTIME_NOW);
    assert_eq!((now.accessed, now.modified), (Some(SetTime::Now), None));
}

#[test]
fn setxattr_has_two_lengths() {
    let message = bytes(opcode::SETXATTR, &[&fields(&[1])[..], b"n\0v"].concat());
    let request = Request::decode(&Message::whole(&message).unwrap(), Dialect::default()).unwrap();
    assert!(matches!(request.body, Body::Setxattr { name: b"n", value: b"v", flags: 0, kills_sgid: false }));
}

/// Whatever bytes come, decoding ends, without a panic, and what it gives lies within the message.
#[test]
fn mutated_requests_never_panic() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed_u64);
    println!("SEED={seed}");
    let mut state = seed | 1;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as usize % below.max(1)
    };
    let mut decoded = 0;
    for round in 0..200_000 {
        let mut message = bytes((round % 60) as u32, &vec![0; random(140)]);
        for _ in 0..random(12) {
            let at = random(message.len());
            message[at] = if random(2) == 0 { random(256) as u8 } else { [0, 1, 0x7f, 0xff][random(4)] };
        }
        message.truncate(message.len() - random(2) * random(message.len()));
        let dialect = Dialect { setxattr_ext: random(2) == 0 };
        let Some(whole) = Message::whole(&message) else { continue };
        let cut = random(whole.fixed.len() + 1);
        let in_parts = Message { fixed: &whole.fixed[..cut], rest: Some(&whole.fixed[cut..]), ..whole };
        for request in [whole, in_parts].iter().filter_map(|message| Request::decode(message, dialect)) {
            decoded += 1;
            if let Body::BatchForget { pairs } = request.body {
                assert!(forgets(pairs).count() <= message.len() / 16);
            }
            assert!(!format!("{request:?}").is_empty());
        }
    }
    assert!(decoded > 100_000, "hardly anything was decoded: {decoded}");
    assert_eq!(unique(&out_header(0, 0, 0)[..8]), None);
}
