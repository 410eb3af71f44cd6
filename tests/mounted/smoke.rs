//! Every operation once, in both cache modes. Each test makes a state through the mount, looks at it, remounts and looks again: what the
//! kernel's caches showed must be what the store holds. On the way out the store is checked.

use crate::mount::Mount;
use crate::{content, directories, holes, locks, mappings, names, sockets, times, xattrs};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What can be seen of one file, without what a remount may change (access time, blocks).
#[derive(Debug, PartialEq, Eq)]
pub struct Seen {
    inode: u64,
    mode: u32,
    links: u64,
    owner: (u32, u32),
    device: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    /// Checksum of the content, or of the target of a link.
    content: u32,
    xattrs: BTreeMap<String, Vec<u8>>,
}

/// Everything below `root`.
pub fn look(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut seen = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        if path.symlink_metadata().unwrap().is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        seen.insert(path.strip_prefix(root).unwrap().to_owned(), look_at(&path));
    }
    seen
}

fn look_at(path: &Path) -> Seen {
    let metadata = path.symlink_metadata().unwrap();
    let content = match metadata.file_type() {
        kind if kind.is_symlink() => crc32c::crc32c(path.read_link().unwrap().as_os_str().as_bytes()),
        // The tests of sparse files look at the ends themselves; reading holes of terabytes shows nothing.
        kind if kind.is_file() && metadata.size() < 1 << 30 => crc32c::crc32c(&std::fs::read(path).unwrap()),
        _ => 0,
    };
    Seen {
        inode: metadata.ino(),
        mode: metadata.mode(),
        links: metadata.nlink(),
        owner: (metadata.uid(), metadata.gid()),
        device: metadata.rdev(),
        size: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
        content,
        xattrs: names::xattrs(path),
    }
}

/// Runs one operation on a fresh mount and looks at the outcome before and after a remount.
fn in_mode(options: &str, operation: fn(&Path)) {
    let mut mount = Mount::new(options);
    operation(&mount.path());
    let before = look(&mount.path());
    mount.remount();
    let after = look(&mount.path());
    for (path, seen) in &before {
        assert_eq!(after.get(path), Some(seen), "{} after the remount", path.display());
    }
    assert_eq!(before.len(), after.len(), "more files after the remount");
}

macro_rules! in_both_cache_modes {
    ($($module:ident :: $operation:ident),* $(,)?) => {
        mod writeback {
            $(#[test]
            fn $operation() {
                super::in_mode("cache=writeback", super::$module::$operation);
            })*
        }
        mod none {
            $(#[test]
            fn $operation() {
                super::in_mode("cache=none", super::$module::$operation);
            })*
        }
    };
}

in_both_cache_modes![
    content::write_and_read,
    content::overwrite_and_append,
    content::direct_io,
    content::synchronous_writes,
    content::truncate,
    content::fallocate,
    content::sparse_to_eight_tebibytes,
    content::shared_mapping,
    content::a_mapping_stamps_its_file,
    content::copy,
    content::many_writers,
    content::unlinked_but_open,
    content::set_user_id_is_cleared_by_writes,
    content::space_is_counted,
    names::create_and_remove,
    names::errors,
    names::rename,
    names::whiteout,
    names::hard_links,
    names::symbolic_links,
    names::ten_thousand_entries,
    names::listing_while_removing,
    names::special_files,
    names::extended_attributes,
    names::owner_mode_times,
    names::set_group_id_is_inherited,
    names::long_names,
    directories::a_replaced_name_is_always_there,
    directories::two_names_show_the_same,
    directories::the_size_of_a_link,
    directories::unlinked_while_others_close,
    directories::going_back_in_a_listing,
    directories::the_same_few_names,
    directories::as_many_links_as_there_may_be,
    directories::renames_that_cannot_be,
    directories::names_of_any_bytes,
    directories::modes_without_a_umask,
    holes::a_gap_between_writes,
    holes::a_write_beyond_a_truncation,
    holes::only_the_bytes_asked_for,
    holes::preallocation_and_the_size,
    holes::a_hole_over_the_end,
    holes::a_copy_into_preallocation,
    holes::seeking_for_data,
    holes::blocks_of_a_full_file,
    holes::truncation_frees_preallocation,
    holes::copies_that_end_early,
    holes::truncation_while_opening,
    locks::whole_files,
    locks::ranges_of_processes,
    locks::ranges_of_open_files,
    mappings::a_mapped_tail_of_appends,
    mappings::scattered_stores,
    mappings::mappings_over_the_end,
    mappings::scribbled_buffers,
    mappings::syncing_and_advice,
    sockets::unix_sockets,
    sockets::special_files_without_privilege,
    sockets::watching_a_directory,
    times::old_times_stay,
    times::only_the_times_asked_for,
    times::times_far_away,
    times::change_and_modification_agree,
    times::times_of_changes_past_the_cache,
    times::access_follows_modification,
    xattrs::sizes_of_buffers,
    xattrs::create_replace_remove,
    xattrs::limits_and_classes,
];
