//! Everything that a check can find wrong, one variant each, and what to tell a person about it.
//!
//! A variant stands for one fault, not for its consequences: where one fault could be seen from two sides, only one side
//! reports it. `tests/in_process/issues.rs` makes each of them on purpose.

use serde::Serialize;

/// How bad an issue is; the order is from harmless to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// A copy is damaged and the other one is whole; the next mount writes it anew.
    Harmless,
    /// A count or a reference is wrong, or space is lost; every file can still be read as it was written.
    Inconsistent,
    /// Data or names are lost, or can be lost if the store is written to.
    Damage,
}

/// A file or directory: its inode, and its path when that could be found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct File {
    /// Inode number.
    pub inode: u64,
    /// Path from the root of the store, with unprintable bytes escaped.
    pub path: Option<String>,
}

impl std::fmt::Display for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{path} (inode {})", self.inode),
            None => write!(f, "inode {}", self.inode),
        }
    }
}

/// Where a data block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BlockPlace {
    /// Logical block.
    pub address: u64,
    /// Device id.
    pub device: u32,
    /// Byte offset on the device.
    pub device_offset: u64,
}

impl std::fmt::Display for BlockPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "device {}, byte {} (block {})", self.device, self.device_offset, self.address)
    }
}

/// One fault. Numbers of blocks and addresses are in blocks of 4096 bytes; offsets, sizes and lengths are bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(tag = "issue", rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Issue {
    // The store and its parts.
    /// One of the two superblocks.
    #[error("the superblock copy at byte {offset} is damaged; the other copy is good")]
    SuperblockCopyDamaged { offset: u64 },
    /// One of the two labels of a device.
    #[error("the label of device {device} at byte {offset} is damaged or old; the other copy is good")]
    LabelCopyDamaged { device: u32, offset: u64 },
    /// Both labels of a device.
    #[error("device {device} has no label: it may be the wrong file or disk ({reason})")]
    LabelLost { device: u32, reason: String },
    /// Its label names another store or another device.
    #[error("device {device} is not the one that belongs here: {reason}")]
    DeviceForeign { device: u32, reason: String },
    /// Shorter than the store was made with.
    #[error("device {device} has {found} bytes, but the store was made with {expected}: what lay behind is lost")]
    DeviceShort { device: u32, expected: u64, found: u64 },
    /// The metadata's record of a device does not agree with superblock and label.
    #[error("the metadata's record of device {device} is wrong: {reason}")]
    DeviceRecord { device: u32, reason: &'static str },
    /// The last transactions before a clean unmount are not there, or ones that came after it.
    #[error(
        "the store was unmounted after transaction {clean}, but holds transactions up to {found}: its parts do not belong together"
    )]
    SequenceDiffers { clean: u64, found: u64 },
    /// A journal record is bad although later ones are whole.
    #[error("the journal is damaged: {reason}")]
    JournalDamaged { reason: String },
    /// A page of the index is lost in both copies, or its structure is wrong.
    #[error("the metadata index is damaged: {reason}")]
    IndexDamaged { reason: String },
    /// What is needed before anything else can be looked at is missing or bad; nothing more was checked.
    #[error("the metadata cannot be opened, so nothing else was checked: {reason}")]
    MetadataUnusable { reason: String },
    /// A group does not lie within its device's area, or its device does not exist.
    #[error("group {group} lies at byte {offset} of device {device}, which is not within that device's area for data")]
    GroupOutsideDevice { group: u64, device: u32, offset: u64 },
    /// Two groups on the same bytes.
    #[error("groups {first} and {second} share bytes of device {device}")]
    GroupsOverlap { first: u64, second: u64, device: u32 },
    /// A bitmap of a group that is not there.
    #[error("there is a bitmap of group {group}, but no such group")]
    StrayBitmap { group: u64 },

    // Values.
    /// A value's checksum or layout is wrong.
    #[error("the record of {what} is damaged (key {key})")]
    DamagedValue { what: String, key: String },
    /// A key that this format does not have.
    #[error("there is a metadata key that this format does not have: {key}")]
    UnknownKey { key: String },
    /// The next inode number is one that exists already.
    #[error("the next new inode would be number {next_inode}, but there is an inode {highest} already")]
    NextInodeTooLow { next_inode: u64, highest: u64 },
    /// The sum of preallocated blocks is wrong.
    #[error("the store counts {recorded} preallocated blocks, but its files have {counted}")]
    UnwrittenCount { recorded: u64, counted: u64 },

    // Names and links.
    /// No root, or it is no directory, or it has another parent than itself.
    #[error("the root directory is missing or wrong: {reason}")]
    RootWrong { reason: &'static str },
    /// Items of an inode that has no inode record.
    #[error("inode {inode} has {items} metadata items, but no inode record")]
    ItemsWithoutInode { inode: u64, items: u64 },
    /// An item that an inode of its kind cannot have.
    #[error("{file} is a {kind} and has a {item}, which it cannot have")]
    MisplacedItem { file: File, kind: &'static str, item: &'static str },
    /// A name of an inode that is not there.
    #[error("the name {name} in {directory} stands for inode {inode}, which does not exist")]
    EntryWithoutInode { directory: File, name: String, inode: u64 },
    /// A name says another kind of file than the inode.
    #[error("the name {name} in {directory} says that inode {inode} is a {recorded}, but it is a {found}")]
    EntryKind { directory: File, name: String, inode: u64, recorded: &'static str, found: &'static str },
    /// A name of an inode that says it has none.
    #[error("the name {name} in {directory} stands for inode {inode}, which is deleted")]
    EntryToDeleted { directory: File, name: String, inode: u64 },
    /// A name that a listing does not show.
    #[error("the name {name} in {directory} can be looked up but is not listed (cookie {cookie})")]
    EntryWithoutCookie { directory: File, name: String, cookie: u64 },
    /// A listed name that cannot be looked up.
    #[error("the name {name} in {directory} is listed (cookie {cookie}) but cannot be looked up")]
    CookieWithoutEntry { directory: File, name: String, cookie: u64 },
    /// Listing and lookup of a name give different things.
    #[error("the name {name} in {directory} is listed as another file, or kind of file, than looking it up gives")]
    EntryDiffers { directory: File, name: String },
    /// A cookie that is reserved or not given out yet.
    #[error("{directory} has an entry with cookie {cookie}, which is not between 3 and the next one, {next_cookie}")]
    CookieOutOfRange { directory: File, cookie: u64, next_cookie: u64 },
    /// A name that the inode does not know of.
    #[error("{file} does not know of its name {name} in {directory}")]
    EntryUnknownToInode { file: File, directory: File, name: String },
    /// The first name is not where the inode says.
    #[error("{file} should have a name in directory {parent} (cookie {cookie}), but that is not its name")]
    NameMissing { file: File, parent: u64, cookie: u64 },
    /// A further hard link is not where its record says.
    #[error("{file} should have a hard link in directory {parent} (cookie {cookie}), but that is not its name")]
    LinkMissing { file: File, parent: u64, cookie: u64 },
    /// The number of links is wrong; a directory has 2 and one for each directory in it.
    #[error("{file} counts {recorded} links, but has {counted}")]
    LinkCount { file: File, recorded: u32, counted: u64 },
    /// The number of entries is wrong.
    #[error("directory {file} counts {recorded} entries, but has {counted}")]
    DirectorySize { file: File, recorded: u64, counted: u64 },
    /// Directories that contain each other.
    #[error("directory {file} cannot be reached: it lies within itself")]
    DirectoryLoop { file: File },
    /// No names, and not listed for deletion: its space is lost.
    #[error("inode {inode} has no name and is not waiting to be deleted: it cannot be reached and its space is lost")]
    Unreachable { inode: u64 },
    /// A deleted directory with entries.
    #[error("directory {inode} is deleted but still has {entries} entries")]
    DeletedNotEmpty { inode: u64, entries: u64 },
    /// Listed for deletion or truncation, but not there.
    #[error("inode {inode} is to be deleted or truncated, but does not exist")]
    OrphanWithoutInode { inode: u64 },
    /// Listed for deletion, but it has links.
    #[error("{file} is to be deleted, but still has {links} links")]
    OrphanStillLinked { file: File, links: u32 },

    // Files.
    /// The flag that says whether there are extended attributes is wrong.
    #[error("{file} has {found} extended attributes, but its flag says {}", if *.flagged { "that it has some" } else { "that it has none" })]
    XattrFlag { file: File, flagged: bool, found: u64 },
    /// The target is missing, or not as long as the inode says.
    #[error("symlink {file} should have a target of {size} bytes, but {}", .found.map_or("has none".to_owned(), |found| format!("it has {found}")))]
    SymlinkTarget { file: File, size: u64, found: Option<u64> },
    /// A range that does not begin on a block, or ends behind the largest offset.
    #[error("{file}: the range at byte {offset} with {length} bytes does not begin on a block or goes too far")]
    MapOutOfBounds { file: File, offset: u64, length: u64 },
    /// Two ranges of a file on the same offsets.
    #[error("{file}: the range at byte {offset} begins before the one in front of it ends, at byte {previous_end}")]
    MapOverlap { file: File, offset: u64, previous_end: u64 },
    /// Data behind the end of the file.
    #[error("{file}: data reaches to byte {end}, behind the end of the file at byte {size}")]
    MapBehindEnd { file: File, offset: u64, end: u64, size: u64 },
    /// The number of blocks is wrong.
    #[error("{file} counts {recorded} blocks, but has {counted}")]
    BlockCount { file: File, recorded: u64, counted: u64 },
    /// Data in an extent that is not there.
    #[error("{file}: the data at byte {offset} should be in extent {extent}, which does not exist")]
    MapWithoutExtent { file: File, offset: u64, extent: u64 },
    /// The range and the extent disagree about the extent's length.
    #[error("{file}: the data at byte {offset} is in extent {extent}, which should have {recorded} blocks but has {found}")]
    MapExtentLength { file: File, offset: u64, extent: u64, recorded: u32, found: u32 },

    // Space.
    /// No file uses the extent.
    #[error("extent {extent} ({blocks} blocks, written for {owner}) is used by no file")]
    ExtentUnreferenced { extent: u64, blocks: u32, owner: File },
    /// Two extents hold data in the same block. (In dead blocks of an older extent a newer one may lie.)
    #[error("extent {extent} holds data in block {block}, and so does an extent in front of it")]
    ExtentOverlap { extent: u64, block: u64 },
    /// It crosses the end of its group, or there is no such group.
    #[error("extent {extent} ({blocks} blocks) does not lie within one open group")]
    ExtentOutsideGroup { extent: u64, blocks: u32 },
    /// References are counted wrong.
    #[error("extent {extent}: block {block} counts {recorded} references, but has {counted} ({blocks} blocks differ)")]
    ReferenceCount { extent: u64, block: u32, recorded: u32, counted: u32, blocks: u32 },
    /// A state record that should not be there: every block has one reference, or none has any.
    #[error("extent {extent} has a state record that says nothing: every block has {references} references")]
    StateNeedless { extent: u64, references: u32 },
    /// State of an extent that is not there.
    #[error("there is a state record of extent {extent}, but no such extent")]
    StateWithoutExtent { extent: u64 },
    /// State and extent disagree about its length.
    #[error("the state of extent {extent} has {recorded} blocks, but the extent has {found}")]
    StateLength { extent: u64, recorded: u32, found: u32 },
    /// Used blocks that hold nothing: lost space.
    #[error("{count} blocks from block {first} on are marked as used, but hold nothing")]
    UsedWithoutData { first: u64, count: u64 },
    /// Data in blocks that may be given out again.
    #[error("{count} blocks from block {first} on hold data, but are marked as free: do not mount the store for writing")]
    DataNotUsed { first: u64, count: u64 },

    // Data.
    /// A block that does not match its checksum.
    #[error("{}: the data at byte {offset} is damaged: {place}: checksum {found:08x}, expected {expected:08x}", owner(.file))]
    BadBlock { file: Option<File>, offset: u64, place: BlockPlace, expected: u32, found: u32 },
    /// One of several copies of a block; another one matches. A scrub repairs it, and so does the next read of it.
    #[error("{}: one copy of the data at byte {offset} is damaged, another is good: {place}: {reason}", owner(.file))]
    BadCopy { file: Option<File>, offset: u64, place: BlockPlace, reason: String },
    /// A block that the device does not give back.
    #[error("{}: the data at byte {offset} cannot be read: {place}: {reason}", owner(.file))]
    UnreadableBlock { file: Option<File>, offset: u64, place: BlockPlace, reason: String },
}

