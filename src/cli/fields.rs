//! What the objects that `--json` prints say, for `sumfs COMMAND --help` and the manual pages. A test on a mount holds the answers
//! against these texts. Fields may be added; none is renamed, or changes what it means, without a word in the README.

/// Of `sumfs mkfs`.
pub const MKFS: &str = "\
Fields of --json:
  store, uuid, label    the store that was made
  size_bytes            what it can hold
  data_profile          single or dup";

/// Of `sumfs info`.
pub const INFO: &str = "\
Fields of --json:
  store, uuid, label    the store
  mountpoint, pid       where it is mounted and who serves it; absent and null for one that is not mounted
  version               of the program that answers
  format_version        of the store
  features              its features: lists of names under compat, ro_compat and incompat
  data_profile          single or dup
  size_bytes, used_bytes, free_bytes, group_bytes, inodes
  devices               a list: id, path, bytes, state (as device list has it)
  journal               path (null: in the store), bytes
  image                 what a lost index can be made from: state, generation, when it was completed, sizes, age_seconds, failure
  read_only_reason      null, or why nothing can be written";

/// Of `sumfs stats`.
pub const STATS: &str = "\
Fields of --json; everything counts since it was mounted:
  space                 blocks of 4096 bytes: in all, free, reserved, promised to preallocated files
  metadata              journal and index: sizes, what is pending
  cache                 bytes cached and dirty, inodes
  devices               a list: id, path, bytes, state, is_set_aside, allocated_bytes, used_bytes (see device list), and the
                        read_errors, write_errors, checksum_errors and repaired_blocks of each
  stripes               null without parity; else how many were full and narrow, padded_bytes, read_to_write_bytes
  plug                  null without parity; else batches of direct writes by what released them (full, time, idle, sync), and
                        held_bytes now
  read_only_reason      null, or why nothing can be written
  counters              in groups: operations (requests by kind), requests, refused (by the reason for which an operation had to
                        wait), io, checksum, transaction, cache, healed, and latency with count, mean_us, p50_us, p99_us and
                        max_us (bounds in microseconds) of each kind";

/// Of `sumfs map`.
pub const MAP: &str = "\
Fields of --json:
  inode, size           the file
  extents               how many; extents_per_mebibyte is their density
  ranges                a list: offset, length, kind (data or zeros), and for data block, device and device_offset";

/// Of `sumfs device list`.
pub const DEVICE_LIST: &str = "\
Fields of --json:
  data_profile          how new data is kept
  devices               a list:
    id, path, bytes     which, where, and how much of it the store has
    state               present, missing, set aside (it failed too often; nothing is asked of it), or stale (there again, but it
                        missed something: a scrub mends it)
    is_set_aside        nothing is read from it or written to it
    allocated_bytes     in groups
    used_bytes          of these, with data or parity
    read_errors, write_errors, checksum_errors, repaired_blocks
                        what it did wrong since the store was mounted";

/// Of `sumfs device status` and what it shows the begin of.
pub const DEVICE_STATUS: &str = "\
Fields of --json:
  state                 never, running, paused, finished, cancelled, or failed
  error                 null, or why it could not go on
  from, to              ids of the device that goes and of the one that takes its place (null: any)
  began, ended          seconds since 1970
  groups_moved, groups_left
                        copies and columns of groups
  bytes_copied          in all; unused parts of groups are passed over
  bytes_total, bytes_done
                        of the groups that this mount has to move, and has moved
  unreadable_blocks     blocks that could neither be read nor be computed from the others";

/// Of `sumfs check`.
pub const CHECK: &str = "\
Fields of --json:
  clean, exit_code      the result
  issues                a list: issue is the kind, the rest is what it needs to be found again
  messages              the same as sentences
  issues_not_listed     how many more there are
  files, directories, extents, blocks_used
                        what the store holds; blocks are of 4096 bytes
  blocks_verified       blocks compared with their checksums (--data)
  lost_bytes            bytes of files that read as errors because their data is lost; writing them anew cures it
  healed                damaged copies that have a good one; the next mount writes them anew
  replayed_transactions transactions that were only in the journal";

/// Of `sumfs scrub`.
pub const SCRUB: &str = "\
Fields of --json:
  state                 never, running, interrupted, paused, finished, cancelled or failed; error says why it failed
  number                counts scrubs; began and ended are seconds since 1970, or null
  phase                 what a running one is at
  limit_bytes_per_second, bytes_per_second, seconds_left, seconds_worked
                        pace; null where there is none
  bytes_done, bytes_total
                        data; values_done counts metadata
  bad_blocks, repaired_blocks, damaged_values, healed_copies
                        what was found: copies of blocks, metadata values, copies of index pages, superblocks and labels
  exit_code             what `scrub status` ends with: 0 clean, 1 all repaired, 4 damage is left
  damage                as of `sumfs damage list` (status, and start or resume that waited)";

/// Of `sumfs damage`.
pub const DAMAGE: &str = "\
Fields of --json:
  ranges                a list: file (path and inode; null where no file has it), offset, length, copy, address, device,
                        device_offset, unreadable (else its checksum is wrong), repaired
  values                metadata that is damaged, as a list of sentences";

/// Of `sumfs index rebuild`.
pub const INDEX: &str = "\
Fields of --json:
  image_generation, continued_by_generation, image_completed, image_sequence, image_bad_frames
                        the image that was taken, when it was completed, its last transaction, what of it was bad
  journal_records, sequence
                        transactions that the journal had behind it, and the last one
  missing               null, or what is lost
  records, index_bytes  the new index
  damaged_index         where the old one is kept, or null";
