//! An index lost in both copies, on real stores: mounting names the way out, `sumfs index rebuild` goes it, and everything is there.

use crate::content::{assert_same, pattern};
use crate::damage::flip;
use crate::mount::{Mount, run, sumfs};
use crate::smoke::look;
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const CODE_MOUNT_FAILED: i32 = 32;
/// How long to wait for what happens in the background.
const PATIENCE: Duration = Duration::from_secs(60);

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn image(mount: &Mount) -> Value {
    mount.info()["image"].clone()
}

fn wait_for_image(mount: &Mount) -> Value {
    let begin = Instant::now();
    loop {
        let image = image(mount);
        if image["state"] == "current" {
            return image;
        }
        assert!(begin.elapsed() < PATIENCE, "there is no image: {image}");
        std::thread::yield_now();
    }
}

fn fill(mount: &Mount, round: usize) {
    for directory in 0..10 {
        let directory = mount.path().join(format!("round-{round}-{directory}"));
        fs::create_dir(&directory).unwrap();
        for file in 0..30 {
            fs::write(directory.join(format!("file-{file}")), pattern(500 + 900 * file, (round * 1000 + file) as u64)).unwrap();
        }
    }
    fs::write(mount.path().join(format!("large-{round}")), pattern(3 << 20, round as u64)).unwrap();
    if round > 0 {
        fs::remove_dir_all(mount.path().join(format!("round-{}-3", round - 1))).unwrap();
    }
}

/// Every file's name and SHA-256, and what stat says.
fn everything(mount: &Mount) -> (String, impl PartialEq + use<>) {
    let root = mount.path();
    let sums = run("sh", &["-c", "cd \"$0\" && find . -type f -print0 | sort -z | xargs -0 sha256sum", text(&root)]);
    (sums.expect_success().stdout, look(&root))
}

fn overwrite_with_noise(index: &Path) {
    let len = fs::metadata(index).unwrap().len();
    File::options().write(true).open(index).unwrap().write_all_at(&pattern(len as usize, 666), 0).unwrap();
}

fn rebuild(mount: &Mount) -> Value {
    let ran = sumfs(&["index", "rebuild", text(&mount.store()), "--json"]).expect_success();
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

/// A mount fails and names the command.
fn refuses(mount: &Mount) {
    let mounted = sumfs(&["mount", text(&mount.store()), text(&mount.path())]);
    mounted.expect_failure(CODE_MOUNT_FAILED, &["sumfs index rebuild", text(&mount.store())]);
}

#[test]
fn a_lost_index_is_made_anew_with_everything_in_it() {
    let mut mount = Mount::with_size("64M", "noatime");
    let begun = wait_for_image(&mount);
    fill(&mount, 0);
    mount.umount();
    type Loss = fn(&Path);
    let losses: [Loss; 4] = [
        |index| File::options().write(true).open(index).unwrap().set_len(0).unwrap(),
        |index| File::options().write(true).open(index).unwrap().set_len(1 << 20).unwrap(),
        |index| fs::remove_file(index).unwrap(),
        overwrite_with_noise,
    ];
    for (round, lose) in losses.into_iter().enumerate() {
        mount.mount();
        fill(&mount, round + 1);
        sumfs(&["sync", text(&mount.path())]).expect_success();
        let expected = everything(&mount);
        // Closed properly, or not: then what is newest is in the journal only.
        if round % 2 == 0 {
            mount.umount()
        } else {
            mount.kill()
        }
        let index = mount.store().join("index");
        let size = fs::metadata(&index).unwrap().len();
        lose(&index);
        refuses(&mount);
        let report = rebuild(&mount);
        assert_eq!(report["missing"], Value::Null, "{report}");
        assert_eq!(report["image_generation"], begun["generation"], "{report}");
        assert!(report["records"].as_u64() > Some(1000), "{report}");
        assert_eq!(mount.store().join("index.damaged").exists(), report["damaged_index"] != Value::Null, "{report}");
        assert!(fs::metadata(&index).unwrap().len() <= 2 * size, "the new index is larger than the old one");
        mount.mount();
        assert!(everything(&mount) == expected, "round {round}: something else is there now");
        mount.umount();
        mount.check().expect_success();
    }
}

#[test]
fn a_damaged_image_is_met_by_a_scrub_and_written_anew() {
    let mut mount = Mount::with_size("64M", "noatime");
    fill(&mount, 0);
    let old = wait_for_image(&mount);
    mount.umount();
    let place = if old["generation"].as_u64().unwrap() % 2 == 1 { "image.0" } else { "image.1" };
    flip(&mount.store().join(place), 4096 + 200);
    mount.mount();
    let report = sumfs(&["scrub", "start", text(&mount.path()), "--wait", "--json"]);
    let report: Value = serde_json::from_str(&report.stdout).unwrap();
    assert!(report["healed_copies"].as_u64() > Some(0), "{report}");
    let begin = Instant::now();
    while wait_for_image(&mount)["generation"] == old["generation"] {
        assert!(begin.elapsed() < PATIENCE, "no new image: {}", image(&mount));
    }
    let expected = everything(&mount);
    mount.umount();
    fs::remove_file(mount.store().join("index")).unwrap();
    let report = rebuild(&mount);
    assert!(report["image_generation"].as_u64() > old["generation"].as_u64(), "{report}");
    mount.mount();
    assert!(everything(&mount) == expected, "something else is there now");
}

#[test]
fn a_store_in_use_and_one_without_an_image_are_refused() {
    let mut mount = Mount::with_size("64M", "noatime");
    wait_for_image(&mount);
    fs::write(mount.path().join("file"), pattern(100_000, 1)).unwrap();
    sumfs(&["index", "rebuild", text(&mount.store())]).expect_failure(1, &["is mounted at", "sumfs umount"]);
    assert_same(&fs::read(mount.path().join("file")).unwrap(), &pattern(100_000, 1), "the file");
    mount.umount();
    let [first, second] = ["image.0", "image.1"].map(|name| mount.store().join(name));
    let before = fs::read(mount.store().join("index")).unwrap();
    for path in [&first, &second] {
        fs::remove_file(path).unwrap();
    }
    sumfs(&["index", "rebuild", text(&mount.store())]).expect_failure(1, &["no complete metadata image"]);
    assert!(fs::read(mount.store().join("index")).unwrap() == before, "the index was touched");
    // The next mount writes a new one.
    mount.mount();
    wait_for_image(&mount);
}