fn owner(file: &Option<File>) -> String {
    file.as_ref().map_or_else(|| "no file".to_owned(), File::to_string)
}

impl Issue {
    /// How bad it is.
    pub fn severity(&self) -> Severity {
        use Issue::*;
        match self {
            SuperblockCopyDamaged { .. } | LabelCopyDamaged { .. } | BadCopy { .. } => Severity::Harmless,
            DeviceRecord { .. }
            | StrayBitmap { .. }
            | UnwrittenCount { .. }
            | EntryUnknownToInode { .. }
            | LinkCount { .. }
            | DirectorySize { .. }
            | Unreachable { .. }
            | DeletedNotEmpty { .. }
            | OrphanWithoutInode { .. }
            | XattrFlag { .. }
            | MapBehindEnd { .. }
            | BlockCount { .. }
            | ExtentUnreferenced { .. }
            | StateNeedless { .. }
            | StateWithoutExtent { .. }
            | UsedWithoutData { .. } => Severity::Inconsistent,
            LabelLost { .. }
            | DeviceForeign { .. }
            | DeviceShort { .. }
            | SequenceDiffers { .. }
            | JournalDamaged { .. }
            | IndexDamaged { .. }
            | MetadataUnusable { .. }
            | GroupOutsideDevice { .. }
            | GroupsOverlap { .. }
            | DamagedValue { .. }
            | UnknownKey { .. }
            | NextInodeTooLow { .. }
            | RootWrong { .. }
            | ItemsWithoutInode { .. }
            | MisplacedItem { .. }
            | EntryWithoutInode { .. }
            | EntryKind { .. }
            | EntryToDeleted { .. }
            | EntryWithoutCookie { .. }
            | CookieWithoutEntry { .. }
            | EntryDiffers { .. }
            | CookieOutOfRange { .. }
            | NameMissing { .. }
            | LinkMissing { .. }
            | DirectoryLoop { .. }
            | OrphanStillLinked { .. }
            | SymlinkTarget { .. }
            | MapOutOfBounds { .. }
            | MapOverlap { .. }
            | MapWithoutExtent { .. }
            | MapExtentLength { .. }
            | ExtentOverlap { .. }
            | ExtentOutsideGroup { .. }
            | ReferenceCount { .. }
            | StateLength { .. }
            | DataNotUsed { .. }
            | BadBlock { .. }
            | UnreadableBlock { .. } => Severity::Damage,
        }
    }
}
